package etcdlock_test

import (
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/revfence/revfence/etcdlock"
)

// TestQueue: the holder first, then the waiters in the order in which they will be served.
func TestQueue(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	ctx := testContext(t)
	a := clientLocker(t, srv, etcdlock.WithIdentity("a"))
	b := clientLocker(t, srv, etcdlock.WithIdentity("b"))
	if queue, err := a.Queue(ctx, "x"); err != nil || len(queue) != 0 {
		t.Errorf("queue of a free name: %+v, %v", queue, err)
	}
	k := mustLock(t, a, "x")
	next := goLock(ctx, b, "x")
	awaitKeys(t, srv, "/revfence/x/", 2)
	stock := stockMutex(t, srv, "/revfence/x")
	stockHas := make(chan error, 1)
	go func() { stockHas <- stock.Lock(ctx) }()
	awaitKeys(t, srv, "/revfence/x/", 3)
	put(t, srv, "/revfence/x/y/z", "foreign")
	put(t, srv, "/revfence/xx/1", "another name's")

	queue, err := b.Queue(ctx, "x")
	if err != nil || len(queue) != 4 {
		t.Fatalf("Queue: %+v, %v", queue, err)
	}
	stored := keys(t, srv, "/revfence/x/").Kvs
	for i, want := range []etcdlock.Contender{
		{Key: k.Key(), Identity: "a", Token: k.Token()},
		{Key: string(stored[1].Key), Identity: "b"},
		{Key: stock.Key()},
		{Key: "/revfence/x/y/z", Identity: "foreign", Foreign: true},
	} {
		got := queue[i]
		if got.Key != want.Key || got.Identity != want.Identity || got.Foreign != want.Foreign {
			t.Errorf("place %d: %+v, want %+v", i, got, want)
		}
		if int64(got.Token) != stored[i].CreateRevision || got.Lease != clientv3.LeaseID(stored[i].Lease) {
			t.Errorf("place %d: %+v, stored as %v", i, got, stored[i])
		}
	}
	if queue[0].Token != k.Token() {
		t.Errorf("holder with token %d listed with %d", k.Token(), queue[0].Token)
	}
	mustUnlock(t, k)
	k = granted(t, next)
	if k.Token() != queue[1].Token {
		t.Errorf("the waiter listed with token %d got %d", queue[1].Token, k.Token())
	}
	mustUnlock(t, k)
	if err := receive(t, "stock Lock", stockHas); err != nil {
		t.Error(err)
	}
	if err := stock.Unlock(ctx); err != nil {
		t.Error(err)
	}
	remove(t, srv, "/revfence/x/y/z")
	remove(t, srv, "/revfence/xx/1")
}
