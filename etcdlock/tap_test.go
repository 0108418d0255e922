package etcdlock_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"github.com/revfence/revfence/internal/etcdtest"
)

// A tap sees the renewals of one client.
type tap struct {
	mu    sync.Mutex
	sent  int
	trips []trip // in the order of the answers
	hook  func()
}

// A trip is one answered renewal.
type trip struct{ sent, received time.Time }

func (t trip) took() time.Duration { return t.received.Sub(t.sent) }

// before makes the next renewal call f just before it is sent.
func (p *tap) before(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hook = f
}

// all returns the answered renewals in the order of their answers.
func (p *tap) all() []trip {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.trips)
}

func (p *tap) counts() (sent, received int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sent, len(p.trips)
}

// last returns the renewal that was answered last.
func (p *tap) last() trip {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.trips) == 0 {
		return trip{}
	}
	return p.trips[len(p.trips)-1]
}

// answer waits for an answer received after from.
func (p *tap) answer(ctx context.Context, from time.Time) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !p.last().received.After(from) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("no answer: %w", ctx.Err())
		}
	}
	return nil
}

func (p *tap) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := open(ctx, desc, cc, method, opts...)
	if err != nil || method != "/etcdserverpb."+etcdtest.KeepAlive {
		return s, err
	}
	return &tapped{ClientStream: s, tap: p}, nil
}

type tapped struct {
	grpc.ClientStream
	tap     *tap
	pending []time.Time // when requests without an answer were sent; etcd answers in order
}

func (s *tapped) SendMsg(m any) error {
	s.tap.mu.Lock()
	hook := s.tap.hook
	s.tap.hook = nil
	s.tap.sent++
	s.pending = append(s.pending, time.Now())
	s.tap.mu.Unlock()
	if hook != nil {
		hook()
	}
	return s.ClientStream.SendMsg(m)
}

func (s *tapped) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err == nil {
		s.tap.mu.Lock()
		s.tap.trips = append(s.tap.trips, trip{s.pending[0], time.Now()})
		s.pending = s.pending[1:]
		s.tap.mu.Unlock()
	}
	return err
}

// standing counts the watches of one client that the server has taken on.
type standing struct{ stood atomic.Int64 }

func (w *standing) count() int { return int(w.stood.Load()) }

func (w *standing) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := open(ctx, desc, cc, method, opts...)
	if err != nil || method != "/etcdserverpb."+etcdtest.Watch {
		return s, err
	}
	return &standingStream{s, w}, nil
}

type standingStream struct {
	grpc.ClientStream
	tap *standing
}

func (s *standingStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if r, ok := m.(*pb.WatchResponse); err == nil && ok && r.Created && !r.Canceled {
		s.tap.stood.Add(1)
	}
	return err
}
