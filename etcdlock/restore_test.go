package etcdlock_test

import (
	"context"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/etcdtest"
	"github.com/revfence/revfence/internal/faultkit"
)

// restart stops a server, does something to its data directory, and starts it again. Clients come through the proxy,
// whose connections would hold the stop up.
func restart(t testing.TB, srv *etcdtest.Server, proxy *faultkit.Proxy, meanwhile func(dir string) error) {
	t.Helper()
	proxy.Cut()
	srv.Stop()
	if err := meanwhile(srv.Dir()); err != nil {
		t.Fatal(err)
	}
	if err := srv.Restart(); err != nil {
		t.Fatal(err)
	}
	proxy.Heal()
}

// TestF08RestoredBackup: etcd comes back with older data and lower revisions. No lock is handed out, since its token would
// not be above those of earlier holders, and what is kept for reuse is given up.
func TestF08RestoredBackup(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	proxy := faultkit.NewProxy(t, srv.Endpoint())
	// At this TTL a key is read every 5 s beside its watch, which restored revisions mislead.
	l := newLocker(t, srv.Client(t, etcdtest.Via(proxy.Addr())), etcdlock.WithTTL(12*time.Second))
	ctx := testContext(t)
	mustUnlock(t, mustLock(t, l, "x")) // its session is in the backup
	inBackup := mustLock(t, l, "held through it")

	backup := t.TempDir()
	restart(t, srv, proxy, func(dir string) error { return os.CopyFS(backup, os.DirFS(dir)) })
	var last *etcdlock.Lock
	for range 20 {
		last = mustLock(t, l, "x")
		mustUnlock(t, last)
	}
	afterBackup := mustLock(t, l, "taken after it")
	restart(t, srv, proxy, func(dir string) error {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
		return os.CopyFS(dir, os.DirFS(backup))
	})

	refused := func(what string, err error) {
		t.Helper()
		wantIs(t, what, err, etcdlock.ErrRevisionRegressed)
		wantText(t, what, err, "etcdutl snapshot restore --bump-revision")
	}
	k, err := l.Lock(ctx, "x")
	if k != nil {
		t.Errorf("got a lock with token %d after %d", k.Token(), last.Token())
	}
	refused("Lock", err)
	_, err = l.TryLock(ctx, "x")
	refused("TryLock", err)
	_, err = l.Queue(ctx, "x")
	refused("Queue", err)
	refused("Do", l.Do(ctx, "x", func(context.Context, *etcdlock.Lock) error {
		t.Error("the function ran")
		return nil
	}))
	refused("Check", inBackup.Check(ctx))

	// A hold that the backup does not know is lost, whatever is said about revisions.
	if lost := lostTo(t, afterBackup); lost.Reason != etcdlock.ReasonKeyGone && lost.Reason != etcdlock.ReasonLeaseGone {
		t.Errorf("lost: %v", lost)
	}
	mustLostUnlock(t, afterBackup)
	mustUnlock(t, inBackup)
	srv.AssertClean(t, "", soon) // neither the sessions kept for reuse nor anything else

	// When revisions have passed what was seen, tokens rise again.
	for i := 0; srv.Revision(t) <= int64(last.Token())+10; i++ {
		put(t, srv, "unrelated", strconv.Itoa(i))
	}
	remove(t, srv, "unrelated")
	k = mustLock(t, l, "x")
	if k.Token() <= last.Token() || k.Token() <= afterBackup.Token() {
		t.Errorf("token %d after %d and %d", k.Token(), last.Token(), afterBackup.Token())
	}
	mustUnlock(t, k)
}

// TestF08RestoredKeyOfPooledLease: a key that was released comes back with the backup, on a lease that is renewed for later
// use. Its process has forgotten the key, but notices that etcd was away, and gives the lease up. This is the quick form, which
// a mutant stands for; TestF08RestoredKeyBlocksForATTL restores with etcdutl, and has more cases.
func TestF08RestoredKeyOfPooledLease(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	proxy := faultkit.NewProxy(t, srv.Endpoint())
	const ttl = 12 * time.Second // for which the lease would be renewed
	var calls etcdtest.Counter
	l := newLocker(t, srv.Client(t, etcdtest.Via(proxy.Addr()), etcdtest.Counted(&calls)), etcdlock.WithTTL(ttl))
	k := mustLock(t, l, "x")
	eventually(t, "a renewal", func() bool { return calls.Snapshot().Sent[etcdtest.KeepAlive] > 0 })
	backup := t.TempDir()
	if err := os.CopyFS(backup, os.DirFS(srv.Dir())); err != nil { // at rest, or as after a crash
		t.Fatal(err)
	}
	mustUnlock(t, k)
	restart(t, srv, proxy, func(dir string) error {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
		return os.CopyFS(dir, os.DirFS(backup))
	})
	if n := len(keys(t, srv, k.Key()).Kvs); n != 1 {
		t.Errorf("%d keys came back", n)
	}
	ctx, cancel := context.WithTimeout(context.Background(), ttl/2)
	defer cancel()
	next, err := clientLocker(t, srv).Lock(ctx, "x")
	if err != nil {
		t.Fatal(err)
	}
	mustUnlock(t, next)
}

// TestRestart: an etcd that comes back with all its data is none of that, and a hold lives through it.
func TestRestart(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	proxy := faultkit.NewProxy(t, srv.Endpoint())
	l := newLocker(t, srv.Client(t, etcdtest.Via(proxy.Addr())))
	k := mustLock(t, l, "x")
	next := goLock(testContext(t), clientLocker(t, srv), "x")
	awaitKeys(t, srv, "/revfence/x/", 2)
	restart(t, srv, proxy, func(string) error { return nil })
	// The client may take a while to connect again.
	eventually(t, "etcd answers", func() bool { return k.Check(testContext(t)) == nil })
	live(t, k)
	mustUnlock(t, k)
	second := granted(t, next)
	if second.Token() <= k.Token() {
		t.Errorf("token %d after %d", second.Token(), k.Token())
	}
	mustUnlock(t, second)
}
