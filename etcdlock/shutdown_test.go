package etcdlock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/etcdtest"
	"github.com/revfence/revfence/internal/faultkit"
)

// TestF31CloseEtcdStopped: a service that is told to end while etcd is down ends when its time is up, whatever it had.
func TestF31CloseEtcdStopped(t *testing.T) {
	t.Parallel()
	const ttl, budget = 8 * time.Second, time.Second
	srv := startClean(t, ttl+soon) // after the restart every lease has its whole TTL
	stalls := etcdtest.Stalls(t)
	proxy := faultkit.NewProxy(t, srv.Endpoint())
	lockers := map[string]*etcdlock.Locker{}
	for _, what := range []string{"idle lease", "held lock", "waiter"} {
		l, err := etcdlock.New(srv.Client(t, etcdtest.Via(proxy.Addr())), etcdlock.WithTTL(ttl))
		if err != nil {
			t.Fatal(err)
		}
		lockers[what] = l
	}
	mustUnlock(t, mustLock(t, lockers["idle lease"], "x"))
	k := mustLock(t, lockers["held lock"], "x")
	waiter := goLock(testContext(t), lockers["waiter"], "x")
	awaitKeys(t, srv, "/revfence/x/", 2)
	proxy.Cut() // or etcd would wait for the streams to end
	srv.Stop()

	closed := make(chan etcdtest.Sample, len(lockers))
	for what, l := range lockers {
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), budget)
			defer cancel()
			from := time.Now()
			err := l.Close(ctx)
			to := time.Now()
			wantIs(t, "Close with "+what, err, context.DeadlineExceeded)
			closed <- etcdtest.Sample{From: from, To: to, Value: to.Sub(from)}
		}()
	}
	var samples []etcdtest.Sample
	for range lockers {
		samples = append(samples, receive(t, "Close", closed))
	}
	stalls.Judge(t, "Close", samples, 1, budget+200*time.Millisecond)
	var lost *etcdlock.LostError
	if err := k.Check(testContext(t)); !errors.As(err, &lost) || lost.Reason != etcdlock.ReasonClosed {
		t.Errorf("the held lock: %v", err)
	}
	if r := receive(t, "waiter", waiter); r.lock != nil || !errors.Is(r.err, etcdlock.ErrClosed) {
		t.Errorf("waiter: %+v", r)
	}
	if err := srv.Restart(); err != nil {
		t.Fatal(err)
	}
}

// TestF31NothingToWaitOut: a process that ends in order, in the middle of everything, leaves nothing that its successor
// would have to wait out.
func TestF31NothingToWaitOut(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	stalls := etcdtest.Stalls(t)
	ctx := testContext(t)
	l, err := etcdlock.New(srv.Client(t))
	if err != nil {
		t.Fatal(err)
	}
	blocker := mustLock(t, clientLocker(t, srv), "waited for")
	waiter := goLock(ctx, l, "waited for")
	awaitKeys(t, srv, "/revfence/waited", 2)
	mustUnlock(t, mustLock(t, l, "used before"))
	working, worked := make(chan struct{}), make(chan error, 1)
	go func() {
		worked <- l.Do(ctx, "worked under", func(ctx context.Context, _ *etcdlock.Lock) error {
			close(working)
			<-ctx.Done() // as told by Close
			return nil
		})
	}()
	receive(t, "work", working)
	if err := l.Close(ctx); err != nil {
		t.Errorf("Close: %v", err)
	}
	if err := receive(t, "work", worked); err != nil {
		t.Errorf("Do: %v", err)
	}
	if r := receive(t, "waiter", waiter); !errors.Is(r.err, etcdlock.ErrClosed) {
		t.Errorf("waiter: %+v", r)
	}
	mustUnlock(t, blocker)

	successor := clientLocker(t, srv)
	var samples []etcdtest.Sample
	for _, name := range []string{"worked under", "used before", "waited for"} {
		from := time.Now()
		k := mustLock(t, successor, name)
		to := time.Now()
		samples = append(samples, etcdtest.Sample{From: from, To: to, Value: to.Sub(from)})
		mustUnlock(t, k)
	}
	stalls.Judge(t, "Lock by the successor", samples, 1, time.Second) // of a TTL of 30 s
}
