package etcdlock_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/fencing"
	"github.com/revfence/revfence/internal/etcdtest"
	"github.com/revfence/revfence/internal/faultkit"
)

// TestDo: the function runs once, under the lock, and the lock is released after it.
func TestDo(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	l := clientLocker(t, srv)
	ctx := testContext(t)
	failure := errors.New("failure")
	for _, want := range []error{nil, failure} {
		ran := 0
		err := l.Do(ctx, "x", func(ctx context.Context, k *etcdlock.Lock) error {
			ran++
			if err := k.Check(ctx); err != nil {
				t.Errorf("Check: %v", err)
			}
			if name, token, ok := fencing.FromContext(ctx); !ok || name != "x" || token != k.Token() {
				t.Errorf("context carries %q, %d, %t; token %d", name, token, ok, k.Token())
			}
			return want
		})
		if err != want || ran != 1 {
			t.Errorf("Do = %v after %d runs, want %v after 1", err, ran, want)
		}
		if left := keys(t, srv, "/revfence/x/").Kvs; len(left) != 0 {
			t.Errorf("not released: %v", left)
		}
	}
	if err := l.Do(ctx, "x", nil); err == nil {
		t.Error("nil function: no error")
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	err := l.Do(ended, "x", func(context.Context, *etcdlock.Lock) error {
		t.Error("ran under a context that had ended")
		return nil
	})
	wantIs(t, "Do under a context that had ended", err, context.Canceled)
}

// TestF12DoHoldsUntilReturn: whatever is cancelled, the lock is renewed until the function has returned.
func TestF12DoHoldsUntilReturn(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	const ttl = 3 * time.Second
	l := clientLocker(t, srv, etcdlock.WithTTL(ttl))
	cause := errors.New("shutting down")
	ctx, cancel := context.WithCancelCause(testContext(t))
	var fctx context.Context
	err := l.Do(ctx, "x", func(inner context.Context, k *etcdlock.Lock) error {
		fctx = inner
		cancel(cause)
		receive(t, "end of the function's context", inner.Done())
		if got := context.Cause(inner); got != cause {
			t.Errorf("the function's context ended with %v", got)
		}
		pass(ttl + time.Second)
		live(t, k)
		kvs := keys(t, srv, "/revfence/x/").Kvs
		if len(kvs) != 1 || kvs[0].CreateRevision != int64(k.Token()) {
			t.Errorf("keys %v, token %d", kvs, k.Token())
		}
		return nil
	})
	if err != nil {
		t.Errorf("Do: %v", err)
	}
	if fctx.Err() == nil {
		t.Error("the function's context outlived Do")
	}
	if left := keys(t, srv, "/revfence/x/").Kvs; len(left) != 0 {
		t.Errorf("not released at once: %v", left)
	}
}

// TestF12DoStepsDown: two candidates whose functions go on for longer than the TTL after they were told to stop. The
// second begins when the first has returned, and not before.
func TestF12DoStepsDown(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	srv := startClean(t, soon)
	candidates := []*etcdlock.Locker{clientLocker(t, srv, etcdlock.WithTTL(ttl)), clientLocker(t, srv, etcdlock.WithTTL(ttl))}
	var inside atomic.Int32
	begun := make(chan fencing.Token, 2)
	run := func(ctx context.Context, l *etcdlock.Locker) <-chan error {
		done := make(chan error, 1)
		go func() {
			done <- l.Do(ctx, "leader", func(fctx context.Context, k *etcdlock.Lock) error {
				if n := inside.Add(1); n != 1 {
					t.Errorf("%d are inside", n)
				}
				defer inside.Add(-1)
				begun <- k.Token()
				<-fctx.Done()
				pass(ttl + 500*time.Millisecond)
				if err := k.Check(testContext(t)); err != nil || k.Context().Err() != nil {
					t.Errorf("at the end: Check %v, context %v", err, context.Cause(k.Context()))
				}
				return nil
			})
		}()
		return done
	}
	first, stopFirst := context.WithCancel(testContext(t))
	second, stopSecond := context.WithCancel(testContext(t))
	defer stopSecond()
	firstDone := run(first, candidates[0])
	token := receive(t, "begin of the first", begun)
	secondDone := run(second, candidates[1])
	awaitKeys(t, srv, "/revfence/leader/", 2)
	stopFirst()
	if err := receive(t, "end of the first", firstDone); err != nil {
		t.Errorf("first Do: %v", err)
	}
	if next := receive(t, "begin of the second", begun); next <= token {
		t.Errorf("token %d after %d", next, token)
	}
	stopSecond()
	if err := receive(t, "end of the second", secondDone); err != nil {
		t.Errorf("second Do: %v", err)
	}
}

// TestF12LossToldOnce: and never to a candidate that was none.
func TestF12LossToldOnce(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	var seen, waiting events
	l, other := clientLocker(t, srv, etcdlock.WithObserver(&seen)), clientLocker(t, srv, etcdlock.WithObserver(&waiting))
	ctx, stop := context.WithCancel(testContext(t))
	var k *etcdlock.Lock
	err := l.Do(ctx, "leader", func(fctx context.Context, lock *etcdlock.Lock) error {
		k = lock
		ended := goLock(ctx, other, "leader")
		awaitKeys(t, srv, "/revfence/leader/", 2)
		stop()
		wantIs(t, "Lock of a candidate that gave up", receive(t, "Lock", ended).err, context.Canceled)
		if _, err := srv.Admin().Revoke(testContext(t), leaseOf(t, srv, k)); err != nil {
			t.Error(err)
		}
		lost := lostTo(t, k)
		remove(t, srv, k.Key())
		if err := k.Check(testContext(t)); err != error(lost) {
			t.Errorf("Check: %v, want %v", err, lost)
		}
		return nil
	})
	wantIs(t, "Do", err, context.Cause(k.Context()))
	wantLost(t, k, etcdlock.ReasonKeyGone, etcdlock.ReasonLeaseGone)
	if err := l.Close(testContext(t)); err != nil { // waits for the observer
		t.Error(err)
	}
	for what, c := range map[string]struct {
		seen *events
		want []etcdlock.EventKind
	}{
		"leader":    {&seen, []etcdlock.EventKind{etcdlock.EventAcquired, etcdlock.EventLost}},
		"candidate": {&waiting, []etcdlock.EventKind{etcdlock.EventFailed}},
	} {
		var kinds []etcdlock.EventKind
		for _, e := range c.seen.all() {
			kinds = append(kinds, e.Kind)
		}
		if !slices.Equal(kinds, c.want) {
			t.Errorf("%s: events %v, want %v", what, kinds, c.want)
		}
	}
}

// TestF45DoReleasesAfterPanic: and the panic goes through; likewise runtime.Goexit.
func TestF45DoReleasesAfterPanic(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	l := clientLocker(t, srv)
	ctx := testContext(t)
	func() {
		defer func() {
			if r := recover(); r != "boo" {
				t.Errorf("recovered %v", r)
			}
		}()
		_ = l.Do(ctx, "x", func(context.Context, *etcdlock.Lock) error { panic("boo") })
		t.Error("Do returned")
	}()
	if left := keys(t, srv, "/revfence/x/").Kvs; len(left) != 0 {
		t.Errorf("after a panic: not released: %v", left)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = l.Do(ctx, "x", func(context.Context, *etcdlock.Lock) error { runtime.Goexit(); return nil })
		t.Error("Do returned")
	}()
	receive(t, "end of the goroutine", ended)
	if left := keys(t, srv, "/revfence/x/").Kvs; len(left) != 0 {
		t.Errorf("after Goexit: not released: %v", left)
	}
	mustUnlock(t, mustLock(t, l, "x")) // the turn is free as well
}

// TestDoReportsLoss: also when the function noticed nothing.
func TestDoReportsLoss(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	l := clientLocker(t, srv)
	ctx := testContext(t)
	failure := errors.New("failure")
	for what, c := range map[string]struct {
		fn    func(ctx context.Context, k *etcdlock.Lock) error
		wants []error
	}{
		"nil, before it is known": {func(context.Context, *etcdlock.Lock) error { return nil }, nil},
		"nil, after it is known":  {func(ctx context.Context, k *etcdlock.Lock) error { _ = k.Check(ctx); return nil }, nil},
		"an error":                {func(context.Context, *etcdlock.Lock) error { return failure }, []error{failure}},
	} {
		var token fencing.Token
		err := l.Do(ctx, "x", func(ctx context.Context, k *etcdlock.Lock) error {
			token = k.Token()
			remove(t, srv, k.Key())
			return c.fn(ctx, k)
		})
		wantIs(t, what, err, append(c.wants, etcdlock.ErrLost)...)
		var lost *etcdlock.LostError
		if !errors.As(err, &lost) || lost.Token != token || lost.Reason != etcdlock.ReasonKeyGone {
			t.Errorf("%s: %#v, want a *LostError of token %d", what, err, token)
		}
	}
	// The loss is not told twice.
	err := l.Do(ctx, "x", func(ctx context.Context, k *etcdlock.Lock) error {
		remove(t, srv, k.Key())
		return k.Check(ctx)
	})
	if _, ok := err.(*etcdlock.LostError); !ok {
		t.Errorf("Do = %#v, want the *LostError that the function returned", err)
	}
}

// TestDoReportsUnknownRelease: with the function's own error.
func TestDoReportsUnknownRelease(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	var faults faultkit.Calls
	l := newLocker(t, srv.Client(t, etcdtest.Unary(faults.Unary)), etcdlock.WithTTL(2*time.Second))
	failure := errors.New("failure")
	ctx, cancel := context.WithCancel(testContext(t))
	fault := faults.Fail(deletes, 1000, status.Error(codes.Unavailable, "no etcd"))
	err := l.Do(ctx, "x", func(context.Context, *etcdlock.Lock) error { cancel(); return failure })
	fault.Disarm()
	wantIs(t, "Do", err, failure, etcdlock.ErrUnknown)
}

// TestF45MaxHold: a function that hangs loses the lock, and others get it within the TTL, but not at once.
func TestF45MaxHold(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	const ttl = 2 * time.Second
	l, other := clientLocker(t, srv, etcdlock.WithTTL(ttl)), clientLocker(t, srv, etcdlock.WithTTL(ttl))
	ctx := testContext(t)
	err := l.Do(ctx, "x", func(fctx context.Context, k *etcdlock.Lock) error {
		lost := lostTo(t, k)
		from := time.Now()
		if lost.Reason != etcdlock.ReasonMaxHold {
			t.Errorf("lost: %v", lost)
		}
		if context.Cause(fctx) != lost {
			t.Errorf("the function's context ended with %v", context.Cause(fctx))
		}
		// The work may still run: the name is not handed over at the moment of the loss.
		if _, err := other.TryLock(ctx, "x"); !errors.Is(err, etcdlock.ErrLocked) {
			t.Errorf("TryLock right after the loss: %v", err)
		}
		next := granted(t, goLock(ctx, other, "x")) // while the function still hangs
		if took := time.Since(from); took > ttl+expiryLimit {
			t.Errorf("free %v after the loss, with a TTL of %v", took, ttl)
		}
		if next.Token() <= k.Token() {
			t.Errorf("token %d after %d", next.Token(), k.Token())
		}
		mustUnlock(t, next)
		return nil
	}, etcdlock.WithMaxHold(200*time.Millisecond))
	wantIs(t, "Do", err, etcdlock.ErrLost)

	// A function that ends in time is not affected.
	err = l.Do(ctx, "x", func(context.Context, *etcdlock.Lock) error { return nil }, etcdlock.WithMaxHold(testLimit))
	if err != nil {
		t.Errorf("Do: %v", err)
	}
}

// TestMaxHoldOnSharedLease: the other locks of the lease live on, and neither they nor their release hand the name of
// the lost one over before its TTL has passed.
func TestMaxHoldOnSharedLease(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	const ttl = 3 * time.Second
	l, other := clientLocker(t, srv, etcdlock.WithTTL(ttl), etcdlock.WithSharedLeases(10)), clientLocker(t, srv)
	ctx := testContext(t)

	neighbour := mustLock(t, l, "neighbour")
	k := mustLock(t, l, "x", etcdlock.WithMaxHold(100*time.Millisecond))
	if n := leaseCount(t, srv); n != 1 {
		t.Fatalf("%d leases for two locks", n)
	}
	lostTo(t, k)
	from := time.Now()
	next := granted(t, goLock(ctx, other, "x"))
	if took := time.Since(from); took < ttl/2 {
		t.Errorf("free %v after a loss whose work may still run, at a TTL of %v", took, ttl)
	}
	live(t, neighbour)
	if err := neighbour.Check(ctx); err != nil {
		t.Errorf("the neighbour: %v", err)
	}
	mustUnlock(t, next)
	mustUnlock(t, neighbour)

	neighbour = mustLock(t, l, "neighbour")
	k = mustLock(t, l, "x", etcdlock.WithMaxHold(100*time.Millisecond))
	lostTo(t, k)
	from = time.Now()
	mustUnlock(t, neighbour) // the last one on the lease
	next = granted(t, goLock(ctx, other, "x"))
	if took := time.Since(from); took < ttl/2 {
		t.Errorf("free %v after a loss whose work may still run, since its neighbour was unlocked; the TTL is %v", took, ttl)
	}
	mustUnlock(t, next)
}
