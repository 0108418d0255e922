package etcdlock_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/etcdtest"
)

// TestF33OneDenied: a lease that may no longer be renewed ends the stream on which the others are renewed, and nothing else.
func TestF33OneDenied(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	srv, root := secured(t, ttl+soon)
	ctx := testContext(t)
	const good, goodEnd = "/revfence/good/", "/revfence/good0"
	for _, step := range []func() error{
		func() error { _, err := root.RoleAdd(ctx, "good"); return err },
		func() error {
			_, err := root.RoleGrantPermission(ctx, "good", good, goodEnd, clientv3.PermissionType(clientv3.PermReadWrite))
			return err
		},
		func() error { _, err := root.UserGrantRole(ctx, "svc", "good"); return err },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	var watches standing
	l := newLocker(t, srv.Client(t, etcdtest.AsUser("svc", "password"), etcdtest.Stream(watches.stream)), etcdlock.WithTTL(ttl))
	var denied []*etcdlock.Lock
	for i := range 3 {
		denied = append(denied, mustLock(t, l, fmt.Sprint("denied", i)))
	}
	k := mustLock(t, l, "good")
	// Until a watch stands its key is read, and the loss would not come from the renewal.
	eventually(t, "all keys watched", func() bool { return watches.count() == 1+len(denied) })
	if _, err := root.UserRevokeRole(ctx, "svc", "locker"); err != nil {
		t.Fatal(err)
	}
	for _, d := range denied {
		if lost := lostTo(t, d); lost.Reason != etcdlock.ReasonDenied {
			t.Errorf("lost: %v", lost)
		}
		mustLostUnlock(t, d)
	}
	kept(t, k, ttl, "others were denied their renewal")
	if err := k.Check(ctx); err != nil {
		t.Errorf("Check: %v", err)
	}
	mustUnlock(t, k)
	mustUnlock(t, mustLock(t, l, "good"))
}

// TestF33ManyExpired: more leases expire than etcd revokes in the time, among them some of locks that the same Locker has
// given up. etcd does not answer the renewal of such a lease, nor any other that comes after it on the same stream, before
// it has come to revoke it.
func TestF33ManyExpired(t *testing.T) {
	const crowd, crowdTTL, ttl = 20_000 / min(slowness, 3), 5 * time.Second, 3 * time.Second
	srv := etcdtest.Start(t) // which is still busy with the crowd at the end
	ctx := testContext(t)
	l := clientLocker(t, srv, etcdlock.WithTTL(ttl))
	stock := srv.Client(t)
	last := grantMany(t, srv, crowd, crowdTTL)
	granted := time.Now()
	session, err := concurrency.NewSession(stock, concurrency.WithTTL(int(ttl/time.Second)))
	if err != nil {
		t.Fatal(err)
	}
	defer session.Orphan()
	k := mustLock(t, l, "healthy")
	for i := range 10 {
		given := mustLock(t, l, fmt.Sprint(i), etcdlock.WithMaxHold(100*time.Millisecond))
		if lost := lostTo(t, given); lost.Reason != etcdlock.ReasonMaxHold {
			t.Errorf("lost: %v", lost)
		}
	}
	pass(time.Until(granted.Add(crowdTTL + 500*time.Millisecond)))
	if resp, err := srv.Admin().TimeToLive(ctx, last); err != nil || resp.GrantedTTL == 0 {
		t.Fatalf("the last of the crowd: %+v, %v; want it expired and not yet revoked", resp, err)
	}
	// That the trouble is real: etcd's own session dies of it, on a client that renews one of them.
	if _, err := stock.KeepAlive(ctx, last); err != nil {
		t.Fatal(err)
	}
	receive(t, "end of a stock session", session.Done())
	t.Logf("the last of %d leases was granted %v ago", crowd, time.Since(granted))
	kept(t, k, ttl, "other leases expired")
	if err := k.Check(ctx); err != nil {
		t.Errorf("Check: %v", err)
	}
	mustUnlock(t, k)
}

// grantMany grants n leases that nobody renews, and returns the youngest.
func grantMany(t testing.TB, srv *etcdtest.Server, n int, ttl time.Duration) clientv3.LeaseID {
	t.Helper()
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			for range n / 100 {
				if _, err := srv.Admin().Grant(ctx, int64(ttl/time.Second)); err != nil {
					t.Errorf("grant: %v", err)
					cancel()
					return
				}
			}
		})
	}
	wg.Wait()
	last, err := srv.Admin().Grant(ctx, int64(ttl/time.Second))
	if err != nil {
		t.Fatal(err)
	}
	return last.ID
}
