package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/etcdtest"
)

// watchedFrom is the age from which on a hold's key is watched.
const watchedFrom = 1100 * time.Millisecond

// TestF05LossToldAtOnce: what an operator does to a lock's key or lease reaches its holder within 50 ms, whatever the TTL,
// once the hold is old enough to be watched.
func TestF05LossToldAtOnce(t *testing.T) {
	const locks = 100
	for _, c := range []struct {
		what    string
		harm    func(ctx context.Context, admin *clientv3.Client, key string, lease clientv3.LeaseID) error
		reasons []etcdlock.Reason
		foreign bool // what is left in the key's place blocks the name
	}{
		{"key deleted", func(ctx context.Context, admin *clientv3.Client, key string, _ clientv3.LeaseID) error {
			_, err := admin.Delete(ctx, key)
			return err
		}, []etcdlock.Reason{etcdlock.ReasonKeyGone}, false},
		{"lease revoked", func(ctx context.Context, admin *clientv3.Client, _ string, lease clientv3.LeaseID) error {
			_, err := admin.Revoke(ctx, lease)
			return err
		}, []etcdlock.Reason{etcdlock.ReasonKeyGone, etcdlock.ReasonLeaseGone}, false},
		{"key overwritten", func(ctx context.Context, admin *clientv3.Client, key string, _ clientv3.LeaseID) error {
			_, err := admin.Put(ctx, key, "operator")
			return err
		}, []etcdlock.Reason{etcdlock.ReasonKeyGone}, true},
		{"key recreated", func(ctx context.Context, admin *clientv3.Client, key string, lease clientv3.LeaseID) error {
			if _, err := admin.Delete(ctx, key); err != nil {
				return err
			}
			_, err := admin.Put(ctx, key, "operator")
			return err
		}, []etcdlock.Reason{etcdlock.ReasonKeyGone}, true},
	} {
		t.Run(c.what, func(t *testing.T) {
			srv := startClean(t, soon)
			stalls := etcdtest.Stalls(t)
			var calls etcdtest.Counter
			l := newLocker(t, srv.Client(t, etcdtest.Counted(&calls)))
			ctx := testContext(t)
			held := lockAll(t, l, locks)
			// A request that is on its way will do: when the watch begins late, a read makes up for it.
			eventuallyWithin(t, "all keys watched", watchedFrom+soon, func() bool {
				return calls.Snapshot().Sent[etcdtest.Watch] >= locks
			})
			leases := map[string]clientv3.LeaseID{}
			for _, kv := range keys(t, srv, "/revfence/").Kvs {
				leases[string(kv.Key)] = clientv3.LeaseID(kv.Lease)
			}
			samples := make([]etcdtest.Sample, 0, locks)
			for i, k := range held {
				live(t, k)
				if i%10 == 0 {
					calm(stalls)
				}
				from := time.Now()
				if err := c.harm(ctx, srv.Admin(), k.Key(), leases[k.Key()]); err != nil {
					t.Fatal(err)
				}
				to := toldSoon(t, k)
				samples = append(samples, etcdtest.Sample{From: from, To: to, Value: to.Sub(from)})
			}
			stalls.Judge(t, "loss told", samples, 0.99, 50*time.Millisecond)
			for i, k := range held {
				wantLost(t, k, c.reasons...)
				if c.foreign {
					if i%20 == 0 {
						_, err := l.Lock(ctx, k.Name())
						wantIs(t, "Lock behind what the operator left", err, etcdlock.ErrForeignKey)
					}
					remove(t, srv, k.Key())
				}
				if i%20 == 0 {
					next := mustLock(t, l, k.Name())
					if next.Token() <= k.Token() {
						t.Errorf("token %d after %d", next.Token(), k.Token())
					}
					mustUnlock(t, next)
				}
			}
		})
	}
}

func lockName(i int) string { return fmt.Sprintf("name%d", i) }

// toldSoon waits for the end of a lock's context, and returns when it came.
func toldSoon(t testing.TB, k *etcdlock.Lock) time.Time {
	t.Helper()
	timer := time.NewTimer(soon)
	defer timer.Stop()
	select {
	case <-k.Context().Done():
		return time.Now()
	case <-timer.C:
		t.Fatalf("%q: not told within %v", k.Name(), soon)
		panic("unreachable")
	}
}

// lockAll takes n names at once. A test that fails need not unlock them.
func lockAll(t testing.TB, l *etcdlock.Locker, n int) []*etcdlock.Lock {
	t.Helper()
	ctx := testContext(t)
	held := make([]*etcdlock.Lock, n)
	t.Cleanup(func() {
		for _, k := range held {
			if k != nil && t.Failed() {
				_ = k.Unlock(testContext(t))
			}
		}
	})
	var wg sync.WaitGroup
	for i := range held {
		wg.Go(func() {
			k, err := l.Lock(ctx, lockName(i))
			if err != nil {
				t.Errorf("Lock: %v", err)
				return
			}
			held[i] = k
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return held
}

// wantLost checks that nothing a lost lock offers says "held", and that all say the same.
func wantLost(t testing.TB, k *etcdlock.Lock, reasons ...etcdlock.Reason) {
	t.Helper()
	ctx := testContext(t)
	lost := lostTo(t, k)
	known := false
	for _, r := range reasons {
		known = known || lost.Reason == r
	}
	if !known || lost.Name != k.Name() || lost.Token != k.Token() {
		t.Errorf("%q, token %d: lost with %+v, want one of the reasons %v", k.Name(), k.Token(), lost, reasons)
	}
	if !errors.Is(k.Context().Err(), context.Canceled) {
		t.Errorf("%q: context error %v", k.Name(), k.Context().Err())
	}
	if d := k.Remaining(); d != 0 {
		t.Errorf("%q: %v remaining", k.Name(), d)
	}
	_, txn := k.Txn(ctx).Then(clientv3.OpPut("written-by-former-holder", "")).Commit()
	for what, err := range map[string]error{"Check": k.Check(ctx), "Require": k.Require(0), "Txn": txn, "Unlock": k.Unlock(ctx), "second Unlock": k.Unlock(ctx)} {
		if err != error(lost) {
			t.Errorf("%q: %s: %v, want the cause of the context, %v", k.Name(), what, err, lost)
		}
	}
}

// TestLossOfYoungHold: a hold that is not watched yet learns of a deletion when its watch begins, or by asking.
func TestLossOfYoungHold(t *testing.T) {
	srv := startClean(t, soon)
	stalls := etcdtest.Stalls(t)
	l := clientLocker(t, srv)
	held := lockAll(t, l, 20)
	var samples []etcdtest.Sample
	from := time.Now()
	for i, k := range held {
		if i%2 == 0 {
			remove(t, srv, k.Key())
		} else if _, err := srv.Admin().Revoke(testContext(t), leaseOf(t, srv, k)); err != nil {
			t.Fatal(err)
		}
	}
	for _, k := range held {
		receive(t, "end of the lock's context", k.Context().Done())
		to := time.Now()
		samples = append(samples, etcdtest.Sample{From: from, To: to, Value: to.Sub(from)})
		wantLost(t, k, etcdlock.ReasonKeyGone, etcdlock.ReasonLeaseGone)
	}
	stalls.Judge(t, "loss told", samples, 1, watchedFrom+500*time.Millisecond)
}

// TestLossFreesTurn: the next in the process gets its turn when the lock is lost, also while the old holder's code still
// runs and has not unlocked.
func TestLossFreesTurn(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	l := clientLocker(t, srv)
	k := mustLock(t, l, "x")
	next := goLock(testContext(t), l, "x")
	eventually(t, "a waiter in the process", func() bool { return l.TurnsWaiting("x") == 1 })
	remove(t, srv, k.Key())
	second := granted(t, next)
	if second.Token() <= k.Token() {
		t.Errorf("token %d after %d", second.Token(), k.Token())
	}
	mustLostUnlock(t, k) // and does not touch its successor
	if err := second.Check(testContext(t)); err != nil {
		t.Errorf("Check: %v", err)
	}
	mustUnlock(t, second)
}

// TestUnlockFindsLoss: a short hold, that nothing has told of its loss, learns of it from Unlock.
func TestUnlockFindsLoss(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	l := clientLocker(t, srv)
	k := mustLock(t, l, "x")
	remove(t, srv, k.Key())
	err := k.Unlock(testContext(t))
	var lost *etcdlock.LostError
	if !errors.As(err, &lost) || lost.Reason != etcdlock.ReasonKeyGone || lost.Token != k.Token() || lost.Name != "x" {
		t.Errorf("Unlock: %#v", err)
	}
	if again := k.Unlock(testContext(t)); again != err {
		t.Errorf("second Unlock: %v", again)
	}
	mustUnlock(t, mustLock(t, l, "x"))
}

// TestCheckOnlyTells: Check under a context that has ended says nothing about the lock.
func TestCheckOnlyTells(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	k := mustLock(t, clientLocker(t, srv), "x")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	err := k.Check(ended)
	wantIs(t, "Check", err, context.Canceled)
	if errors.Is(err, etcdlock.ErrLost) {
		t.Errorf("Check: %v", err)
	}
	live(t, k)
	mustUnlock(t, k)
}
