package versions_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/fencing"
	"github.com/revfence/revfence/internal/etcdtest"
	"github.com/revfence/revfence/internal/faultkit"
	"github.com/revfence/revfence/internal/locktest"
)

// What a lock does is tested at length on the etcd that the module requires. These are the parts that rest on what a
// server does.
var behaviour = map[string]func(t *testing.T, bin string){
	"contention": contention, "deletion": deletion, "revoke": revoke, "renewal": renewal, "watchdog": watchdog,
	"lost reply": lostReply, "TryLock": tryLock, "transaction": transaction, "restart": restart,
}

func TestEtcd35(t *testing.T) { testVersion(t, "etcd35", "3.5.21", "3.5.28") }

func TestEtcd36(t *testing.T) { testVersion(t, "etcd36", "3.6.16", "") }

// testVersion runs all on one server; minimum is what the log warns that it is below, "" if nothing.
func testVersion(t *testing.T, module, version, minimum string) {
	bin := build(t, module)
	s := start(t, bin)
	resp, err := s.admin.Status(locktest.Context(t), s.client)
	if err != nil || resp.Version != version {
		t.Fatalf("server of %s: %v, %v", module, resp, err)
	}
	t.Run("warning", func(t *testing.T) {
		t.Parallel()
		warning(t, bin, minimum)
	})
	for name, test := range behaviour {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, bin)
		})
	}
}

// lost waits for the end of a lock by loss.
func lost(t testing.TB, k *etcdlock.Lock, within time.Duration) *etcdlock.LostError {
	t.Helper()
	select {
	case <-k.Context().Done():
	case <-time.After(within):
		t.Fatalf("%v: still held after %v", k, within)
	}
	var lost *etcdlock.LostError
	if !errors.As(context.Cause(k.Context()), &lost) {
		t.Fatalf("%v: ended with %v", k, context.Cause(k.Context()))
	}
	if err := k.Unlock(locktest.Context(t)); !errors.Is(err, etcdlock.ErrLost) {
		t.Errorf("Unlock of a lost lock: %v", err)
	}
	return lost
}

// kept fails the test if the lock ends within d.
func kept(t testing.TB, k *etcdlock.Lock, d time.Duration, what string) {
	t.Helper()
	select {
	case <-k.Context().Done():
		t.Fatalf("%s: %v", what, context.Cause(k.Context()))
	case <-time.After(d):
	}
}

// watched waits until a client has asked for a watch. If it begins late, a read makes up for that.
func watched(t testing.TB, calls *etcdtest.Counter) {
	t.Helper()
	for deadline := time.Now().Add(locktest.Limit); calls.Snapshot().Sent[etcdtest.Watch] == 0; {
		if time.Now().After(deadline) {
			t.Fatal("the key is not watched")
		}
		pass(10 * time.Millisecond)
	}
}

// contention: two processes and a stock mutex on one name, one at a time, with tokens that rise.
func contention(t *testing.T, bin string) {
	const workers, rounds = 3, 10
	s := start(t, bin)
	var inside atomic.Int32
	var mu sync.Mutex
	var last fencing.Token
	critical := func() {
		if n := inside.Add(1); n != 1 {
			t.Errorf("%d at once", n)
		}
		pass(time.Millisecond)
		inside.Add(-1)
	}
	var wg sync.WaitGroup
	for range 2 {
		l := locktest.New(t, s.connect(t))
		for range workers {
			wg.Go(func() {
				for range rounds {
					k, err := l.Lock(locktest.Context(t), "busy")
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					if k.Token() <= last {
						t.Errorf("token %d after %d", k.Token(), last)
					}
					last = k.Token()
					mu.Unlock()
					critical()
					locktest.Unlock(t, k)
				}
			})
		}
	}
	session, err := concurrency.NewSession(s.connect(t))
	if err != nil {
		t.Fatal(err)
	}
	wg.Go(func() {
		stock := concurrency.NewMutex(session, "/revfence/busy")
		for range rounds {
			if err := stock.Lock(locktest.Context(t)); err != nil {
				t.Error(err)
				return
			}
			critical()
			if err := stock.Unlock(locktest.Context(t)); err != nil {
				t.Error(err)
			}
		}
	})
	wg.Wait()
	if err := session.Close(); err != nil {
		t.Error(err)
	}
}

func deletion(t *testing.T, bin string) {
	s := start(t, bin)
	var calls etcdtest.Counter
	k := locktest.Lock(t, locktest.New(t, s.connect(t, etcdtest.Counted(&calls))), "x")
	watched(t, &calls)
	if _, err := s.admin.Delete(locktest.Context(t), k.Key()); err != nil {
		t.Fatal(err)
	}
	if e := lost(t, k, time.Second); e.Reason != etcdlock.ReasonKeyGone {
		t.Errorf("lost: %v", e)
	}
}

func revoke(t *testing.T, bin string) {
	s := start(t, bin)
	var calls etcdtest.Counter
	k := locktest.Lock(t, locktest.New(t, s.connect(t, etcdtest.Counted(&calls))), "x")
	watched(t, &calls)
	leases, err := s.admin.Leases(locktest.Context(t))
	if err != nil || len(leases.Leases) != 1 {
		t.Fatalf("leases: %v, %v", leases, err)
	}
	if _, err := s.admin.Revoke(locktest.Context(t), leases.Leases[0].ID); err != nil {
		t.Fatal(err)
	}
	if e := lost(t, k, time.Second); e.Reason != etcdlock.ReasonKeyGone && e.Reason != etcdlock.ReasonLeaseGone {
		t.Errorf("lost: %v", e)
	}
}

// renewal: a lock outlives three times its TTL, and a waiter gets it after that.
func renewal(t *testing.T, bin string) {
	const ttl = 2 * time.Second
	s := start(t, bin)
	k := locktest.Lock(t, locktest.New(t, s.connect(t), etcdlock.WithTTL(ttl)), "x")
	next := make(chan *etcdlock.Lock, 1)
	waiter := locktest.New(t, s.connect(t), etcdlock.WithTTL(ttl))
	ctx := locktest.Context(t)
	go func() {
		n, err := waiter.Lock(ctx, "x")
		if err != nil {
			t.Error(err)
		}
		next <- n
	}()
	kept(t, k, 7*ttl/2, "renewed")
	if err := k.Check(locktest.Context(t)); err != nil {
		t.Errorf("Check: %v", err)
	}
	locktest.Unlock(t, k)
	if n := <-next; n != nil {
		if n.Token() <= k.Token() {
			t.Errorf("token %d after %d", n.Token(), k.Token())
		}
		locktest.Unlock(t, n)
	}
}

// watchdog: each of two ways to the server goes silent in turn.
func watchdog(t *testing.T, bin string) {
	const ttl = 5 * time.Second
	s := start(t, bin)
	proxies := []*faultkit.Proxy{faultkit.NewProxy(t, s.client), faultkit.NewProxy(t, s.client)}
	k := locktest.Lock(t, locktest.New(t, s.connect(t, etcdtest.Via(proxies[0].Addr(), proxies[1].Addr())), etcdlock.WithTTL(ttl)), "x")
	for i, p := range proxies {
		p.BlackHole()
		kept(t, k, 3*ttl/2, fmt.Sprintf("way %d silent", i))
		p.Heal()
		kept(t, k, time.Second, "healed")
	}
	locktest.Unlock(t, k)
}

// lostReply: the transaction that takes the lock is applied, and its answer lost.
func lostReply(t *testing.T, bin string) {
	s := start(t, bin)
	var calls faultkit.Calls
	l := locktest.New(t, s.connect(t, etcdtest.Unary(calls.Unary)))
	fault := calls.Lost(func(_ string, req any) bool {
		r, ok := req.(*pb.TxnRequest)
		return ok && len(r.Success) > 0 && r.Success[0].GetRequestPut() != nil
	}, 1, status.Error(codes.Unavailable, "reply lost"))
	k := locktest.Lock(t, l, "x")
	if fault.Hits() != 1 {
		t.Errorf("%d replies lost", fault.Hits())
	}
	if err := k.Check(locktest.Context(t)); err != nil {
		t.Errorf("Check: %v", err)
	}
	locktest.Unlock(t, k)
}

func tryLock(t *testing.T, bin string) {
	s := start(t, bin)
	k := locktest.Lock(t, locktest.New(t, s.connect(t), etcdlock.WithIdentity("somebody")), "x")
	l := locktest.New(t, s.connect(t))
	var locked *etcdlock.LockedError
	if _, err := l.TryLock(locktest.Context(t), "x"); !errors.As(err, &locked) || locked.Holder != "somebody" || locked.Key != k.Key() {
		t.Errorf("TryLock of a taken name: %v", err)
	}
	locktest.Unlock(t, k)
	second, err := l.TryLock(locktest.Context(t), "x")
	if err != nil {
		t.Fatal(err)
	}
	if second.Token() <= k.Token() {
		t.Errorf("token %d after %d", second.Token(), k.Token())
	}
	locktest.Unlock(t, second)
}

// transaction: applied for the holder, and in no part for a former one.
func transaction(t *testing.T, bin string) {
	s := start(t, bin)
	k := locktest.Lock(t, locktest.New(t, s.connect(t)), "x")
	ctx := locktest.Context(t)
	if resp, err := k.Txn(ctx).Then(clientv3.OpPut("data", "first")).Commit(); err != nil || !resp.Succeeded {
		t.Errorf("transaction of the holder: %v, %v", resp, err)
	}
	if _, err := s.admin.Delete(ctx, k.Key()); err != nil {
		t.Fatal(err)
	}
	_, err := k.Txn(ctx).If(clientv3.Compare(clientv3.Value("data"), "=", "none")).
		Then(clientv3.OpPut("data", "then")).Else(clientv3.OpPut("data", "else")).Commit()
	if !errors.Is(err, etcdlock.ErrLost) {
		t.Errorf("transaction of a former holder: %v", err)
	}
	if err := k.Check(ctx); !errors.Is(err, etcdlock.ErrLost) {
		t.Errorf("Check: %v", err)
	}
	if resp, err := s.admin.Get(ctx, "data"); err != nil || len(resp.Kvs) != 1 || string(resp.Kvs[0].Value) != "first" {
		t.Errorf("data: %v, %v", resp, err)
	}
	if _, err := s.admin.Delete(ctx, "data"); err != nil {
		t.Fatal(err)
	}
}

// restart: a lock outlives a server that is killed and comes back, and so does a place in the queue.
func restart(t *testing.T, bin string) {
	s := start(t, bin)
	k := locktest.Lock(t, locktest.New(t, s.connect(t)), "x")
	waiter, ctx := locktest.New(t, s.connect(t)), locktest.Context(t)
	next := make(chan *etcdlock.Lock, 1)
	go func() {
		n, err := waiter.Lock(ctx, "x")
		if err != nil {
			t.Error(err)
		}
		next <- n
	}()
	for {
		queue, err := waiter.Queue(ctx, "x")
		if err != nil {
			t.Fatal(err)
		}
		if len(queue) == 2 {
			break
		}
		pass(10 * time.Millisecond)
	}
	s.Restart()
	if !s.ready() {
		t.Fatal("the server does not start again")
	}
	for k.Check(ctx) != nil && ctx.Err() == nil {
		kept(t, k, 100*time.Millisecond, "restarted")
	}
	locktest.Unlock(t, k)
	if n := <-next; n != nil {
		if n.Token() <= k.Token() {
			t.Errorf("token %d after %d", n.Token(), k.Token())
		}
		locktest.Unlock(t, n)
	}
}

// warning: the log names the minimum that the server is below, if it is, and is silent otherwise.
func warning(t *testing.T, bin, minimum string) {
	s := start(t, bin)
	core, logs := observer.New(zap.DebugLevel)
	var calls etcdtest.Counter
	l, err := etcdlock.New(s.connect(t, etcdtest.Counted(&calls)), etcdlock.WithLogger(zap.New(core)))
	if err != nil {
		t.Fatal(err)
	}
	locktest.Unlock(t, locktest.Lock(t, l, "x"))
	for deadline := time.Now().Add(locktest.Limit); calls.Snapshot().Unary[etcdtest.Status] == 0 && time.Now().Before(deadline); {
		pass(10 * time.Millisecond)
	}
	k := locktest.Lock(t, l, "x")
	kept(t, k, 500*time.Millisecond, "asked") // and answered
	locktest.Unlock(t, k)
	if err := l.Close(locktest.Context(t)); err != nil {
		t.Fatal(err)
	}
	warned := ""
	for _, e := range logs.All() {
		if e.Level == zap.WarnLevel && e.ContextMap()["minimum"] != nil {
			warned += e.ContextMap()["minimum"].(string)
		} else if e.Level > zap.DebugLevel || e.Message == "server's version not known" {
			t.Errorf("said: %s %v", e.Message, e.ContextMap())
		}
	}
	if warned != minimum {
		t.Errorf("warned of servers below %q, want %q", warned, minimum)
	}
}
