package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.uber.org/zap"

	"github.com/revfence/revfence/internal/call"
	"github.com/revfence/revfence/internal/clock"
)

// reopenWait is the middle of the pause before a broken stream is opened
// again; each pause is jittered by half, since a lost leader breaks the
// streams of all clients at the same moment.
const reopenWait = 250 * time.Millisecond

// A stream is one KeepAlive stream, opened again whenever it breaks.
type stream struct {
	k      *Keeper
	remote pb.LeaseClient
	cancel context.CancelFunc // ends the stream for good
	wake   chan struct{}      // the outbox has something new

	mu      sync.Mutex
	outbox  []*Lease        // to be sent
	pending []request       // sent, not answered; etcd answers in order
	queued  map[*Lease]bool // in the outbox
}

type request struct {
	lease *Lease
	sent  clock.Reading
}

// startLocked runs a stream until ctx ends. It first asks for everything that
// is due.
func (k *Keeper) startLocked(ctx context.Context, remote pb.LeaseClient) *stream {
	ctx, cancel := context.WithCancel(ctx)
	s := &stream{k: k, remote: remote, cancel: cancel, wake: make(chan struct{}, 1), queued: make(map[*Lease]bool)}
	k.wg.Go(func() { s.run(ctx) })
	return s
}

func (s *stream) enqueue(l *Lease) {
	s.mu.Lock()
	if !s.queued[l] {
		s.queued[l] = true
		s.outbox = append(s.outbox, l)
	}
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *stream) run(ctx context.Context) {
	defer s.cancel()
	for ctx.Err() == nil {
		err := s.once(ctx)
		asked := s.forget()
		if ctx.Err() != nil {
			return
		}
		s.k.say(s.k.Logger.Debug, "lease stream ended", zap.Error(err))
		s.k.refused(asked, err)
		if rpctypes.Error(err) == rpctypes.ErrPermissionDenied && asked != nil {
			continue // that lease is out; the others should not wait for it
		}
		select {
		case <-time.After(call.Jitter(reopenWait)):
		case <-ctx.Done():
			return
		}
	}
}

// once opens the stream and serves it until it breaks.
func (s *stream) once(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	st, err := s.remote.LeaseKeepAlive(ctx)
	if err != nil {
		return err
	}
	for _, l := range s.k.unanswered() {
		s.enqueue(l)
	}
	var sender sync.WaitGroup
	defer sender.Wait()
	defer cancel()
	sender.Go(func() { s.send(ctx, st) })
	for {
		resp, err := st.Recv()
		if err != nil {
			return err
		}
		if err := s.answer(resp); err != nil {
			return err
		}
	}
}

// send sends what is in the outbox, noting the time before each. A failed
// send ends the stream, and Recv says why.
func (s *stream) send(ctx context.Context, st pb.Lease_LeaseKeepAliveClient) {
	for {
		s.mu.Lock()
		out := s.outbox
		s.outbox = nil
		s.mu.Unlock()
		for i, l := range out {
			now := s.k.Clock.Now()
			s.mu.Lock()
			delete(s.queued, l)
			if !l.renewable(now) {
				s.mu.Unlock()
				continue
			}
			s.pending = append(s.pending, request{l, now})
			s.mu.Unlock()
			if err := st.Send(&pb.LeaseKeepAliveRequest{ID: l.id}); err != nil {
				s.mu.Lock()
				s.outbox = append(out[i+1:], s.outbox...)
				s.mu.Unlock()
				return
			}
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
			return
		}
	}
}

var errOutOfOrder = errors.New("lease: renewal answered out of order")

// answer pairs an answer with the oldest request that has none.
func (s *stream) answer(resp *pb.LeaseKeepAliveResponse) error {
	s.mu.Lock()
	if len(s.pending) == 0 || s.pending[0].lease.id != resp.ID {
		s.mu.Unlock()
		return fmt.Errorf("%w: lease %x", errOutOfOrder, resp.ID)
	}
	req := s.pending[0]
	s.pending = s.pending[1:]
	s.mu.Unlock()
	if resp.TTL <= 0 {
		req.lease.end(Gone, rpctypes.ErrLeaseNotFound)
	} else {
		req.lease.renewed(req.sent, time.Duration(resp.TTL)*time.Second)
	}
	s.k.answered(s)
	return nil
}

// forget drops all requests without an answer: no answer of the next stream
// may be paired with them. It returns the oldest one's lease.
func (s *stream) forget() *Lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	var asked *Lease
	if len(s.pending) > 0 {
		asked = s.pending[0].lease
	}
	s.pending, s.outbox = nil, nil
	clear(s.queued)
	return asked
}
