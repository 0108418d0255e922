package etcdlock_test

import (
	"errors"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/revfence/revfence/etcdlock"
)

// TestF29ForeignKey: a key in the name's queue that no lock has made would block the name for ever, so it is reported, by
// name, and nothing is left behind it.
func TestF29ForeignKey(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ what, key string }{
		{"without lease", "/revfence/x/123"},
		{"nested below the name", "/revfence/x/y/123"},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			srv := startClean(t, soon)
			l := clientLocker(t, srv)
			put(t, srv, c.key, "foreign")
			ctx := testContext(t)
			for what, take := range map[string]func() (*etcdlock.Lock, error){
				"Lock":    func() (*etcdlock.Lock, error) { return l.Lock(ctx, "x") },
				"TryLock": func() (*etcdlock.Lock, error) { return l.TryLock(ctx, "x") },
			} {
				k, err := take()
				if k != nil {
					t.Errorf("%s: got a lock behind %s", what, c.key)
				}
				wantIs(t, what, err, etcdlock.ErrForeignKey)
				wantText(t, what, err, c.key)
				if errors.Is(err, etcdlock.ErrLocked) {
					t.Errorf("%s: %v also says that the name is locked", what, err)
				}
			}
			awaitKeys(t, srv, "/revfence/x/", 1) // the foreign one
			queue, err := l.Queue(ctx, "x")
			if err != nil || len(queue) != 1 || !queue[0].Foreign || queue[0].Key != c.key {
				t.Errorf("Queue: %+v, %v; want the foreign key, marked", queue, err)
			}
			if k := mustLock(t, l, "other"); k != nil {
				mustUnlock(t, k)
			}
			remove(t, srv, c.key)
			mustUnlock(t, mustLock(t, l, "x"))
		})
	}
}

// TestF29OverwrittenKey: a holder's key is written over without its lease, so that it stays when the holder goes. All that
// wait already are told, and so is whoever comes later.
func TestF29OverwrittenKey(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	holder, l := clientLocker(t, srv), clientLocker(t, srv)
	ctx := testContext(t)
	k := mustLock(t, holder, "x")
	var waiters []<-chan result
	for i := range 2 {
		waiters = append(waiters, goLock(ctx, clientLocker(t, srv), "x"))
		awaitKeys(t, srv, "/revfence/x/", 2+i)
	}
	put(t, srv, k.Key(), "operator")
	wantLost(t, k, etcdlock.ReasonKeyGone)
	if err := holder.Close(ctx); err != nil {
		t.Errorf("Close: %v", err)
	}
	late := time.After(rereadLimit + time.Second)
	for i, w := range waiters {
		select {
		case r := <-w:
			wantIs(t, "waiter", r.err, etcdlock.ErrForeignKey)
			wantText(t, "waiter", r.err, k.Key())
		case <-late:
			t.Fatalf("waiter %d goes on waiting in silence", i)
		}
	}
	_, err := l.Lock(ctx, "x")
	wantIs(t, "Lock", err, etcdlock.ErrForeignKey)
	wantText(t, "Lock", err, k.Key())
	awaitKeys(t, srv, "/revfence/x/", 1) // the one written over
	remove(t, srv, k.Key())
	mustUnlock(t, mustLock(t, l, "x"))
}

// TestForeignKeyBehind: a foreign key that comes after the waiter's place does not concern it.
func TestForeignKeyBehind(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	a, b := clientLocker(t, srv), clientLocker(t, srv)
	held := mustLock(t, a, "x")
	next := goLock(testContext(t), b, "x")
	awaitKeys(t, srv, "/revfence/x/", 2)
	put(t, srv, "/revfence/x/1", "foreign")
	mustUnlock(t, held)
	k := granted(t, next)
	queue, err := a.Queue(testContext(t), "x")
	if err != nil || len(queue) != 2 || queue[0].Foreign || !queue[1].Foreign || queue[0].Token != k.Token() {
		t.Errorf("Queue: %+v, %v; want the holder and then the foreign key, marked", queue, err)
	}
	mustUnlock(t, k)
	remove(t, srv, "/revfence/x/1")
}

// TestForeignKeyOfSharedLease: a key with a lease, as etcdctl lock makes it below another path, is no less in the way.
func TestForeignKeyOfSharedLease(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	l := clientLocker(t, srv)
	ctx := testContext(t)
	lease, err := srv.Admin().Grant(ctx, 60)
	if err != nil {
		t.Fatal(err)
	}
	const key = "/revfence/x/y/123"
	if _, err := srv.Admin().Put(ctx, key, "", clientv3.WithLease(lease.ID)); err != nil {
		t.Fatal(err)
	}
	_, err = l.Lock(ctx, "x")
	wantIs(t, "Lock", err, etcdlock.ErrForeignKey)
	wantText(t, "Lock", err, key)
	if _, err := srv.Admin().Revoke(ctx, lease.ID); err != nil {
		t.Fatal(err)
	}
	mustUnlock(t, mustLock(t, l, "x"))
}
