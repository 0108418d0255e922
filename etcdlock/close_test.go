package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/etcdtest"
	"github.com/revfence/revfence/internal/faultkit"
)

// TestCloseWaitsForHolders: held locks are told and renewed until they are unlocked, and then handed over at once.
func TestCloseWaitsForHolders(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	const ttl = 3 * time.Second
	l := clientLocker(t, srv, etcdlock.WithTTL(ttl))
	other := clientLocker(t, srv)
	ctx := testContext(t)
	k := mustLock(t, l, "x")
	next := goLock(ctx, other, "x")
	awaitKeys(t, srv, "/revfence/x/", 2)

	closed := make(chan error, 1)
	go func() { closed <- l.Close(ctx) }()
	receive(t, "end of the lock's context", k.Context().Done())
	if cause := context.Cause(k.Context()); !errors.Is(cause, etcdlock.ErrClosed) {
		t.Errorf("the held lock's context ended with %v", cause)
	}
	pass(ttl + time.Second)
	select {
	case err := <-closed:
		t.Fatalf("Close did not wait: %v", err)
	case r := <-next:
		t.Fatalf("the name was handed over before it was unlocked: %+v", r)
	default:
	}
	if k.Remaining() <= 0 {
		t.Error("no longer renewed")
	}
	if err := k.Check(ctx); err != nil {
		t.Errorf("Check while closing: %v", err)
	}
	mustUnlock(t, k)
	if err := receive(t, "Close", closed); err != nil {
		t.Errorf("Close: %v", err)
	}
	mustUnlock(t, granted(t, next))
}

// TestCloseFailsWaiters: those behind another goroutine, those in etcd's queue, and all that come later.
func TestCloseFailsWaiters(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	l, other := clientLocker(t, srv), clientLocker(t, srv)
	ctx := testContext(t)
	k := mustLock(t, other, "x")
	first := goLock(ctx, l, "x")
	awaitKeys(t, srv, "/revfence/x/", 2)
	second := goLock(ctx, l, "x")
	eventually(t, "a waiter in the process", func() bool { return l.TurnsWaiting("x") == 1 })

	if err := l.Close(ctx); err != nil {
		t.Errorf("Close: %v", err)
	}
	for what, c := range map[string]<-chan result{"in etcd": first, "in the process": second} {
		if r := receive(t, what, c); r.lock != nil || !errors.Is(r.err, etcdlock.ErrClosed) {
			t.Errorf("waiter %s: %+v", what, r)
		}
	}
	if n := len(keys(t, srv, "/revfence/x/").Kvs); n != 1 {
		t.Errorf("%d keys in the queue once Close has returned", n)
	}
	usedAfterClose(t, l)
	mustUnlock(t, k)
}

// usedAfterClose checks that a closed Locker refuses everything.
func usedAfterClose(t testing.TB, l *etcdlock.Locker) {
	t.Helper()
	ctx := testContext(t)
	_, err := l.Lock(ctx, "x")
	wantIs(t, "Lock after Close", err, etcdlock.ErrClosed)
	_, err = l.TryLock(ctx, "x")
	wantIs(t, "TryLock after Close", err, etcdlock.ErrClosed)
	_, err = l.Queue(ctx, "x")
	wantIs(t, "Queue after Close", err, etcdlock.ErrClosed)
	err = l.Do(ctx, "x", func(context.Context, *etcdlock.Lock) error {
		t.Error("Do after Close ran the function")
		return nil
	})
	wantIs(t, "Do after Close", err, etcdlock.ErrClosed)
}

// TestCloseDeadline: what is not unlocked by then is lost, no longer renewed, and left to expire, since its work may
// still run.
func TestCloseDeadline(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	const ttl = 2 * time.Second
	l, err := etcdlock.New(srv.Client(t), etcdlock.WithTTL(ttl))
	if err != nil {
		t.Fatal(err)
	}
	kept, done := mustLock(t, l, "kept"), mustLock(t, l, "done")
	mustUnlock(t, done)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	err = l.Close(ctx)
	wantIs(t, "Close", err, context.DeadlineExceeded)
	wantText(t, "Close", err, "1 lock")
	kvs := keys(t, srv, "/revfence/").Kvs
	if len(kvs) != 1 || string(kvs[0].Key) != kept.Key() || kvs[0].CreateRevision != int64(kept.Token()) {
		t.Errorf("keys right after Close: %v; want that of the lock which may still be worked under", kvs)
	}
	var lost *etcdlock.LostError
	if err := kept.Check(testContext(t)); !errors.As(err, &lost) || lost.Reason != etcdlock.ReasonClosed {
		t.Errorf("Check after Close: %v", err)
	}
	if kept.Remaining() != 0 {
		t.Errorf("%v remaining", kept.Remaining())
	}
	if kept.Context().Err() == nil {
		t.Error("the lock's context has not ended")
	}
	usedAfterClose(t, l)
	eventuallyWithin(t, "the key expires", ttl+time.Second+500*time.Millisecond, func() bool { return len(keys(t, srv, "/revfence/").Kvs) == 0 })
	mustLostUnlock(t, kept)
	if err := l.Close(testContext(t)); err != nil {
		t.Errorf("Close once all has ended: %v", err)
	}
}

// TestCloseTwice: the second waits as the first does.
func TestCloseTwice(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	l := clientLocker(t, srv)
	ctx := testContext(t)
	k := mustLock(t, l, "x")
	closed := make(chan error, 2)
	for range 2 {
		go func() { closed <- l.Close(ctx) }()
	}
	receive(t, "end of the lock's context", k.Context().Done())
	select {
	case err := <-closed:
		t.Fatalf("Close did not wait: %v", err)
	default:
	}
	mustUnlock(t, k)
	for range 2 {
		if err := receive(t, "Close", closed); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	if err := l.Close(ctx); err != nil {
		t.Errorf("third Close: %v", err)
	}
}

// TestCloseUnused: nothing was started, so there is nothing to ask etcd.
func TestCloseUnused(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	var calls etcdtest.Counter
	l, err := etcdlock.New(srv.Client(t, etcdtest.Counted(&calls)))
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Close(ended); err != nil {
		t.Errorf("Close with nothing to wait for, under a context that has ended: %v", err)
	}
	usedAfterClose(t, l)
	if got := calls.Snapshot(); got.Calls() != 0 || len(got.Opened) != 0 {
		t.Errorf("etcd was asked: %v", got)
	}
}

// TestCloseRevokesIdleLeases: they do not stay until they expire.
func TestCloseRevokesIdleLeases(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	l := clientLocker(t, srv)
	mustUnlock(t, mustLock(t, l, "x"))
	if n := leaseCount(t, srv); n != 1 {
		t.Errorf("%d idle leases", n)
	}
	if err := l.Close(testContext(t)); err != nil {
		t.Errorf("Close: %v", err)
	}
	if n := leaseCount(t, srv); n != 0 {
		t.Errorf("%d leases once Close has returned", n)
	}
}

// TestCloseDuringAcquisitions: whatever the moment, every Lock returns a lock that can be unlocked or an error, and
// nothing is left when Close has returned.
func TestCloseDuringAcquisitions(t *testing.T) {
	srv := startClean(t, soon)
	ctx := testContext(t)
	for round := range 15 {
		l, err := etcdlock.New(srv.Client(t))
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		started := make(chan struct{})
		start := sync.OnceFunc(func() { close(started) })
		for i := range 50 {
			wg.Go(func() {
				for {
					k, err := l.Lock(ctx, fmt.Sprint(i%10))
					if err != nil {
						if !errors.Is(err, etcdlock.ErrClosed) {
							t.Errorf("Lock: %v", err)
						}
						return
					}
					start()
					if err := k.Unlock(ctx); err != nil {
						t.Errorf("Unlock: %v", err)
					}
				}
			})
		}
		receive(t, "a lock", started)
		pass(time.Duration(round) * time.Millisecond)
		if err := l.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
		if left := keys(t, srv, "").Kvs; len(left) != 0 {
			t.Errorf("round %d: left when Close has returned: %v", round, left)
		}
		if n := leaseCount(t, srv); n != 0 {
			t.Errorf("round %d: %d leases left when Close has returned", round, n)
		}
		wg.Wait()
	}
}

// TestClientClosedFirst: a Locker whose client was closed under it says so and can still be closed.
func TestClientClosedFirst(t *testing.T) {
	t.Parallel()
	srv := startClean(t, 4*time.Second)
	client := srv.Client(t)
	l := newLocker(t, client, etcdlock.WithTTL(2*time.Second))
	k := mustLock(t, l, "x")
	other := mustLock(t, clientLocker(t, srv), "y")
	waiter := goLock(testContext(t), l, "y")
	awaitKeys(t, srv, "/revfence/y/", 2)
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	r := receive(t, "Lock", waiter)
	wantIs(t, "waiter", r.err, etcdlock.ErrClosed)
	_, err := l.Lock(testContext(t), "z")
	wantIs(t, "Lock", err, etcdlock.ErrClosed)
	if err := k.Unlock(testContext(t)); !errors.Is(err, etcdlock.ErrUnknown) && !errors.Is(err, etcdlock.ErrLost) {
		t.Errorf("Unlock: %v", err)
	}
	mustUnlock(t, other)
}

// TestF31CloseIdleUnreachable: sixteen idle leases are revoked beside each other.
func TestF31CloseIdleUnreachable(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	srv := startClean(t, ttl+soon)
	p := faultkit.NewProxy(t, srv.Endpoint())
	l, err := etcdlock.New(srv.Client(t, etcdtest.Via(p.Addr())), etcdlock.WithTTL(ttl))
	if err != nil {
		t.Fatal(err)
	}
	var held []*etcdlock.Lock
	for i := range 16 {
		held = append(held, mustLock(t, l, fmt.Sprint(i)))
	}
	for _, k := range held {
		mustUnlock(t, k)
	}
	p.BlackHole()
	asked := time.Now()
	if err := l.Close(context.Background()); err != nil {
		t.Errorf("Close: %v", err)
	}
	if took := time.Since(asked); took > 8*time.Second {
		t.Errorf("Close took %v: a revoke is given 5 s", took)
	}
}

// TestMaxHoldOnSharedLeaseWhileClosing: the name of a lock that was given up is free a TTL later, not a TTL after the
// last neighbour on its lease, that Close waits for, has been unlocked.
func TestMaxHoldOnSharedLeaseWhileClosing(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	srv := startClean(t, ttl+soon)
	l, other := clientLocker(t, srv, etcdlock.WithTTL(ttl), etcdlock.WithSharedLeases(4)), clientLocker(t, srv)
	neighbour := mustLock(t, l, "neighbour")
	k := mustLock(t, l, "x", etcdlock.WithMaxHold(200*time.Millisecond))
	if a, b := leaseOf(t, srv, neighbour), leaseOf(t, srv, k); a != b {
		t.Fatalf("leases %x and %x", a, b)
	}
	if lost := lostTo(t, k); lost.Reason != etcdlock.ReasonMaxHold {
		t.Errorf("lost: %v", lost)
	}
	from := time.Now()
	closed := make(chan error, 1)
	go func() { closed <- l.Close(testContext(t)) }()
	receive(t, "Close has begun", neighbour.Context().Done())
	next := granted(t, goLock(testContext(t), other, "x"))
	if took := time.Since(from); took > ttl+time.Second || took < ttl-time.Second {
		t.Errorf("free %v after the loss, with a TTL of %v", took, ttl)
	}
	if err := neighbour.Check(testContext(t)); err != nil {
		t.Errorf("the neighbour: %v", err)
	}
	mustUnlock(t, next)
	mustUnlock(t, neighbour)
	if err := receive(t, "Close", closed); err != nil {
		t.Errorf("Close: %v", err)
	}
}
