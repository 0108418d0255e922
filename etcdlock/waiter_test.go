package etcdlock_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/etcdtest"
	"github.com/revfence/revfence/internal/faultkit"
)

// requeued watches the queues under the default prefix and passes on when a new place was taken.
func requeued(t testing.TB, srv *etcdtest.Server) func(name string) time.Time {
	t.Helper()
	ctx, cancel := context.WithCancel(testContext(t))
	t.Cleanup(cancel)
	// Each name's channel is made before the watch, and has room for all that a test does.
	taken := map[string]chan time.Time{}
	for i := range waiters {
		taken[waiterName(i)] = make(chan time.Time, 10)
	}
	events := srv.Client(t).Watch(ctx, "/revfence/", clientv3.WithPrefix(), clientv3.WithFilterDelete(), clientv3.WithCreatedNotify())
	if r := receive(t, "watch", events); r.Err() != nil || !r.Created {
		t.Fatalf("watch: %+v", r)
	}
	go func() {
		for r := range events {
			now := time.Now()
			for _, e := range r.Events {
				var name string
				var lease int64
				if _, err := fmt.Sscanf(string(e.Kv.Key), "/revfence/waiter-%1s/%x", &name, &lease); err == nil && e.IsCreate() {
					taken["waiter-"+name] <- now
				}
			}
		}
	}()
	return func(name string) time.Time { return receive(t, "new place for "+name, taken[name]) }
}

const waiters = 10

func waiterName(i int) string { return fmt.Sprintf("waiter-%d", i) }

// waiting takes the names of waiterName with one Locker and has another wait for all of them.
func waiting(t testing.TB, srv *etcdtest.Server) (held []*etcdlock.Lock, next []<-chan result, calls *etcdtest.Counter) {
	t.Helper()
	calls = new(etcdtest.Counter)
	holder, l := clientLocker(t, srv), newLocker(t, srv.Client(t, etcdtest.Counted(calls)))
	for i := range waiters {
		held = append(held, mustLock(t, holder, waiterName(i)))
		next = append(next, goLock(testContext(t), l, waiterName(i)))
	}
	awaitKeys(t, srv, "/revfence/", 2*waiters)
	return held, next, calls
}

// place returns the waiter's key for a name.
func place(t testing.TB, srv *etcdtest.Server, name string) (key string, revision int64, lease clientv3.LeaseID) {
	t.Helper()
	kvs := keys(t, srv, "/revfence/"+name+"/").Kvs
	if len(kvs) != 2 {
		t.Fatalf("keys of %q: %v", name, kvs)
	}
	return string(kvs[1].Key), kvs[1].CreateRevision, clientv3.LeaseID(kvs[1].Lease)
}

// TestF23WaiterPlaceLost: a waiter whose key was deleted or whose lease was revoked takes a new place at once, and gets the
// lock in the end.
func TestF23WaiterPlaceLost(t *testing.T) {
	for what, c := range map[string]struct {
		watched bool // only a wait that has lasted for a second has its key watched
		harm    func(ctx context.Context, admin *clientv3.Client, key string, lease clientv3.LeaseID) error
		bound   time.Duration
	}{
		"key deleted": {true, func(ctx context.Context, admin *clientv3.Client, key string, _ clientv3.LeaseID) error {
			_, err := admin.Delete(ctx, key)
			return err
		}, 100 * time.Millisecond},
		"lease revoked": {true, func(ctx context.Context, admin *clientv3.Client, _ string, lease clientv3.LeaseID) error {
			_, err := admin.Revoke(ctx, lease)
			return err
		}, 100 * time.Millisecond},
		"lease revoked early": {false, func(ctx context.Context, admin *clientv3.Client, _ string, lease clientv3.LeaseID) error {
			_, err := admin.Revoke(ctx, lease)
			return err
		}, 1500 * time.Millisecond},
		"key deleted early": {false, func(ctx context.Context, admin *clientv3.Client, key string, _ clientv3.LeaseID) error {
			_, err := admin.Delete(ctx, key)
			return err
		}, 1500 * time.Millisecond},
	} {
		t.Run(what, func(t *testing.T) {
			srv := startClean(t, soon)
			stalls := etcdtest.Stalls(t)
			held, next, calls := waiting(t, srv)
			if c.watched {
				// One watch on the predecessor and one on the own key.
				eventuallyWithin(t, "all places watched", watchedFrom+soon, func() bool {
					return calls.Snapshot().Sent[etcdtest.Watch] >= 2*waiters
				})
			}
			taken := requeued(t, srv)
			var samples []etcdtest.Sample
			for i := range waiters {
				key, revision, lease := place(t, srv, waiterName(i))
				calm(stalls)
				from := time.Now()
				if err := c.harm(testContext(t), srv.Admin(), key, lease); err != nil {
					t.Fatal(err)
				}
				to := taken(waiterName(i))
				samples = append(samples, etcdtest.Sample{From: from, To: to, Value: to.Sub(from)})
				if _, now, _ := place(t, srv, waiterName(i)); now <= revision {
					t.Errorf("place of revision %d after that of %d", now, revision)
				}
			}
			stalls.Judge(t, "new place taken", samples, 0.9, c.bound)
			for i, k := range held {
				select {
				case r := <-next[i]:
					t.Errorf("the waiter got %+v while another holds the lock", r)
				default:
				}
				mustUnlock(t, k)
				got := granted(t, next[i])
				if got.Token() <= k.Token() {
					t.Errorf("token %d after %d", got.Token(), k.Token())
				}
				mustUnlock(t, got)
			}
		})
	}
}

// TestWaiterAtTheTail: a waiter that has lost its place is served after those who have kept theirs, as the create
// revisions say.
func TestWaiterAtTheTail(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	ctx := testContext(t)
	holder, first, second := clientLocker(t, srv), clientLocker(t, srv), clientLocker(t, srv)
	k := mustLock(t, holder, "x")
	unlucky := goLock(ctx, first, "x")
	awaitKeys(t, srv, "/revfence/x/", 2)
	key, _, _ := place(t, srv, "x")
	lucky := goLock(ctx, second, "x")
	awaitKeys(t, srv, "/revfence/x/", 3)
	remove(t, srv, key)
	awaitKeys(t, srv, "/revfence/x/", 3)
	mustUnlock(t, k)
	got := granted(t, lucky)
	select {
	case r := <-unlucky:
		t.Errorf("served at the same time: %+v", r)
	default:
	}
	mustUnlock(t, got)
	last := granted(t, unlucky)
	if last.Token() <= got.Token() {
		t.Errorf("token %d after %d", last.Token(), got.Token())
	}
	mustUnlock(t, last)
}

func compact(t testing.TB, srv *etcdtest.Server) {
	t.Helper()
	put(t, srv, "unrelated", "")
	remove(t, srv, "unrelated")
	if _, err := srv.Admin().Compact(testContext(t), srv.Revision(t), clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
}

// TestF24CompactionDuringWait: changes nothing, neither for the waiter nor for its place, also when it could not see what
// came before.
func TestF24CompactionDuringWait(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		during, after func(t *testing.T, srv *etcdtest.Server, proxy *faultkit.Proxy, unlock func())
	}{
		"connected": {
			func(*testing.T, *etcdtest.Server, *faultkit.Proxy, func()) {},
			func(_ *testing.T, _ *etcdtest.Server, _ *faultkit.Proxy, unlock func()) { unlock() },
		},
		"cut off": {
			func(t *testing.T, srv *etcdtest.Server, proxy *faultkit.Proxy, _ func()) {
				proxy.Cut()
				compact(t, srv)
				proxy.Heal()
			},
			func(_ *testing.T, _ *etcdtest.Server, _ *faultkit.Proxy, unlock func()) { unlock() },
		},
		"cut off, and the deletion compacted away": {
			func(*testing.T, *etcdtest.Server, *faultkit.Proxy, func()) {},
			func(t *testing.T, srv *etcdtest.Server, proxy *faultkit.Proxy, unlock func()) {
				proxy.Cut()
				unlock()
				compact(t, srv)
				proxy.Heal()
			},
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			srv := startClean(t, soon)
			proxy := faultkit.NewProxy(t, srv.Endpoint())
			var calls etcdtest.Counter
			holder := clientLocker(t, srv)
			l := newLocker(t, srv.Client(t, etcdtest.Via(proxy.Addr()), etcdtest.Counted(&calls)))
			k := mustLock(t, holder, "x")
			next := goLock(testContext(t), l, "x")
			awaitKeys(t, srv, "/revfence/x/", 2)
			_, revision, _ := place(t, srv, "x")
			put(t, srv, "unrelated", "") // so that the younger of the two watches, on the own key, begins with a read
			eventually(t, "both watches stand", func() bool {
				n := calls.Snapshot()
				return n.Sent[etcdtest.Watch] >= 2 && n.Unary[etcdtest.Range] >= 1
			})
			compact(t, srv)
			c.during(t, srv, proxy, func() { mustUnlock(t, k) })
			if _, now, _ := place(t, srv, "x"); now != revision {
				t.Errorf("place of revision %d became %d", revision, now)
			}
			select {
			case r := <-next:
				t.Fatalf("the waiter got %+v while another holds the lock", r)
			default:
			}
			c.after(t, srv, proxy, func() { mustUnlock(t, k) })
			got := granted(t, next)
			if int64(got.Token()) != revision {
				t.Errorf("token %d, but the place was of revision %d", got.Token(), revision)
			}
			mustUnlock(t, got)
		})
	}
}

// TestWaiterKeyMadeAgain: a waiter's key was deleted and made again, on the same lease, before its watch stood. That is
// another place, later in the queue, with another token.
func TestWaiterKeyMadeAgain(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	holder, waiter := clientLocker(t, srv), clientLocker(t, srv)
	k := mustLock(t, holder, "x")
	next := goLock(testContext(t), waiter, "x")
	awaitKeys(t, srv, "/revfence/x/", 2)
	for _, kv := range keys(t, srv, "/revfence/x/").Kvs {
		if string(kv.Key) == k.Key() {
			continue
		}
		remove(t, srv, string(kv.Key))
		if _, err := srv.Admin().Put(testContext(t), string(kv.Key), "", clientv3.WithLease(clientv3.LeaseID(kv.Lease))); err != nil {
			t.Fatal(err)
		}
	}
	mustUnlock(t, k)
	got := granted(t, next)
	kvs := keys(t, srv, got.Key()).Kvs
	if len(kvs) != 1 || kvs[0].CreateRevision != int64(got.Token()) {
		t.Errorf("token %d of %v", got.Token(), kvs)
	}
	mustUnlock(t, got)
}
