package etcdlock_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/revfence/revfence/etcdlock"
)

type observerFunc func(etcdlock.Event)

func (f observerFunc) Observe(e etcdlock.Event) { f(e) }

type events struct {
	mu   sync.Mutex
	seen []etcdlock.Event
}

func (o *events) Observe(e etcdlock.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.seen = append(o.seen, e)
}

func (o *events) all() []etcdlock.Event {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]etcdlock.Event(nil), o.seen...)
}

// TestObserver: one event for every acquisition, failure, release and loss.
func TestObserver(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	var o events
	l, other := clientLocker(t, srv, etcdlock.WithObserver(&o)), clientLocker(t, srv)
	ctx := testContext(t)

	first := mustLock(t, l, "x")
	mustUnlock(t, first)
	mustUnlock(t, first) // again: no event
	taken := mustLock(t, other, "x")
	if _, err := l.TryLock(ctx, "x"); !errors.Is(err, etcdlock.ErrLocked) {
		t.Fatal(err)
	}
	mustUnlock(t, taken)
	second := mustLock(t, l, "y")
	remove(t, srv, second.Key())
	wantIs(t, "Check", second.Check(ctx), etcdlock.ErrLost)
	wantIs(t, "Unlock", second.Unlock(ctx), etcdlock.ErrLost) // no event: it was lost, not released
	eventually(t, "five events", func() bool { return len(o.all()) >= 5 })

	for i, want := range []etcdlock.Event{
		{Kind: etcdlock.EventAcquired, Name: "x", Token: first.Token()},
		{Kind: etcdlock.EventReleased, Name: "x", Token: first.Token()},
		{Kind: etcdlock.EventFailed, Name: "x", Err: etcdlock.ErrLocked},
		{Kind: etcdlock.EventAcquired, Name: "y", Token: second.Token()},
		{Kind: etcdlock.EventLost, Name: "y", Token: second.Token(), Reason: etcdlock.ReasonKeyGone, Err: etcdlock.ErrLost},
	} {
		got := o.all()[i]
		if got.Kind != want.Kind || got.Name != want.Name || got.Token != want.Token || got.Reason != want.Reason || !errors.Is(got.Err, want.Err) {
			t.Errorf("event %d: %+v, want %+v", i, got, want)
		}
		if got.Elapsed <= 0 || got.Elapsed > testLimit {
			t.Errorf("event %d: %v elapsed", i, got.Elapsed)
		}
	}
	if n := len(o.all()); n != 5 {
		t.Errorf("%d events", n)
	}
}

// TestObserverPanics: the lock does not die of it, and it is logged.
func TestObserverPanics(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	core, logs := observer.New(zapcore.ErrorLevel)
	l := clientLocker(t, srv, etcdlock.WithLogger(zap.New(core)),
		etcdlock.WithObserver(observerFunc(func(etcdlock.Event) { panic("boo") })))
	k := mustLock(t, l, "x")
	mustUnlock(t, k)
	k = mustLock(t, l, "x")
	remove(t, srv, k.Key())
	wantIs(t, "Check", k.Check(testContext(t)), etcdlock.ErrLost)
	eventually(t, "four panics in the log", func() bool { return logs.FilterMessage("observer panicked").Len() == 4 })
}

// TestObserverOutsideOfLocks: an Observer may use the Locker.
func TestObserverOutsideOfLocks(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	var l *etcdlock.Locker
	ctx := testContext(t)
	asked := make(chan error, 10)
	l = clientLocker(t, srv, etcdlock.WithObserver(observerFunc(func(e etcdlock.Event) {
		if e.Name == "x" {
			_, err := l.Queue(ctx, "x")
			asked <- err
		}
	})))
	k := mustLock(t, l, "x", etcdlock.WithMaxHold(50*time.Millisecond))
	lostTo(t, k)
	mustLostUnlock(t, k)
	for range 2 {
		if err := receive(t, "event", asked); err != nil {
			t.Error(err)
		}
	}
}

// mustLostUnlock ends a lock that was lost, so that its name is free.
func mustLostUnlock(t testing.TB, k *etcdlock.Lock) {
	t.Helper()
	wantIs(t, "Unlock of a lost lock", k.Unlock(testContext(t)), etcdlock.ErrLost)
}
