package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/etcdtest"
	"github.com/revfence/revfence/internal/faultkit"
)

// The tests of this file count what speed is made of: calls, commits, watches, goroutines. Times are for benchmarks.

// TestThousandWaiters lets a thousand goroutines of one process wait for a name that another process holds.
func TestThousandWaiters(t *testing.T) {
	const waiters = 1000
	srv := startClean(t, soon)
	holder := clientLocker(t, srv)
	var calls etcdtest.Counter
	var watches watchTap
	l := newLocker(t, srv.Client(t, etcdtest.Counted(&calls), etcdtest.Stream(watches.stream)))
	const name = "crowded"
	mustUnlock(t, mustLock(t, l, "warm"))
	versionsAsked(t, &calls)
	k := mustLock(t, holder, name)
	// The holder's watch on its own key comes late; it should not be mistaken for the waiters'.
	before := srv.WatcherCount(t)
	eventually(t, "watch of the holder", func() bool { return srv.WatcherCount(t) == before+1 })
	before++
	sent := calls.Snapshot()
	goroutines := runtime.NumGoroutine()

	ctx, cancel := context.WithCancel(testContext(t))
	var wg sync.WaitGroup
	for range waiters {
		wg.Go(func() {
			if k, err := l.Lock(ctx, name); !errors.Is(err, context.Canceled) {
				t.Errorf("Lock: %v, %v", k, err)
			}
		})
	}
	eventually(t, "a thousand waiters", func() bool { return l.TurnsWaiting(name) == waiters-1 && len(watches.list()) > 0 })
	if n := runtime.NumGoroutine() - goroutines; n > waiters+30 {
		t.Errorf("%d goroutines for %d waiters", n, waiters)
	}
	queue, err := l.Queue(testContext(t), name)
	if err != nil || len(queue) != 2 || queue[0].Key != k.Key() {
		t.Fatalf("queue of the holder and %d waiters: %v, %v", waiters, queue, err)
	}
	eventually(t, "watch on the own place", func() bool { return len(watches.list()) > 1 })
	eventually(t, "two watches in etcd", func() bool { return srv.WatcherCount(t) == before+2 })
	w := watches.list()
	if len(w) != 2 || w[0].key != k.Key() || w[1].key != queue[1].Key {
		t.Errorf("watches %v: want one on %s and one on %s", w, k.Key(), queue[1].Key)
	} else if d := w[1].at.Sub(w[0].at); d < 900*time.Millisecond {
		t.Errorf("the own place was watched after %v, not only after a second", d)
	}
	if n := runtime.NumGoroutine() - goroutines; n > waiters+30 {
		t.Errorf("%d goroutines for %d waiters", n, waiters)
	}
	if d := calls.Snapshot().Sub(sent); d.Unary[etcdtest.Txn] != 1 || d.Calls() > 5 {
		t.Errorf("%d waiters made the calls %v: want one transaction, and a few reads", waiters, d)
	}
	cancel()
	wg.Wait()
	mustUnlock(t, k)
}

// TestBusyTryLockReadsOnce counts TryLock on a name that another process, and one that the same process, holds.
func TestBusyTryLockReadsOnce(t *testing.T) {
	const tries = 50
	srv := startClean(t, soon)
	var calls etcdtest.Counter
	l := newLocker(t, srv.Client(t, etcdtest.Counted(&calls)))
	other := clientLocker(t, srv)
	theirs, ours := mustLock(t, other, "theirs"), mustLock(t, l, "ours")
	versionsAsked(t, &calls)
	// No watch of theirs or ours may start to read in between.
	eventually(t, "watches on the held keys", func() bool { return calls.Snapshot().Opened[etcdtest.Watch] > 0 })
	for _, name := range []string{"theirs", "ours"} {
		rev, before := srv.Revision(t), calls.Snapshot()
		for range tries {
			if k, err := l.TryLock(testContext(t), name); !errors.Is(err, etcdlock.ErrLocked) {
				t.Fatalf("TryLock of a taken name: %v, %v", k, err)
			}
		}
		d := calls.Snapshot().Sub(before)
		if d.Unary[etcdtest.Range] != tries || d.Calls() != tries {
			t.Errorf("%d times TryLock of %q made the calls %v", tries, name, d)
		}
		if now := srv.Revision(t); now != rev {
			t.Errorf("TryLock of %q wrote: revision %d, %d before", name, now, rev)
		}
	}
	mustUnlock(t, theirs)
	mustUnlock(t, ours)
}

// TestUncontendedCycleCommitsTwice counts Lock and Unlock of a free name, once a lease is there.
func TestUncontendedCycleCommitsTwice(t *testing.T) {
	const cycles = 100
	srv := startClean(t, soon)
	var calls etcdtest.Counter
	l := newLocker(t, srv.Client(t, etcdtest.Counted(&calls)))
	mustUnlock(t, mustLock(t, l, "cycle"))
	versionsAsked(t, &calls)
	rev, before := srv.Revision(t), calls.Snapshot()
	for range cycles {
		mustUnlock(t, mustLock(t, l, "cycle"))
	}
	if d := calls.Snapshot().Sub(before); d.Unary[etcdtest.Txn] != 2*cycles || d.Calls() != 2*cycles || len(d.Opened) > 0 {
		t.Errorf("%d cycles made the calls %v: want two transactions each", cycles, d)
	}
	if n := srv.Revision(t) - rev; n != 2*cycles {
		t.Errorf("%d cycles made %d commits", cycles, n)
	}
}

// TestHandOffCost counts what it takes to hand a lock from one process to another that waits.
func TestHandOffCost(t *testing.T) {
	const rounds, commits, calls = 20, 2, 4
	srv := startClean(t, soon)
	var counter etcdtest.Counter
	var l [2]*etcdlock.Locker
	for i := range l {
		l[i] = newLocker(t, srv.Client(t, etcdtest.Counted(&counter)))
		mustUnlock(t, mustLock(t, l[i], fmt.Sprint("warm", i)))
		eventually(t, "the server's version asked for", func() bool { return asked(&counter) == i+1 })
	}
	k := mustLock(t, l[0], "handed")
	quick := 0
	for i := range rounds {
		rev, before, from := srv.Revision(t), counter.Snapshot(), time.Now()
		next := goLock(testContext(t), l[(i+1)%2], "handed")
		eventually(t, "a waiter that watches", func() bool {
			return counter.Snapshot().Sub(before).Sent[etcdtest.Watch] > 0
		})
		mustUnlock(t, k)
		k = granted(t, next)
		if time.Since(from) > 300*time.Millisecond {
			continue // long enough for watches on the own keys to begin
		}
		quick++
		if d := counter.Snapshot().Sub(before); d.Calls() > calls {
			t.Errorf("hand-off made the calls %v: want at most two commits and two reads", d)
		}
		if n := srv.Revision(t) - rev; n != commits {
			t.Errorf("hand-off made %d commits: want %d", n, commits)
		}
	}
	mustUnlock(t, k)
	if quick < rounds/2 {
		t.Errorf("only %d of %d hand-offs were quick enough to count", quick, rounds)
	}
}

// TestRenewalRate counts the renewals of held locks: one per third of the TTL.
func TestRenewalRate(t *testing.T) {
	t.Parallel()
	const locks, ttl = 20, 3 * time.Second
	srv := startClean(t, soon)
	var calls etcdtest.Counter
	l := newLocker(t, srv.Client(t, etcdtest.Counted(&calls)), etcdlock.WithTTL(ttl))
	held := make([]*etcdlock.Lock, locks)
	for i := range held {
		held[i] = mustLock(t, l, fmt.Sprint("renewed", i))
	}
	before, from := calls.Snapshot(), time.Now()
	<-time.After(2 * ttl)
	d, took := calls.Snapshot().Sub(before), time.Since(from)
	for _, k := range held {
		mustUnlock(t, k)
	}
	rate := float64(d.Sent[etcdtest.KeepAlive]) / locks / (float64(took) / float64(ttl/3))
	t.Logf("%.2f renewals per lock and third of the TTL, on %d new streams", rate, d.Opened[etcdtest.KeepAlive])
	if rate < 0.75 || rate > 1.1 {
		t.Errorf("%.2f renewals per lock and third of the TTL: want one", rate)
	}
	if d.Opened[etcdtest.KeepAlive] > 1 {
		t.Errorf("%d streams for the renewals of one Locker", d.Opened[etcdtest.KeepAlive])
	}
}

// TestCycleAllocations reports what an uncontended cycle allocates, etcd's client included, and bounds it loosely.
func TestCycleAllocations(t *testing.T) {
	c := remoteClient(t, serverProcess(t))
	l := newLocker(t, c)
	cycle := func() { mustUnlock(t, mustLock(t, l, "allocates")) }
	cycle()
	ours := testing.AllocsPerRun(100, cycle)
	ctx := testContext(t)
	puts := testing.AllocsPerRun(100, func() {
		for range 2 {
			if _, err := c.Put(ctx, "put", ""); err != nil {
				t.Error(err)
			}
		}
	})
	t.Logf("allocations: %.0f for Lock and Unlock, %.0f for two Puts", ours, puts)
	if ours > 4*puts {
		t.Errorf("%.0f allocations for Lock and Unlock, %.0f for two Puts", ours, puts)
	}
	if _, err := c.Delete(ctx, "put"); err != nil {
		t.Error(err)
	}
}

// A watchTap lists the watches that a client asks for.
type watchTap struct {
	mu   sync.Mutex
	seen []watched
}

type watched struct {
	key string
	at  time.Time
}

func (w *watchTap) list() []watched {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]watched(nil), w.seen...)
}

func (w *watchTap) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		return nil, err
	}
	return watchStream{s, w}, nil
}

type watchStream struct {
	grpc.ClientStream
	tap *watchTap
}

func (s watchStream) SendMsg(m any) error {
	if r, ok := m.(*pb.WatchRequest); ok && r.GetCreateRequest() != nil {
		s.tap.mu.Lock()
		s.tap.seen = append(s.tap.seen, watched{string(r.GetCreateRequest().Key), time.Now()})
		s.tap.mu.Unlock()
	}
	return s.ClientStream.SendMsg(m)
}

// serverProcess runs a server in a process of its own, for tests that count what the client costs. It returns its
// endpoint.
func serverProcess(tb testing.TB) string {
	tb.Helper()
	return faultkit.StartCluster(tb, 1, nil).Member(0).Endpoint()
}

// remoteClient returns a client of a serverProcess that must be empty again once everything made later is closed.
func remoteClient(tb testing.TB, endpoint string, opts ...etcdtest.ClientOption) *clientv3.Client {
	tb.Helper()
	c := etcdtest.NewClient(tb, []string{endpoint}, opts...)
	tb.Cleanup(func() { etcdtest.AssertClean(tb, c, "", 0) })
	return c
}
