package etcdlock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/etcdtest"
)

// testLimit bounds every call that a test expects to end by itself.
const testLimit = 30 * time.Second

// soon is the time in which what a Locker does in the background must be done while etcd is well.
const soon = 3 * time.Second

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testLimit)
	t.Cleanup(cancel)
	return ctx
}

// starting bounds how many servers start at the same time, which is work enough to make locks of a short TTL late.
var starting = make(chan struct{}, 2)

// startClean starts a server that must be empty again within a time after the test's Lockers and clients are closed.
func startClean(t testing.TB, within time.Duration, opts ...etcdtest.Option) *etcdtest.Server {
	t.Helper()
	starting <- struct{}{}
	defer func() { <-starting }()
	srv := etcdtest.Start(t, opts...)
	srv.CheckClean(t, within)
	return srv
}

// newLocker returns a Locker that is closed at the end of the test, by when nothing may be held any more.
func newLocker(t testing.TB, c *clientv3.Client, opts ...etcdlock.Option) *etcdlock.Locker {
	t.Helper()
	l, err := etcdlock.New(c, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(testContext(t)); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return l
}

// clientLocker returns a Locker with a client of its own.
func clientLocker(t testing.TB, srv *etcdtest.Server, opts ...etcdlock.Option) *etcdlock.Locker {
	t.Helper()
	return newLocker(t, srv.Client(t), opts...)
}

func mustLock(t testing.TB, l *etcdlock.Locker, name string, opts ...etcdlock.LockOption) *etcdlock.Lock {
	t.Helper()
	k, err := l.Lock(testContext(t), name, opts...)
	if err != nil {
		t.Fatalf("Lock %q: %v", name, err)
	}
	return k
}

func mustUnlock(t testing.TB, k *etcdlock.Lock) {
	t.Helper()
	if err := k.Unlock(testContext(t)); err != nil {
		t.Errorf("Unlock %q: %v", k.Name(), err)
	}
}

// result is what a Lock on another goroutine came to.
type result struct {
	lock *etcdlock.Lock
	err  error
	at   time.Time
}

// goLock calls Lock on a goroutine of its own.
func goLock(ctx context.Context, l *etcdlock.Locker, name string, opts ...etcdlock.LockOption) <-chan result {
	out := make(chan result, 1)
	go func() {
		k, err := l.Lock(ctx, name, opts...)
		out <- result{k, err, time.Now()}
	}()
	return out
}

// receive waits for a value for no longer than a test should take.
func receive[T any](t testing.TB, what string, c <-chan T) T {
	t.Helper()
	timer := time.NewTimer(testLimit)
	defer timer.Stop()
	select {
	case v := <-c:
		return v
	case <-timer.C:
		t.Fatalf("%s: nothing after %v", what, testLimit)
		panic("unreachable")
	}
}

// granted waits for goLock to succeed.
func granted(t testing.TB, c <-chan result) *etcdlock.Lock {
	t.Helper()
	r := receive(t, "Lock", c)
	if r.err != nil {
		t.Fatalf("Lock: %v", r.err)
	}
	return r.lock
}

// eventually polls until cond holds.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	eventuallyWithin(t, what, testLimit, cond)
}

func eventuallyWithin(t testing.TB, what string, limit time.Duration, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(limit)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", limit, what)
		}
		<-tick.C
	}
}

// pass lets time go by, where the passing of time is what is tested.
func pass(d time.Duration) { <-time.After(d) }

// calm waits for a moment in which the process is not held up, as it is by a busy machine, so that a sample taken then
// says something about the code. If there is none within a second the sample is taken all the same.
func calm(stalls *etcdtest.Ticker) {
	for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); {
		from := time.Now()
		pass(20 * time.Millisecond)
		if !stalls.Overlaps(from, time.Now()) {
			return
		}
	}
}

// wantIs fails unless err matches all targets.
func wantIs(t testing.TB, what string, err error, targets ...error) {
	t.Helper()
	for _, target := range targets {
		if !errors.Is(err, target) {
			t.Errorf("%s: error is %v, want one that matches %q", what, err, target)
		}
	}
}

// wantText fails unless err has text in its message.
func wantText(t testing.TB, what string, err error, text string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("%s: error is %v, want one that says %q", what, err, text)
	}
}

// lostTo returns how a lock whose context ended was lost.
func lostTo(t testing.TB, k *etcdlock.Lock) *etcdlock.LostError {
	t.Helper()
	receive(t, "end of the lock's context", k.Context().Done())
	var lost *etcdlock.LostError
	if cause := context.Cause(k.Context()); !errors.As(cause, &lost) {
		t.Fatalf("context of %q ended with cause %v, want a *LostError", k.Name(), cause)
	}
	return lost
}

// live fails if a lock's context has ended.
func live(t testing.TB, k *etcdlock.Lock) {
	t.Helper()
	if k.Context().Err() != nil {
		t.Fatalf("context of %q ended: %v", k.Name(), context.Cause(k.Context()))
	}
}

// keys returns the keys under a prefix, oldest first.
func keys(t testing.TB, srv *etcdtest.Server, prefix string) *clientv3.GetResponse {
	t.Helper()
	resp, err := srv.Admin().Get(testContext(t), prefix, clientv3.WithPrefix(),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// awaitKeys waits until n keys stand under a prefix.
func awaitKeys(t testing.TB, srv *etcdtest.Server, prefix string, n int) {
	t.Helper()
	eventually(t, "number of keys under "+prefix, func() bool { return len(keys(t, srv, prefix).Kvs) == n })
}

func leaseCount(t testing.TB, srv *etcdtest.Server) int {
	t.Helper()
	resp, err := srv.Admin().Leases(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	return len(resp.Leases)
}

func put(t testing.TB, srv *etcdtest.Server, key, value string) {
	t.Helper()
	if _, err := srv.Admin().Put(testContext(t), key, value); err != nil {
		t.Fatal(err)
	}
}

func remove(t testing.TB, srv *etcdtest.Server, key string) {
	t.Helper()
	if _, err := srv.Admin().Delete(testContext(t), key); err != nil {
		t.Fatal(err)
	}
}

// creates matches the transactions that put a lock's key.
func creates(_ string, req any) bool {
	r, ok := req.(*pb.TxnRequest)
	return ok && len(r.Success) > 0 && r.Success[0].GetRequestPut() != nil && !r.Success[0].GetRequestPut().IgnoreLease
}

// deletes matches the transactions that delete a lock's key.
func deletes(_ string, req any) bool {
	r, ok := req.(*pb.TxnRequest)
	return ok && len(r.Success) > 0 && r.Success[0].GetRequestDeleteRange() != nil
}
