package etcdlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/etcdtest"
	"github.com/revfence/revfence/internal/faultkit"
)

// TestClientClosedUnderLocks: the owner closes the client and forgets the
// Locker. Nothing of it may renew what nobody can unlock any more.
func TestClientClosedUnderLocks(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	srv := startClean(t, ttl+soon)
	c := srv.Client(t)
	l, err := etcdlock.New(c, etcdlock.WithTTL(ttl))
	if err != nil {
		t.Fatal(err)
	}
	a, b := mustLock(t, l, "a"), mustLock(t, l, "b")
	waiter := goLock(context.Background(), l, "a")
	eventually(t, "a waiter", func() bool { return l.TurnsWaiting("a") == 1 })
	asked := time.Now()
	c.Close()
	for _, k := range []*etcdlock.Lock{a, b} {
		if lost := lostTo(t, k); lost.Reason != etcdlock.ReasonClosed {
			t.Errorf("%s: %v", k.Name(), lost)
		}
		wantIs(t, "Unlock", k.Unlock(context.Background()), etcdlock.ErrLost)
	}
	wantIs(t, "waiter", receive(t, "the waiter", waiter).err, etcdlock.ErrClosed)
	_, err = l.TryLock(context.Background(), "c")
	wantIs(t, "TryLock", err, etcdlock.ErrClosed)
	if err := l.Close(context.Background()); err != nil {
		t.Errorf("Close: %v", err)
	}
	if took := time.Since(asked); took > soon {
		t.Errorf("all that took %v", took)
	}
	_, err = etcdlock.New(c)
	if err != nil {
		t.Errorf("New on a closed client: %v", err) // it asks nothing: the first lock says so
	}
}

// TestUnlockWhileClientCloses: a release that cannot get through ends with the
// client.
func TestUnlockWhileClientCloses(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon+soon)
	p := faultkit.NewProxy(t, srv.Endpoint())
	c := srv.Client(t, etcdtest.Via(p.Addr()))
	l, err := etcdlock.New(c, etcdlock.WithTTL(4*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	k := mustLock(t, l, "a")
	p.BlackHole()
	done := make(chan error, 1)
	go func() { done <- k.Unlock(context.Background()) }()
	<-k.Context().Done()
	c.Close()
	wantIs(t, "Unlock", receive(t, "Unlock", done), etcdlock.ErrUnknown)
	p.Heal()
	if err := l.Close(testContext(t)); err != nil {
		t.Errorf("Close: %v", err)
	}
}
