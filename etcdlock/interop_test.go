package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/etcdtest"
)

// stockMutex returns a concurrency.Mutex on a client and a session of its own.
func stockMutex(t testing.TB, srv *etcdtest.Server, path string) *concurrency.Mutex {
	t.Helper()
	s, err := concurrency.NewSession(srv.Client(t), concurrency.WithTTL(30))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("stock session: %v", err)
		}
	})
	return concurrency.NewMutex(s, path)
}

// TestInteropExclusive: a name that escaping leaves unchanged is one lock with a stock mutex at the same path.
func TestInteropExclusive(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	ctx := testContext(t)
	l := clientLocker(t, srv, etcdlock.WithPrefix("/a/b/"))
	stock := stockMutex(t, srv, "/a/b/nightly")

	k := mustLock(t, l, "nightly")
	if err := stock.TryLock(ctx); !errors.Is(err, concurrency.ErrLocked) {
		t.Errorf("stock TryLock of a held name: %v", err)
	}
	stockHas := make(chan error, 1)
	go func() { stockHas <- stock.Lock(ctx) }()
	awaitKeys(t, srv, "/a/b/nightly/", 2)
	select {
	case err := <-stockHas:
		t.Fatalf("stock Lock of a held name: %v", err)
	default:
	}
	mustUnlock(t, k)
	if err := receive(t, "stock Lock", stockHas); err != nil {
		t.Fatal(err)
	}

	_, err := l.TryLock(ctx, "nightly")
	var locked *etcdlock.LockedError
	if !errors.As(err, &locked) || locked.Key != stock.Key() || locked.Holder != "" || locked.Name != "nightly" {
		t.Errorf("TryLock of a name held by %s: %#v", stock.Key(), err)
	}
	queue, err := l.Queue(ctx, "nightly")
	if err != nil || len(queue) != 1 || queue[0].Foreign || queue[0].Key != stock.Key() {
		t.Errorf("Queue: %+v, %v; want the stock mutex, which is no foreign key", queue, err)
	}
	next := goLock(ctx, l, "nightly")
	awaitKeys(t, srv, "/a/b/nightly/", 2)
	select {
	case r := <-next:
		t.Fatalf("Lock of a name held by a stock mutex: %+v", r)
	default:
	}
	if err := stock.Unlock(ctx); err != nil {
		t.Fatal(err)
	}
	mustUnlock(t, granted(t, next))
}

// TestInteropOrder: a mixed queue is served in the order of the create revisions, whoever holds first.
func TestInteropOrder(t *testing.T) {
	t.Parallel()
	for first, kind := range []string{"revfence", "stock"} {
		t.Run(kind+" first", func(t *testing.T) {
			t.Parallel()
			srv := startClean(t, soon)
			ctx := testContext(t)
			const contenders = 6
			var mu sync.Mutex
			var order []int
			var revisions []int64
			var wg sync.WaitGroup
			release := make(chan struct{})
			inside := func(i int, key string) {
				resp, err := srv.Admin().Get(ctx, key)
				if err != nil || len(resp.Kvs) != 1 {
					t.Errorf("key of contender %d: %v, %v", i, resp, err)
					return
				}
				if i == 0 {
					<-release
				}
				mu.Lock()
				defer mu.Unlock()
				order, revisions = append(order, i), append(revisions, resp.Kvs[0].CreateRevision)
			}
			contend := func(i int) func(context.Context) error {
				if (first+i)%2 == 0 {
					l := clientLocker(t, srv)
					return func(ctx context.Context) error {
						return l.Do(ctx, "mixed", func(_ context.Context, k *etcdlock.Lock) error {
							inside(i, k.Key())
							return nil
						})
					}
				}
				m := stockMutex(t, srv, "/revfence/mixed")
				return func(ctx context.Context) error {
					if err := m.Lock(ctx); err != nil {
						return err
					}
					inside(i, m.Key())
					return m.Unlock(ctx)
				}
			}
			for i := range contenders {
				run := contend(i)
				wg.Go(func() {
					if err := run(ctx); err != nil {
						t.Errorf("contender %d: %v", i, err)
					}
				})
				awaitKeys(t, srv, "/revfence/mixed/", i+1)
			}
			close(release)
			wg.Wait()
			if want := []int{0, 1, 2, 3, 4, 5}; !slices.Equal(order, want) {
				t.Errorf("queued in the order %v, served in %v", want, order)
			}
			if !slices.IsSorted(revisions) {
				t.Errorf("served in the order of create revisions %v", revisions)
			}
		})
	}
}

// TestEscapedNameDoesNotJoin: what the documentation warns of. The names of a stock mutex are paths; a name with a slash
// is another lock.
func TestEscapedNameDoesNotJoin(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	l := clientLocker(t, srv, etcdlock.WithPrefix("/a/"))
	stock := stockMutex(t, srv, "/a/b/nightly")
	k := mustLock(t, l, "b/nightly")
	if err := stock.TryLock(testContext(t)); err != nil {
		t.Errorf("stock TryLock: %v", err)
	}
	mustUnlock(t, k)
	if err := stock.Unlock(testContext(t)); err != nil {
		t.Error(err)
	}
}

// TestInteropStockLeaseEnds: a stock holder that dies frees the name with its lease.
func TestInteropStockLeaseEnds(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	ctx := testContext(t)
	lease, err := srv.Admin().Grant(ctx, 60)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := srv.Admin().Put(ctx, fmt.Sprintf("/revfence/x/%x", lease.ID), "", clientv3.WithLease(lease.ID)); err != nil {
		t.Fatal(err)
	}
	next := goLock(ctx, clientLocker(t, srv), "x")
	awaitKeys(t, srv, "/revfence/x/", 2)
	if _, err := srv.Admin().Revoke(ctx, lease.ID); err != nil {
		t.Fatal(err)
	}
	mustUnlock(t, granted(t, next))
}
