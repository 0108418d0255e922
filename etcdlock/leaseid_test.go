package etcdlock_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"google.golang.org/grpc"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/etcdtest"
)

// leaseName returns the part of a lock's key that names its lease.
func leaseName(k *etcdlock.Lock) string { return k.Key()[strings.LastIndex(k.Key(), "/")+1:] }

// TestF15LeasesNotShared: who owns a key in the queue is told by its lease alone, so no two Lockers are ever on one, also
// not on one client, where etcd's own sessions could be.
func TestF15LeasesNotShared(t *testing.T) {
	t.Parallel()
	const goroutines, cycles = 8, 10
	srv := startClean(t, soon)
	c := srv.Client(t)
	lockers := []*etcdlock.Locker{newLocker(t, c), newLocker(t, c), newLocker(t, c, etcdlock.WithSharedLeases(4)), clientLocker(t, srv)}
	var mu sync.Mutex
	used := map[string]int{}
	var wg sync.WaitGroup
	for i, l := range lockers {
		for g := range goroutines {
			wg.Go(func() {
				for n := range cycles {
					name := fmt.Sprintf("own-%d-%d", i, g)
					if n%2 == 0 {
						name = fmt.Sprint("common-", g%2)
					}
					k, err := l.Lock(testContext(t), name)
					if err != nil {
						t.Errorf("Lock: %v", err)
						return
					}
					id := leaseName(k)
					mu.Lock()
					if before, ok := used[id]; ok && before != i {
						t.Errorf("lease %s is used by Lockers %d and %d", id, before, i)
					}
					used[id] = i
					mu.Unlock()
					mustUnlock(t, k)
				}
			})
		}
	}
	wg.Wait()
	if len(used) < len(lockers) {
		t.Errorf("%d leases for %d Lockers", len(used), len(lockers))
	}
}

// TestF15LeaseIDTaken: a lease of the id that was chosen exists already. It is somebody else's, who would hold the same
// key, and so it is not taken over. (After a lost reply it is the Locker's own: TestF22GrantReplyLost.)
func TestF15LeaseIDTaken(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	ctx := testContext(t)
	var theirs atomic.Int64
	first := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if r, ok := req.(*pb.LeaseGrantRequest); ok && theirs.CompareAndSwap(0, r.ID) {
			if _, err := pb.NewLeaseClient(srv.Admin().ActiveConnection()).LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: r.ID, TTL: 60}); err != nil {
				t.Errorf("grant before: %v", err)
			}
		}
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	l := newLocker(t, srv.Client(t, etcdtest.Unary(first)))
	k := mustLock(t, l, "x")
	id := clientv3.LeaseID(theirs.Load())
	if got := leaseOf(t, srv, k); got == id || id == 0 {
		t.Errorf("the lock is on lease %x, another's is %x", got, id)
	}
	mustUnlock(t, k)
	if err := l.Close(ctx); err != nil {
		t.Errorf("Close: %v", err)
	}
	resp, err := srv.Admin().TimeToLive(ctx, id, clientv3.WithAttachedKeys())
	if err != nil || resp.TTL <= 0 || len(resp.Keys) != 0 {
		t.Errorf("the other's lease: %+v, %v", resp, err)
	}
	if _, err := srv.Admin().Revoke(ctx, id); err != nil {
		t.Error(err)
	}
}

// TestF15KeyOfAnotherOnOurLease: somebody else has made the key on the Locker's idle lease. It is not taken for the
// Locker's own, or both would hold with one token.
func TestF15KeyOfAnotherOnOurLease(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	ctx := testContext(t)
	l := clientLocker(t, srv, etcdlock.WithTTL(3*time.Second))
	warm := mustLock(t, l, "warm")
	id := leaseOf(t, srv, warm)
	mustUnlock(t, warm)
	s, err := concurrency.NewSession(srv.Client(t), concurrency.WithLease(id))
	if err != nil {
		t.Fatal(err)
	}
	if err := concurrency.NewMutex(s, "/revfence/x").Lock(ctx); err != nil {
		t.Fatal(err)
	}
	theirs := keys(t, srv, "/revfence/x/").Kvs[0]

	_, err = l.TryLock(ctx, "x")
	wantIs(t, "TryLock", err, etcdlock.ErrLocked)
	k := mustLock(t, l, "x") // the lease is the Locker's to revoke
	if int64(k.Token()) <= theirs.CreateRevision || k.Key() == string(theirs.Key) {
		_ = k.Unlock(ctx)
		t.Fatalf("key %s, token %d: the other's is %s, %d", k.Key(), k.Token(), theirs.Key, theirs.CreateRevision)
	}
	receive(t, "end of the session on the revoked lease", s.Done())
	mustUnlock(t, k)
}

// TestF15StockSessionOnOurLease: etcd's own session can be made on any lease, and a stock mutex on it takes the holder's
// key for its own. Nothing on the holder's side prevents that. What it does to the key or the lease later is told.
func TestF15StockSessionOnOurLease(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	ctx := testContext(t)
	l := clientLocker(t, srv)
	intrude := func(k *etcdlock.Lock) (*concurrency.Session, *concurrency.Mutex) {
		s, err := concurrency.NewSession(srv.Client(t), concurrency.WithLease(leaseOf(t, srv, k)))
		if err != nil {
			t.Fatal(err)
		}
		m := concurrency.NewMutex(s, "/revfence/x")
		if err := m.Lock(ctx); err != nil || m.Key() != k.Key() {
			t.Fatalf("stock mutex on the lease: %v, key %s; the lock's is %s", err, m.Key(), k.Key())
		}
		if err := k.Check(ctx); err != nil {
			t.Errorf("Check while both believe that they hold: %v", err)
		}
		return s, m
	}

	k := mustLock(t, l, "x")
	s, m := intrude(k)
	if err := m.Unlock(ctx); err != nil {
		t.Errorf("stock Unlock: %v", err)
	}
	wantLost(t, k, etcdlock.ReasonKeyGone)
	s.Orphan()

	k = mustLock(t, l, "x")
	s, _ = intrude(k)
	if err := s.Close(); err != nil { // revokes the lease
		t.Errorf("stock session: %v", err)
	}
	wantLost(t, k, etcdlock.ReasonKeyGone, etcdlock.ReasonLeaseGone)

	// A Locker is on leases of its own, and stands behind the intruder's key like behind any other.
	s, err := concurrency.NewSession(srv.Client(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := concurrency.NewMutex(s, "/revfence/x").Lock(ctx); err != nil {
		t.Fatal(err)
	}
	_, err = l.TryLock(ctx, "x")
	wantIs(t, "TryLock behind a stock mutex", err, etcdlock.ErrLocked)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
