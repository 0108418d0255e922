package etcdlock_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/etcdtest"
)

// TestTryLockTaken: on a taken name TryLock says who has it, reads once, and writes nothing.
func TestTryLockTaken(t *testing.T) {
	const tries = 50
	srv := startClean(t, soon)
	ctx := testContext(t)
	var calls etcdtest.Counter
	holder := newLocker(t, srv.Client(t, etcdtest.Counted(&calls)), etcdlock.WithIdentity("holder"))
	other := newLocker(t, srv.Client(t, etcdtest.Counted(&calls)), etcdlock.WithIdentity("other"))
	k := mustLock(t, holder, "x")

	for what, l := range map[string]*etcdlock.Locker{"other process": other, "same process": holder} {
		revision, before, leases := srv.Revision(t), calls.Snapshot(), leaseCount(t, srv)
		for range tries {
			got, err := l.TryLock(ctx, "x")
			var locked *etcdlock.LockedError
			if got != nil || !errors.Is(err, etcdlock.ErrLocked) || !errors.As(err, &locked) {
				t.Fatalf("%s: TryLock = %v, %v", what, got, err)
			}
			if locked.Name != "x" || locked.Holder != "holder" || locked.Key != k.Key() {
				t.Fatalf("%s: %+v, want holder %q at %s", what, locked, "holder", k.Key())
			}
		}
		if now := srv.Revision(t); now != revision {
			t.Errorf("%s: revision went from %d to %d", what, revision, now)
		}
		if got := calls.Snapshot().Sub(before); got.Unary[etcdtest.Range] != tries || got.Calls() != tries {
			t.Errorf("%s: %d tries took %v, want one Range each", what, tries, got)
		}
		if n := leaseCount(t, srv); n != leases {
			t.Errorf("%s: %d leases, %d before", what, n, leases)
		}
	}
	// Nobody waits behind the holder: neither in etcd nor in the process.
	if n := len(keys(t, srv, "/revfence/x/").Kvs); n != 1 {
		t.Errorf("%d keys in the queue", n)
	}
	mustUnlock(t, k)
	for what, l := range map[string]*etcdlock.Locker{"other process": other, "same process": holder} {
		k, err := l.TryLock(ctx, "x")
		if err != nil {
			t.Fatalf("%s: TryLock of a free name: %v", what, err)
		}
		if err := k.Check(ctx); err != nil {
			t.Errorf("%s: Check: %v", what, err)
		}
		mustUnlock(t, k)
	}
}

// TestTryLockBehindWaiter: a name that is taken only by a waiter of the own process is taken.
func TestTryLockBehindWaiter(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	ctx := testContext(t)
	holder, l := clientLocker(t, srv, etcdlock.WithIdentity("holder")), clientLocker(t, srv)
	k := mustLock(t, holder, "x")
	next := goLock(ctx, l, "x")
	awaitKeys(t, srv, "/revfence/x/", 2)
	_, err := l.TryLock(ctx, "x")
	var locked *etcdlock.LockedError
	if !errors.As(err, &locked) || locked.Holder != "holder" || locked.Key != k.Key() {
		t.Errorf("TryLock: %#v, want the holder in the other process", err)
	}
	mustUnlock(t, k)
	mustUnlock(t, granted(t, next))
}

// TestTryLockRace: of many at the same moment at most one gets the lock, and no loser is left waiting.
func TestTryLockRace(t *testing.T) {
	srv := startClean(t, soon)
	ctx := testContext(t)
	lockers := []*etcdlock.Locker{clientLocker(t, srv), clientLocker(t, srv), clientLocker(t, srv)}
	for round := range 10 {
		start := make(chan struct{})
		won := make(chan *etcdlock.Lock, 50)
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				<-start
				k, err := lockers[i%3].TryLock(ctx, "x")
				switch {
				case err == nil:
					won <- k
				case !errors.Is(err, etcdlock.ErrLocked):
					t.Errorf("TryLock: %v", err)
				}
			})
		}
		close(start)
		wg.Wait()
		close(won)
		if len(won) > 1 {
			t.Fatalf("round %d: %d have the lock", round, len(won))
		}
		if len(won) == 0 {
			t.Errorf("round %d: nobody has the lock of a free name", round)
		}
		for k := range won {
			if n := len(keys(t, srv, "/revfence/x/").Kvs); n != 1 {
				t.Errorf("round %d: %d keys in the queue", round, n)
			}
			mustUnlock(t, k)
		}
	}
}
