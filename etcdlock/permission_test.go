package etcdlock_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/etcdtest"
)

// secured starts a server with authentication on, where the user svc may do everything below /revfence/. At the end,
// authentication is off again, and the server empty within a time: a lease that nobody may revoke needs its TTL.
func secured(t testing.TB, within time.Duration, opts ...etcdtest.Option) (srv *etcdtest.Server, root *clientv3.Client) {
	t.Helper()
	cheap := etcdtest.WithEmbedConfig(func(c *embed.Config) { c.BcryptCost = 4 }) // the least: passwords are not what is tested
	srv = startClean(t, within, append(opts, cheap)...)
	ctx := testContext(t)
	admin := srv.Admin()
	end := clientv3.GetPrefixRangeEnd("/revfence/")
	for _, step := range []func() error{
		func() error { _, err := admin.UserAdd(ctx, "root", "secret"); return err },
		func() error { _, err := admin.RoleAdd(ctx, "root"); return err },
		func() error { _, err := admin.UserGrantRole(ctx, "root", "root"); return err },
		func() error { _, err := admin.UserAdd(ctx, "svc", "password"); return err },
		func() error { _, err := admin.RoleAdd(ctx, "locker"); return err },
		func() error {
			_, err := admin.RoleGrantPermission(ctx, "locker", "/revfence/", end, clientv3.PermissionType(clientv3.PermReadWrite))
			return err
		},
		func() error { _, err := admin.UserGrantRole(ctx, "svc", "locker"); return err },
		func() error { _, err := admin.AuthEnable(ctx); return err },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	root = srv.Client(t, etcdtest.AsUser("root", "secret"))
	t.Cleanup(func() {
		if _, err := root.AuthDisable(testContext(t)); err != nil {
			t.Errorf("authentication off: %v", err)
		}
	})
	return srv, root
}

// TestF32PermissionRevoked: a holder is told with its next renewal, a waiter does not wait for ever, and whoever asks is
// refused at once.
func TestF32PermissionRevoked(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second
	srv, root := secured(t, ttl+soon)
	stalls := etcdtest.Stalls(t)
	ctx := testContext(t)
	var watches standing
	l := newLocker(t, srv.Client(t, etcdtest.AsUser("svc", "password"), etcdtest.Stream(watches.stream)), etcdlock.WithTTL(ttl))
	waiter := newLocker(t, srv.Client(t, etcdtest.AsUser("svc", "password")), etcdlock.WithTTL(ttl))
	k := mustLock(t, l, "x")
	next := goLock(ctx, waiter, "x")
	eventually(t, "the waiter in the queue", func() bool {
		queue, err := waiter.Queue(ctx, "x")
		return err == nil && len(queue) == 2
	})
	// What is read once the watch stands, and beside it later, would tell as well.
	eventually(t, "the watch of the key", func() bool { return watches.count() == 1 })

	from := time.Now()
	if _, err := root.UserRevokeRole(ctx, "svc", "locker"); err != nil {
		t.Fatal(err)
	}
	for what, take := range map[string]func() (*etcdlock.Lock, error){
		"Lock":    func() (*etcdlock.Lock, error) { return l.Lock(ctx, "y") },
		"TryLock": func() (*etcdlock.Lock, error) { return l.TryLock(ctx, "y") },
	} {
		if k, err := take(); k != nil || !errors.Is(err, rpctypes.ErrPermissionDenied) {
			t.Errorf("%s: %v, %v", what, k, err)
		}
	}
	asked := time.Now()
	stalls.Judge(t, "refusals", []etcdtest.Sample{{From: from, To: asked, Value: asked.Sub(from)}}, 1, time.Second)
	lost := lostTo(t, k)
	told := time.Now()
	if lost.Reason != etcdlock.ReasonDenied || !errors.Is(lost, rpctypes.ErrPermissionDenied) {
		t.Errorf("lost: %+v", lost)
	}
	stalls.Judge(t, "loss", []etcdtest.Sample{{From: from, To: told, Value: told.Sub(from)}}, 1, ttl/3+500*time.Millisecond)
	if r := receive(t, "waiter", next); r.lock != nil || !errors.Is(r.err, rpctypes.ErrPermissionDenied) {
		t.Errorf("waiter: %+v", r)
	}
	mustLostUnlock(t, k)
}

// TestNoPermission: for a prefix that the user may not write.
func TestNoPermission(t *testing.T) {
	t.Parallel()
	srv, _ := secured(t, soon)
	stalls := etcdtest.Stalls(t)
	l := newLocker(t, srv.Client(t, etcdtest.AsUser("svc", "password")), etcdlock.WithPrefix("/elsewhere/"))
	from := time.Now()
	_, err := l.Lock(testContext(t), "x")
	to := time.Now()
	wantIs(t, "Lock", err, rpctypes.ErrPermissionDenied)
	stalls.Judge(t, "Lock", []etcdtest.Sample{{From: from, To: to, Value: to.Sub(from)}}, 1, time.Second)
	_, err = newLocker(t, srv.Client(t)).Lock(testContext(t), "x")
	wantIs(t, "Lock without a user", err, rpctypes.ErrUserEmpty)
}

// endTokens ends the auth tokens that svc has so far: a new password, here the same, does that.
func endTokens(t testing.TB, root *clientv3.Client) {
	t.Helper()
	if _, err := root.UserChangePassword(testContext(t), "svc", "password"); err != nil {
		t.Fatal(err)
	}
}

// TestTokenRefreshIsNoRepeat: a transaction that is sent again because its auth token had ended was refused the first
// time. Its answer is the whole story, and its session as good as before.
func TestTokenRefreshIsNoRepeat(t *testing.T) {
	t.Parallel()
	srv, root := secured(t, soon)
	l := newLocker(t, srv.Client(t, etcdtest.AsUser("svc", "password")))
	k := mustLock(t, l, "x")
	endTokens(t, root)
	if _, err := root.Delete(testContext(t), k.Key()); err != nil {
		t.Fatal(err)
	}
	wantIs(t, "Unlock of a lock that was lost", k.Unlock(testContext(t)), etcdlock.ErrLost)

	k = mustLock(t, l, "x")
	lease := k.Key()
	endTokens(t, root)
	mustUnlock(t, k)
	endTokens(t, root)
	k = mustLock(t, l, "x")
	if k.Key() != lease {
		t.Errorf("key %s, then %s: the lease was not used again", lease, k.Key())
	}
	mustUnlock(t, k)
}

// TestWatchAfterTokenEnds: clientv3 authenticates a stream of watches when it opens it. A watch that this stream refuses
// has to find another one.
func TestWatchAfterTokenEnds(t *testing.T) {
	t.Parallel()
	srv, root := secured(t, soon)
	var watches standing
	l := newLocker(t, srv.Client(t, etcdtest.AsUser("svc", "password"), etcdtest.Stream(watches.stream)))
	first := mustLock(t, l, "first")
	eventually(t, "its watch, which opens the stream", func() bool { return watches.count() == 1 })
	endTokens(t, root)
	stalls := etcdtest.Stalls(t)
	var held []*etcdlock.Lock
	for i := range 5 {
		held = append(held, mustLock(t, l, fmt.Sprint(i)))
	}
	eventually(t, "a watch for each of them", func() bool { return watches.count() == 1+len(held) })
	var samples []etcdtest.Sample
	for _, k := range held {
		from := time.Now()
		if _, err := root.Delete(testContext(t), k.Key()); err != nil {
			t.Fatal(err)
		}
		if lost := lostTo(t, k); lost.Reason != etcdlock.ReasonKeyGone {
			t.Errorf("lost: %+v", lost)
		}
		to := time.Now()
		samples = append(samples, etcdtest.Sample{From: from, To: to, Value: to.Sub(from)})
	}
	stalls.Judge(t, "told by the watch", samples, 1, 100*time.Millisecond)
	mustUnlock(t, first)
}
