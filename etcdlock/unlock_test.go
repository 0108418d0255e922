package etcdlock_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/fencing"
	"github.com/revfence/revfence/internal/etcdtest"
	"github.com/revfence/revfence/internal/faultkit"
)

// TestUnlockTwice: every call says the same, and only one asks etcd.
func TestUnlockTwice(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	var calls etcdtest.Counter
	l := newLocker(t, srv.Client(t, etcdtest.Counted(&calls)))
	k := mustLock(t, l, "x")
	versionsAsked(t, &calls)
	before := calls.Snapshot()
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() { mustUnlock(t, k) })
	}
	wg.Wait()
	mustUnlock(t, k)
	if got := calls.Snapshot().Sub(before); got.Unary[etcdtest.Txn] != 1 || got.Calls() != 1 {
		t.Errorf("etcd was asked: %v", got)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := k.Unlock(ended); err != nil {
		t.Errorf("Unlock of a released lock under a context that has ended: %v", err)
	}
	ctx := testContext(t)
	wantIs(t, "Check", k.Check(ctx), etcdlock.ErrReleased)
	if err := k.Check(ctx); errors.Is(err, etcdlock.ErrLost) {
		t.Errorf("Check of a released lock: %v", err)
	}
	if cause := context.Cause(k.Context()); cause != etcdlock.ErrReleased {
		t.Errorf("the lock's context ended with %v", cause)
	}
}

// TestF06UnlockOfAnOlderHold: it never touches the next one, though that has the same key.
func TestF06UnlockOfAnOlderHold(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	l := clientLocker(t, srv)
	old := mustLock(t, l, "x")
	mustUnlock(t, old)
	k := mustLock(t, l, "x")
	if k.Key() != old.Key() {
		t.Fatalf("keys %s and %s: the session was not used again, so this shows nothing", old.Key(), k.Key())
	}
	mustUnlock(t, old)
	if err := k.Check(testContext(t)); err != nil {
		t.Errorf("Check: %v", err)
	}
	mustUnlock(t, k)
}

// TestF06UnlockRepeated: every deletion is committed, and every answer to it lost, until Unlock gives up. Whoever gets
// the lock next keeps it, whatever becomes of the old one's Unlock after that.
func TestF06UnlockRepeated(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	l, faults := faulty(t, srv)
	other := clientLocker(t, srv)
	var last fencing.Token
	for what, next := range map[string]*etcdlock.Locker{"the same Locker": l, "another Locker": other} {
		old := mustLock(t, l, "x")
		fault := faults.Lost(deletes, 1000, errLostReply)
		revokes := faults.Fail(faultkit.Method("LeaseRevoke"), 1000, errLostReply) // which would delete the key as well
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		unknown := old.Unlock(ctx)
		cancel()
		if fault.Hits() < 2 {
			t.Errorf("%d answers lost", fault.Hits())
		}
		wantIs(t, "Unlock", unknown, etcdlock.ErrUnknown)
		if errors.Is(unknown, etcdlock.ErrLost) {
			t.Errorf("Unlock of a lock that was not lost: %v", unknown)
		}

		k := mustLock(t, next, "x")
		if k.Key() == old.Key() || k.Token() <= old.Token() || k.Token() <= last {
			t.Errorf("key %s, token %d after %s, %d and %d", k.Key(), k.Token(), old.Key(), old.Token(), last)
		}
		last = k.Token()
		fault.Disarm()
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				if err := old.Unlock(testContext(t)); err != unknown {
					t.Errorf("Unlock again: %v, want the same as before, %v", err, unknown)
				}
			})
		}
		wg.Wait()
		if err := k.Check(testContext(t)); err != nil {
			t.Errorf("%s: Check: %v", what, err)
		}
		if kv := keys(t, srv, k.Key()).Kvs; len(kv) != 1 || kv[0].CreateRevision != int64(k.Token()) {
			t.Errorf("%s: keys %v, token %d", what, kv, k.Token())
		}
		revokes.Disarm()
		mustUnlock(t, k)
	}
}

// TestF20UnlockAfterCancel: a service that shuts down has usually cancelled everything by the time it unlocks.
func TestF20UnlockAfterCancel(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	l := clientLocker(t, srv)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	k := mustLock(t, l, "x")
	if err := k.Unlock(ended); err != nil {
		t.Errorf("Unlock under a context that has ended: %v", err)
	}
	if left := keys(t, srv, "/revfence/x/").Kvs; len(left) != 0 {
		t.Errorf("not released: %v", left)
	}
	mustUnlock(t, mustLock(t, l, "x"))
	if n := leaseCount(t, srv); n != 1 {
		t.Errorf("%d leases: a confirmed release lets its session be used again", n)
	}
}

// TestUnlockUnderWay: a call whose context ends while another releases says that the outcome is not known yet.
func TestUnlockUnderWay(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	var faults faultkit.Calls
	l := newLocker(t, srv.Client(t, etcdtest.Unary(faults.Unary)))
	k := mustLock(t, l, "x")
	begun, let := make(chan struct{}), make(chan struct{})
	faults.Lost(deletes, 1, nil, func() { close(begun); <-let })
	first := make(chan error, 1)
	go func() { first <- k.Unlock(testContext(t)) }()
	receive(t, "begin of the release", begun)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	wantIs(t, "second Unlock", k.Unlock(ended), etcdlock.ErrUnknown, context.Canceled)
	wantIs(t, "Check", k.Check(testContext(t)), etcdlock.ErrReleased)
	close(let)
	if err := receive(t, "first Unlock", first); err != nil {
		t.Errorf("first Unlock: %v", err)
	}
	mustUnlock(t, k)
}

// TestUnlockUnreachable: it is given up soon after its context has ended, says that it does not know, and the lease is
// no longer renewed.
func TestUnlockUnreachable(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	srv := startClean(t, ttl)
	stalls := etcdtest.Stalls(t)
	proxy := faultkit.NewProxy(t, srv.Endpoint())
	l := newLocker(t, srv.Client(t, etcdtest.Via(proxy.Addr())), etcdlock.WithTTL(ttl))
	k := mustLock(t, l, "x")
	proxy.BlackHole()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	end, _ := ctx.Deadline()
	err := k.Unlock(ctx)
	now := time.Now()
	wantIs(t, "Unlock", err, etcdlock.ErrUnknown)
	if errors.Is(err, etcdlock.ErrLost) {
		t.Errorf("%v also says that the lock was lost", err)
	}
	stalls.Judge(t, "Unlock after its context's end", []etcdtest.Sample{{From: end, To: now, Value: now.Sub(end)}}, 1, time.Second+300*time.Millisecond)
	if again := k.Unlock(testContext(t)); again != err {
		t.Errorf("second Unlock: %v, want the same", again)
	}
	if cause := context.Cause(k.Context()); cause != etcdlock.ErrReleased {
		t.Errorf("the lock's context ended with %v", cause)
	}
	proxy.Heal() // no renewal may come after this either
	eventuallyWithin(t, "the key is gone", ttl+time.Second, func() bool { return len(keys(t, srv, "/revfence/x/").Kvs) == 0 })
	mustUnlock(t, mustLock(t, l, "x"))
}

// TestUnlockWithoutEnd: a context without an end does not make Unlock hang: when the TTL has passed the lock is free in
// any case.
func TestUnlockWithoutEnd(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	srv := startClean(t, ttl+soon)
	stalls := etcdtest.Stalls(t)
	var faults faultkit.Calls
	l := newLocker(t, srv.Client(t, etcdtest.Unary(faults.Unary)), etcdlock.WithTTL(ttl))
	k := mustLock(t, l, "x")
	down := faults.Fail(faultkit.Method(""), 1_000_000, status.Error(codes.Unavailable, "no etcd"))
	from := time.Now()
	err := k.Unlock(context.Background())
	to := time.Now()
	down.Disarm()
	wantIs(t, "Unlock", err, etcdlock.ErrUnknown)
	wantText(t, "Unlock", err, "no etcd")
	stalls.Judge(t, "Unlock without an end", []etcdtest.Sample{{From: from, To: to, Value: to.Sub(from)}}, 1, ttl+500*time.Millisecond)
}

// TestF06UnlockLeavesAnothersKey: the key was deleted and made again by somebody else, before its watch stood. The name of
// a key says nothing about whose it is.
func TestF06UnlockLeavesAnothersKey(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	l := clientLocker(t, srv)
	k := mustLock(t, l, "x")
	remove(t, srv, k.Key())
	put(t, srv, k.Key(), "another's")
	wantIs(t, "Unlock", k.Unlock(testContext(t)), etcdlock.ErrLost)
	if n := len(keys(t, srv, k.Key()).Kvs); n != 1 {
		t.Errorf("%d keys left of another's one", n)
	}
	remove(t, srv, k.Key())
}
