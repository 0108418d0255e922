package etcdlock_test

import (
	"context"
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
