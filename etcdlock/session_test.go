package etcdlock_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/etcdtest"
)

func leaseOf(t testing.TB, srv *etcdtest.Server, k *etcdlock.Lock) clientv3.LeaseID {
	t.Helper()
	kvs := keys(t, srv, k.Key()).Kvs
	if len(kvs) != 1 {
		t.Fatalf("keys of %q: %v", k.Name(), kvs)
	}
	return clientv3.LeaseID(kvs[0].Lease)
}

// TestSessionReused: an uncontended cycle costs two transactions and nothing else, on one lease.
func TestSessionReused(t *testing.T) {
	const cycles = 100
	srv := startClean(t, soon)
	var calls etcdtest.Counter
	l := newLocker(t, srv.Client(t, etcdtest.Counted(&calls)))
	mustUnlock(t, mustLock(t, l, "x"))
	versionsAsked(t, &calls)
	before := calls.Snapshot()
	for i := range cycles {
		mustUnlock(t, mustLock(t, l, fmt.Sprint(i%3)))
	}
	if got := calls.Snapshot().Sub(before); got.Unary[etcdtest.Txn] != 2*cycles || got.Calls() != 2*cycles {
		t.Errorf("%d cycles took %v", cycles, got)
	}
	if n := leaseCount(t, srv); n != 1 {
		t.Errorf("%d leases", n)
	}
}

// TestF46OwnLeases: one lock's trouble is not another's; and of many sessions only some are kept for reuse.
func TestF46OwnLeases(t *testing.T) {
	const locks, kept = 40, 16
	srv := startClean(t, soon)
	l := clientLocker(t, srv)
	held := make([]*etcdlock.Lock, locks)
	var wg sync.WaitGroup
	for i := range held {
		wg.Go(func() { held[i], _ = l.Lock(testContext(t), fmt.Sprint(i)) })
	}
	wg.Wait()
	seen := map[clientv3.LeaseID]bool{}
	for _, k := range held {
		if k == nil {
			t.Fatal("not all were acquired")
		}
		seen[leaseOf(t, srv, k)] = true
	}
	if len(seen) != locks || leaseCount(t, srv) != locks {
		t.Errorf("%d locks on %d leases, %d in etcd", locks, len(seen), leaseCount(t, srv))
	}
	if _, err := srv.Admin().Revoke(testContext(t), leaseOf(t, srv, held[0])); err != nil {
		t.Fatal(err)
	}
	lostTo(t, held[0])
	for _, k := range held[1:] {
		wg.Go(func() {
			if err := k.Check(testContext(t)); err != nil {
				t.Errorf("neighbour of a lost lock: %v", err)
			}
			mustUnlock(t, k)
		})
	}
	wg.Wait()
	eventually(t, "surplus leases revoked", func() bool { return leaseCount(t, srv) <= kept })
	if n := leaseCount(t, srv); n != kept {
		t.Errorf("%d idle leases kept, want %d", n, kept)
	}
}

// TestIdleLeasesRevoked: a lease that was not used for a TTL goes.
func TestIdleLeasesRevoked(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	srv := startClean(t, soon)
	l := clientLocker(t, srv, etcdlock.WithTTL(ttl))
	mustUnlock(t, mustLock(t, l, "x"))
	from := time.Now()
	eventuallyWithin(t, "the idle lease is revoked", 2*ttl+time.Second, func() bool { return leaseCount(t, srv) == 0 })
	if idle := time.Since(from); idle < ttl-100*time.Millisecond {
		t.Errorf("revoked after %v of idleness, with a TTL of %v", idle, ttl)
	}
	mustUnlock(t, mustLock(t, l, "x"))
}

// TestBusyLeaseRetired: however busy, a lease is not used for ever. One that came back with a restored backup must not
// be kept alive by a Locker that has been running all the time.
func TestBusyLeaseRetired(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	srv := startClean(t, soon)
	l := clientLocker(t, srv, etcdlock.WithTTL(ttl))
	k := mustLock(t, l, "x")
	first := leaseOf(t, srv, k)
	mustUnlock(t, k)
	from := time.Now()
	for id := first; id == first; {
		pass(ttl / 10) // well within the time after which it would be idle
		k := mustLock(t, l, "x")
		id = leaseOf(t, srv, k)
		mustUnlock(t, k)
		if age := time.Since(from); age > 10*ttl+2*time.Second {
			t.Fatalf("a lease of %v ago is still used, with a TTL of %v", age, ttl)
		}
	}
}

// TestF46SharedLeases: names share a lease and its fate; a name that is taken is no hindrance to others.
func TestF46SharedLeases(t *testing.T) {
	t.Parallel()
	const locks, share = 10, 4
	srv := startClean(t, soon)
	l := clientLocker(t, srv, etcdlock.WithSharedLeases(share))
	var held []*etcdlock.Lock
	on := map[clientv3.LeaseID][]*etcdlock.Lock{}
	for i := range locks {
		k := mustLock(t, l, fmt.Sprint(i))
		held = append(held, k)
		id := leaseOf(t, srv, k)
		on[id] = append(on[id], k)
	}
	if len(on) != 3 || leaseCount(t, srv) != 3 {
		t.Errorf("%d locks on %d leases, %d in etcd", locks, len(on), leaseCount(t, srv))
	}
	gone := leaseOf(t, srv, held[0])
	if _, err := srv.Admin().Revoke(testContext(t), gone); err != nil {
		t.Fatal(err)
	}
	if len(on[gone]) != share {
		t.Errorf("%d locks on the first lease", len(on[gone]))
	}
	for _, k := range on[gone] {
		if lost := lostTo(t, k); lost.Reason != etcdlock.ReasonLeaseGone && lost.Reason != etcdlock.ReasonKeyGone {
			t.Errorf("%q: %v", k.Name(), lost)
		}
	}
	for id, locks := range on {
		for _, k := range locks {
			if id != gone {
				if err := k.Check(testContext(t)); err != nil {
					t.Errorf("%q, on another lease: %v", k.Name(), err)
				}
				mustUnlock(t, k)
			}
		}
	}
}

// TestF01SharedLeaseSameName: two goroutines can never share a key, so the next holder of a name may use the lease again
// only when the first one's key is known to be gone.
func TestF01SharedLeaseSameName(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	l := clientLocker(t, srv, etcdlock.WithSharedLeases(4))
	ctx := testContext(t)
	neighbour := mustLock(t, l, "neighbour")
	var wg sync.WaitGroup
	var last int64
	var inside atomic.Int32
	var mu sync.Mutex
	for range 20 {
		wg.Go(func() {
			k, err := l.Lock(ctx, "x")
			if err != nil {
				t.Error(err)
				return
			}
			if n := inside.Add(1); n != 1 {
				t.Errorf("%d are inside", n)
			}
			mu.Lock()
			if int64(k.Token()) <= last {
				t.Errorf("token %d after %d", k.Token(), last)
			}
			last = int64(k.Token())
			mu.Unlock()
			pass(100 * time.Microsecond)
			inside.Add(-1)
			mustUnlock(t, k)
		})
	}
	wg.Wait()
	if n := leaseCount(t, srv); n != 1 {
		t.Errorf("%d leases", n)
	}
	mustUnlock(t, neighbour)
}

// TestF27RevokedPool: an operator has revoked the idle leases. Each costs the next
// acquisition one try, not a pause.
func TestF27RevokedPool(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	l := clientLocker(t, srv)
	var held []*etcdlock.Lock
	for i := range 16 {
		held = append(held, mustLock(t, l, fmt.Sprint(i)))
	}
	for _, k := range held {
		mustUnlock(t, k)
	}
	leases, err := srv.Admin().Leases(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	if len(leases.Leases) != 16 {
		t.Fatalf("%d idle leases", len(leases.Leases))
	}
	for _, s := range leases.Leases {
		if _, err := srv.Admin().Revoke(testContext(t), s.ID); err != nil {
			t.Fatal(err)
		}
	}
	asked := time.Now()
	mustUnlock(t, mustLock(t, l, "x"))
	if took := time.Since(asked); took > time.Second {
		t.Errorf("a cycle took %v", took)
	}
}
