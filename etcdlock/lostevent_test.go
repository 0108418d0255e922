package etcdlock_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/etcdtest"
	"github.com/revfence/revfence/internal/faultkit"
)

// rereadLimit is the time in which a key is read again though no event has come: 5 s, jittered by half.
const rereadLimit = 7500 * time.Millisecond

// tellsDeletion matches the answers of a watch that tell of a deletion.
func tellsDeletion(_ string, answer any) bool {
	r, ok := answer.(*pb.WatchResponse)
	return ok && len(r.Events) > 0 && r.Events[0].Type == mvccpb.Event_DELETE
}

// tellsCreation matches the answers that say that a watch stands.
func tellsCreation(_ string, answer any) bool {
	r, ok := answer.(*pb.WatchResponse)
	return ok && r.Created
}

// openStreams keeps the contexts of the watch streams that a client opens.
type openStreams struct {
	mu   sync.Mutex
	ctxs []context.Context
}

func (o *openStreams) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := open(ctx, desc, cc, method, opts...)
	if err == nil && strings.HasSuffix(method, etcdtest.Watch) {
		o.mu.Lock()
		o.ctxs = append(o.ctxs, s.Context())
		o.mu.Unlock()
	}
	return s, err
}

// count returns how many were opened, and how many are open still.
func (o *openStreams) count() (all, open int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, ctx := range o.ctxs {
		if ctx.Err() == nil {
			open++
		}
	}
	return len(o.ctxs), open
}

// TestF26WatchUntold: the answer that a watch stands never arrives. etcd's client starts no other one on that stream, nor
// does it ever end it.
func TestF26WatchUntold(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	var streams faultkit.Streams
	var watches standing
	var opened openStreams
	c := srv.Client(t, etcdtest.Stream(watches.stream, opened.stream, streams.Stream))
	l := newLocker(t, c, etcdlock.WithTTL(5*time.Second))
	k := mustLock(t, clientLocker(t, srv), "x")
	untold := streams.Drop(tellsCreation, 1)
	next := goLock(testContext(t), l, "x")
	eventually(t, "a watch on the key before, and one on the own key", func() bool { return watches.count() == 2 })
	if untold.Hits() != 1 {
		t.Errorf("%d answers kept from the client", untold.Hits())
	}
	eventually(t, "one stream of the two closed", func() bool {
		all, open := opened.count()
		return all == 2 && open == 1
	})
	mustUnlock(t, k)
	mustUnlock(t, granted(t, next))
	if err := l.Close(testContext(t)); err != nil {
		t.Error(err)
	}
	eventually(t, "no stream is open, while the client lives on", func() bool { _, open := opened.count(); return open == 0 })
}

// TestF26DeletionUntold: the event of a deletion never arrives. A waiter whose predecessor has gone, and a holder whose own
// key has, find that out by reading.
func TestF26DeletionUntold(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	var streams faultkit.Streams
	var watches standing
	l := newLocker(t, srv.Client(t, etcdtest.Stream(watches.stream, streams.Stream)), etcdlock.WithTTL(5*time.Second))
	k := mustLock(t, clientLocker(t, srv), "waited for")
	next := goLock(testContext(t), l, "waited for")
	held := mustLock(t, l, "held")
	eventually(t, "a watch each on the held key, the waiter's and the one before", func() bool { return watches.count() == 3 })
	untold := streams.Drop(tellsDeletion, 1<<30)
	mustUnlock(t, k)
	remove(t, srv, held.Key())

	late := time.After(rereadLimit + time.Second)
	select {
	case r := <-next:
		if r.err != nil {
			t.Fatalf("Lock: %v", r.err)
		}
		mustUnlock(t, r.lock)
	case <-late:
		t.Fatal("the waiter was not served")
	}
	select {
	case <-held.Context().Done():
		wantLost(t, held, etcdlock.ReasonKeyGone)
	case <-late:
		t.Fatal("the holder was not told")
	}
	if untold.Hits() < 2 {
		t.Errorf("%d deletions kept from the client, want both", untold.Hits())
	}
}
