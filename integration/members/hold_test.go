//go:build unix

package members_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/etcdtest"
	"github.com/revfence/revfence/internal/faultkit"
	"github.com/revfence/revfence/internal/locktest"
)

// A hold is a lock whose renewals are known to go through one member, although its client knows all.
type hold struct {
	cluster  *faultkit.Cluster
	lock     *etcdlock.Lock
	ttl      time.Duration
	renewals renewals

	mu   sync.Mutex
	told time.Time // of the loss
}

// take takes the name with a new client and has it renewed through member used for the first time.
func take(t testing.TB, c *faultkit.Cluster, used int, name string, ttl time.Duration, opts ...etcdlock.Option) *hold {
	t.Helper()
	h := &hold{cluster: c, ttl: ttl, renewals: renewals{more: make(chan struct{})}}
	way := c.Member(used).Proxy.Addr()
	client := c.Client(t, etcdtest.Via(way), etcdtest.Stream(h.renewals.stream))
	h.lock = locktest.Lock(t, locktest.New(t, client, append(opts, etcdlock.WithTTL(ttl))...), name)
	context.AfterFunc(h.lock.Context(), func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.told = time.Now()
	})
	h.next(t)
	if via := h.renewals.through(); via != way {
		t.Fatalf("renewed through %s, want %s", via, way)
	}
	// The connection that carries the stream stays as it is.
	client.SetEndpoints(c.Proxied()...)
	return h
}

// next waits for a renewal to be answered.
func (h *hold) next(t testing.TB) {
	t.Helper()
	receive(t, "answered renewal", h.renewals.after())
}

// due returns just before a renewal is: the moment at which a fault does most harm.
func (h *hold) due(t testing.TB) {
	t.Helper()
	h.next(t)
	pass(h.ttl/3 - 200*time.Millisecond)
}

// kept fails the test if the lock is lost within d.
func (h *hold) kept(t testing.TB, d time.Duration, what string) {
	t.Helper()
	least := h.ttl
	timer := time.NewTimer(d)
	defer timer.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-h.lock.Context().Done():
			t.Fatalf("%s: %v", what, context.Cause(h.lock.Context()))
		case <-tick.C:
			least = min(least, h.lock.Remaining())
		case <-timer.C:
			t.Logf("%s: kept, at least %v left of a TTL of %v", what, least.Round(10*time.Millisecond), h.ttl)
			return
		}
	}
}

// release fails the test if etcd does not know the lock any more, and unlocks it.
func (h *hold) release(t testing.TB) {
	t.Helper()
	if err := h.lock.Check(locktest.Context(t)); err != nil {
		t.Errorf("at the end: %v", err)
	}
	locktest.Unlock(t, h.lock)
}

// lost waits for the lock to be lost and returns how.
func (h *hold) lost(t testing.TB) *etcdlock.LostError {
	t.Helper()
	receive(t, "loss", h.lock.Context().Done())
	return wantLost(t, "cause", h.lock, context.Cause(h.lock.Context()))
}

// toldBefore fails the test unless the holder was told of the loss before etcd deleted its key.
func (h *hold) toldBefore(t testing.TB, deleted <-chan time.Time) {
	t.Helper()
	lost := h.lost(t)
	at := receive(t, "deletion of the key", deleted)
	eventually(t, "note of the loss", func() bool { return !h.toldAt().IsZero() })
	lead := at.Sub(h.toldAt())
	if lead <= 0 {
		t.Errorf("told of the loss %v after the key was seen deleted (%v)", -lead, lost)
	}
	t.Logf("told %v before the key was seen deleted: %v", lead.Round(time.Millisecond), lost)
}

func (h *hold) toldAt() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.told
}

// deletion tells when member sees the lock's key deleted. A member without a quorum sees it late, and so does one that
// is stopped.
func (h *hold) deletion(t testing.TB, member int) <-chan time.Time {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	events := h.cluster.Member(member).Admin().Watch(ctx, h.lock.Key(), clientv3.WithRev(int64(h.lock.Token())+1))
	out := make(chan time.Time, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		for resp := range events {
			for _, e := range resp.Events {
				if e.Type == mvccpb.Event_DELETE {
					out <- time.Now()
					return
				}
			}
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return out
}

// renewals sees the answers that a client gets to its renewals.
type renewals struct {
	mu   sync.Mutex
	via  string        // address of the latest
	more chan struct{} // closed and replaced with each
}

func (r *renewals) after() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.more
}

func (r *renewals) through() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.via
}

func (r *renewals) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		return nil, err
	}
	return &renewalStream{s, r}, nil
}

type renewalStream struct {
	grpc.ClientStream
	seen *renewals
}

func (s *renewalStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if a, ok := m.(*pb.LeaseKeepAliveResponse); !ok || err != nil || a.TTL <= 0 {
		return err
	}
	via := ""
	if p, ok := peer.FromContext(s.Context()); ok {
		via = fmt.Sprint(p.Addr)
	}
	s.seen.mu.Lock()
	defer s.seen.mu.Unlock()
	s.seen.via = via
	close(s.seen.more)
	s.seen.more = make(chan struct{})
	return nil
}
