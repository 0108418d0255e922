package etcdlock_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/etcdtest"
	"github.com/revfence/revfence/internal/faultkit"
)

// TestF21LockReturnsWithItsContext: within 100 ms of its context's end, whatever became of etcd and whatever was under way,
// and what it has left there is gone within the TTL.
func TestF21LockReturnsWithItsContext(t *testing.T) {
	for _, c := range []outage{
		{what: "black hole while waiting", wait: true, down: func(p *faultkit.Proxy) { p.BlackHole() }},
		{what: "disconnected while waiting", wait: true, down: func(p *faultkit.Proxy) { p.Cut() }},
		{what: "grant unanswered", at: "Lease/LeaseGrant", down: func(p *faultkit.Proxy) { p.BlackHole(faultkit.Down) }},
		{what: "create transaction unanswered", at: "KV/Txn", down: func(p *faultkit.Proxy) { p.BlackHole(faultkit.Down) }},
		{what: "create transaction held up", at: "KV/Txn", down: func(p *faultkit.Proxy) { p.Hold(faultkit.Up) }},
	} {
		t.Run(c.what, c.run)
	}
}

// TestF22Unreachable: and so it does where no etcd is, though it has nothing to withdraw yet. These take long to close.
func TestF22Unreachable(t *testing.T) {
	t.Parallel()
	for _, c := range []outage{
		{what: "refused", addr: "127.0.0.1:1", down: func(*faultkit.Proxy) {}},
		{what: "black hole", down: func(p *faultkit.Proxy) { p.BlackHole() }},
	} {
		t.Run(c.what, c.run)
	}
}

// outage is a way in which etcd becomes unreachable.
type outage struct {
	what string
	at   string // the call during which it happens; "" for before all calls
	wait bool   // or when all wait for another holder
	down func(*faultkit.Proxy)
	addr string // where the client connects to, if not to the proxy
}

func (c outage) run(t *testing.T) {
	const locks, ttl = 10, 2 * time.Second
	srv := startClean(t, ttl+time.Second)
	stalls := etcdtest.Stalls(t)
	proxy := faultkit.NewProxy(t, srv.Endpoint())
	addr := proxy.Addr()
	if c.addr != "" {
		addr = c.addr
	}
	hit := make(chan struct{})
	down := sync.OnceFunc(func() {
		c.down(proxy)
		close(hit)
	})
	var asked atomic.Int64 // calls of etcd begun
	during := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		asked.Add(1)
		if c.at != "" && faultkit.Method(c.at)(method, req) {
			down()
		}
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	l := newLocker(t, srv.Client(t, etcdtest.Via(addr), etcdtest.Unary(during)), etcdlock.WithTTL(ttl))
	var held []*etcdlock.Lock
	switch {
	case c.wait:
		held = lockAll(t, clientLocker(t, srv), locks)
	case c.at == "":
		down()
	}

	var results [locks]<-chan result
	var cancels [locks]context.CancelFunc
	for i := range locks {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		results[i], cancels[i] = goLock(ctx, l, lockName(i)), cancel
	}
	switch {
	case c.wait:
		awaitKeys(t, srv, "/revfence/", 2*locks)
		down()
		pass(200 * time.Millisecond) // for the client to notice, if it can
	case c.at == "":
		eventually(t, "each Lock asks etcd", func() bool { return asked.Load() >= locks })
	default:
		receive(t, "the call at which it happens", hit)
	}
	var samples []etcdtest.Sample
	for i := range locks {
		calm(stalls)
		from := time.Now()
		cancels[i]()
		r := receive(t, "Lock", results[i])
		samples = append(samples, etcdtest.Sample{From: from, To: r.at, Value: r.at.Sub(from)})
		if r.lock != nil || !errors.Is(r.err, context.Canceled) {
			t.Errorf("Lock: %v, %v", r.lock, r.err)
		}
		if r.at.Before(from) {
			t.Errorf("Lock returned %v before its context's end: %v", from.Sub(r.at), r.err)
		}
	}
	end := time.Now()
	stalls.Judge(t, "Lock after its context's end", samples, 1, 100*time.Millisecond)
	for _, k := range held {
		mustUnlock(t, k)
	}
	// Still unreachable: nothing can be withdrawn.
	eventuallyWithin(t, "what Lock has left is gone", time.Until(end.Add(ttl+time.Second)), func() bool {
		return len(keys(t, srv, "").Kvs) == 0
	})
	proxy.Heal()
}

// TestLockDeadline: the same with a deadline, whose error says that it passed.
func TestLockDeadline(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	k := mustLock(t, clientLocker(t, srv), "x")
	l, unreachable := clientLocker(t, srv), newLocker(t, srv.Client(t, etcdtest.Via("127.0.0.1:1")))
	for what, l := range map[string]*etcdlock.Locker{"held by another": l, "unreachable": unreachable} {
		cause := errors.New("the caller's reason")
		ctx, cancel := context.WithTimeoutCause(t.Context(), 200*time.Millisecond, cause)
		defer cancel()
		_, err := l.Lock(ctx, "x")
		wantIs(t, what, err, context.DeadlineExceeded, cause)
		wantText(t, what, err, `"x"`)
	}
	// TryLock does not wait, for the lock or for etcd.
	from := time.Now()
	_, err := unreachable.TryLock(testContext(t), "x")
	if err == nil || errors.Is(err, etcdlock.ErrLocked) {
		t.Errorf("TryLock: %v", err)
	}
	if took := time.Since(from); took > 10*time.Second {
		t.Errorf("TryLock took %v", took)
	}
	awaitKeys(t, srv, "/revfence/x/", 1)
	mustUnlock(t, k)
}

// TestCancelledInProcess: a waiter behind another goroutine of its own process leaves no trace, and those behind it move
// up.
func TestCancelledInProcess(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	var calls etcdtest.Counter
	l := newLocker(t, srv.Client(t, etcdtest.Counted(&calls)))
	k := mustLock(t, l, "x")
	versionsAsked(t, &calls)
	before := calls.Snapshot()
	ctx, cancel := context.WithCancel(t.Context())
	first := goLock(ctx, l, "x")
	eventually(t, "a waiter", func() bool { return l.TurnsWaiting("x") == 1 })
	second := goLock(testContext(t), l, "x")
	eventually(t, "two waiters", func() bool { return l.TurnsWaiting("x") == 2 })
	cancel()
	r := receive(t, "Lock", first)
	wantIs(t, "cancelled waiter", r.err, context.Canceled)
	if got := calls.Snapshot().Sub(before); got.Calls() != 0 {
		t.Errorf("etcd was asked: %v", got)
	}
	mustUnlock(t, k)
	mustUnlock(t, granted(t, second))
}

// TestLockWaitsForEtcd: trouble that passes is waited out.
func TestLockWaitsForEtcd(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	proxy := faultkit.NewProxy(t, srv.Endpoint())
	var calls etcdtest.Counter
	l := newLocker(t, srv.Client(t, etcdtest.Via(proxy.Addr()), etcdtest.Counted(&calls)))
	proxy.Cut()
	next := goLock(testContext(t), l, "x")
	pass(300 * time.Millisecond)
	select {
	case r := <-next:
		t.Fatalf("Lock while etcd cannot be reached: %+v", r)
	default:
	}
	proxy.Heal()
	mustUnlock(t, granted(t, next))

	// A waiter that is cut off keeps its place.
	holder := clientLocker(t, srv)
	k := mustLock(t, holder, "y")
	next = goLock(testContext(t), l, "y")
	eventually(t, "a waiter that knows its place", func() bool { return calls.Snapshot().Sent[etcdtest.Watch] > 0 })
	_, revision, _ := place(t, srv, "y")
	proxy.Cut()
	mustUnlock(t, k)
	pass(300 * time.Millisecond)
	proxy.Heal()
	got := granted(t, next)
	if int64(got.Token()) != revision {
		t.Errorf("token %d, but the place was of revision %d", got.Token(), revision)
	}
	mustUnlock(t, got)
}
