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

// An outage that is longer than one call may take, and much shorter than the
// TTL, must not cost others the TTL.

func TestWithdrawnAfterOutage(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	p := faultkit.NewProxy(t, srv.Endpoint())
	l := newLocker(t, srv.Client(t, etcdtest.Via(p.Addr())))
	k := mustLock(t, clientLocker(t, srv), "x")
	ctx, cancel := context.WithCancel(testContext(t))
	next := goLock(ctx, l, "x")
	awaitKeys(t, srv, "/revfence/x/", 2)
	p.Cut()
	cancel()
	if r := receive(t, "Lock", next); r.err == nil {
		t.Fatal("held")
	}
	pass(6 * time.Second)
	p.Heal()
	eventuallyWithin(t, "the place is withdrawn", 2*soon, func() bool { return len(keys(t, srv, "/revfence/x/").Kvs) == 1 })
	mustUnlock(t, k)
}

func TestF20ReleasedAfterOutage(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	p := faultkit.NewProxy(t, srv.Endpoint())
	l := newLocker(t, srv.Client(t, etcdtest.Via(p.Addr())))
	k := mustLock(t, l, "x")
	p.Cut()
	ctx, cancel := context.WithCancel(testContext(t))
	cancel()
	wantIs(t, "Unlock", k.Unlock(ctx), etcdlock.ErrUnknown)
	pass(6 * time.Second)
	p.Heal()
	eventuallyWithin(t, "the lock is released", 2*soon, func() bool { return len(keys(t, srv, "/revfence/x/").Kvs) == 0 })
}

// TestF20UnlockDuringOutage: a holder wants to unlock while it is cut off from etcd for 5 s.
func TestF20UnlockDuringOutage(t *testing.T) {
	t.Parallel()
	const outage = 5 * time.Second
	for _, c := range []struct {
		ttl     time.Duration
		unknown bool          // what came of it
		free    time.Duration // for others, after the cut
	}{
		{30 * time.Second, false, outage + 2*soon}, // released as soon as the client has reached etcd again
		{3 * time.Second, true, 3*time.Second + expiryLimit},
	} {
		t.Run(c.ttl.String(), func(t *testing.T) {
			t.Parallel()
			srv := startClean(t, soon)
			p := faultkit.NewProxy(t, srv.Endpoint())
			l := newLocker(t, srv.Client(t, etcdtest.Via(p.Addr())), etcdlock.WithTTL(c.ttl))
			k := mustLock(t, l, "x")
			next := goLock(testContext(t), clientLocker(t, srv), "x")
			awaitKeys(t, srv, "/revfence/x/", 2)
			p.Cut()
			cut := time.Now()
			unlocked := make(chan error, 1)
			go func() { unlocked <- k.Unlock(testContext(t)) }()
			healed := time.AfterFunc(outage, p.Heal)
			defer healed.Stop()
			got := receive(t, "Lock", next)
			if free := got.at.Sub(cut); got.err != nil || free > c.free {
				t.Errorf("%v, %v after the cut, want %v at the most", got.err, free, c.free)
			}
			if err := receive(t, "Unlock", unlocked); errors.Is(err, etcdlock.ErrUnknown) != c.unknown || (err != nil) != c.unknown {
				t.Errorf("Unlock: %v", err)
			}
			mustUnlock(t, got.lock)
		})
	}
}

// expiryLimit is what may pass between the end of a lease's TTL and that of its keys, while etcd is well.
const expiryLimit = 1500 * time.Millisecond

// TestF42ServerRestarted: a new leader gives every lease its whole TTL again. A waiter knows nothing of that, and does not
// have to: it waits for the key, not for a clock.
func TestF42ServerRestarted(t *testing.T) {
	t.Parallel()
	const ttl, election = 4 * time.Second, time.Second
	srv := startClean(t, soon)
	holders, waiters := faultkit.NewProxy(t, srv.Endpoint()), faultkit.NewProxy(t, srv.Endpoint())
	l := newLocker(t, srv.Client(t, etcdtest.Via(waiters.Addr())))
	k := mustLock(t, newLocker(t, srv.Client(t, etcdtest.Via(holders.Addr())), etcdlock.WithTTL(ttl)), "x")
	held := time.Now()
	holders.Cut() // and that was the last that etcd has heard of it
	next := goLock(testContext(t), l, "x")
	awaitKeys(t, srv, "/revfence/x/", 2)
	_, revision, _ := place(t, srv, "x")
	pass(time.Until(held.Add(ttl - time.Second)))
	waiters.Cut() // or etcd would wait for its streams to end
	srv.Stop()
	down := time.Now()
	if err := srv.Restart(); err != nil {
		t.Fatal(err)
	}
	up := time.Now()
	waiters.Heal()
	wantLost(t, k, etcdlock.ReasonDeadline)
	got := receive(t, "Lock", next)
	if got.err != nil {
		t.Fatalf("Lock: %v", got.err)
	}
	if got.at.Sub(down) < ttl {
		t.Errorf("acquired %v after the restart: before the key can have expired", got.at.Sub(down))
	}
	if late := got.at.Sub(up) - ttl - election; late > expiryLimit {
		t.Errorf("acquired %v after TTL and election timeout had passed", late)
	}
	if got.lock.Token() <= k.Token() || int64(got.lock.Token()) != revision {
		t.Errorf("token %d after %d; the waiter's place was of revision %d", got.lock.Token(), k.Token(), revision)
	}
	mustUnlock(t, got.lock)
}
