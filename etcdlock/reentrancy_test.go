package etcdlock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/fencing"
)

// TestReentrant: locking a name under a context that carries a live hold of it would be waiting for oneself.
func TestReentrant(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	client := srv.Client(t)
	l := newLocker(t, client)
	k := mustLock(t, l, "x")

	derived, cancel := context.WithTimeout(context.WithValue(k.Context(), t, 1), testLimit)
	defer cancel()
	inner, err := l.Lock(derived, "y")
	if err != nil {
		t.Fatalf("Lock of another name: %v", err)
	}
	for what, c := range map[string]struct {
		locker *etcdlock.Locker
		ctx    context.Context
	}{
		"own context":                {l, k.Context()},
		"derived context":            {l, derived},
		"context of an inner hold":   {l, inner.Context()},
		"other Locker, same client":  {newLocker(t, client), derived},
		"other Locker, other client": {clientLocker(t, srv), derived},
	} {
		if _, err := c.locker.Lock(c.ctx, "x"); !errors.Is(err, etcdlock.ErrReentrant) {
			t.Errorf("%s: Lock: %v", what, err)
		}
		if _, err := c.locker.TryLock(c.ctx, "x"); !errors.Is(err, etcdlock.ErrReentrant) {
			t.Errorf("%s: TryLock: %v", what, err)
		}
		err := c.locker.Do(c.ctx, "x", func(context.Context, *etcdlock.Lock) error {
			t.Errorf("%s: the function ran", what)
			return nil
		})
		wantIs(t, what+": Do", err, etcdlock.ErrReentrant)
	}
	if n := len(keys(t, srv, "/revfence/x/").Kvs); n != 1 {
		t.Errorf("%d keys in the queue", n)
	}

	other, err := clientLocker(t, srv, etcdlock.WithPrefix("/other/")).Lock(derived, "x")
	if err != nil {
		t.Errorf("Lock under another prefix: %v", err)
	} else {
		mustUnlock(t, other)
	}
	mustUnlock(t, inner)
	mustUnlock(t, k)

	// Neither a released nor a lost hold is in the way, though the context is derived from it.
	free, cancel := context.WithTimeout(context.WithoutCancel(derived), testLimit)
	defer cancel()
	k, err = l.Lock(free, "x")
	if err != nil {
		t.Fatalf("Lock after Unlock: %v", err)
	}
	remove(t, srv, k.Key())
	wantIs(t, "Check", k.Check(testContext(t)), etcdlock.ErrLost)
	again, err := l.Lock(context.WithoutCancel(k.Context()), "x")
	if err != nil {
		t.Fatalf("Lock after a loss: %v", err)
	}
	mustUnlock(t, again)
}

// TestReentrantOtherSplit: one queue can be written in more than one way as a prefix and a name.
func TestReentrantOtherSplit(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	a, b := clientLocker(t, srv, etcdlock.WithPrefix("/a")), clientLocker(t, srv, etcdlock.WithPrefix("/"))
	k := mustLock(t, a, "b")
	ctx, cancel := context.WithTimeout(k.Context(), soon) // it would wait for itself
	defer cancel()
	_, err := b.Lock(ctx, "ab")
	wantIs(t, "Lock", err, etcdlock.ErrReentrant)
	mustUnlock(t, k)
}

// TestReentrantOtherCluster: the same name in another etcd is another lock.
func TestReentrantOtherCluster(t *testing.T) {
	t.Parallel()
	a, b := startClean(t, soon), startClean(t, soon)
	k := mustLock(t, clientLocker(t, a), "x")
	other, err := clientLocker(t, b).Lock(k.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	mustUnlock(t, other)
	mustUnlock(t, k)
}

// TestReentrantInDo: the context that Do gives to its function carries the hold.
func TestReentrantInDo(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	l := clientLocker(t, srv)
	err := l.Do(testContext(t), "x", func(ctx context.Context, _ *etcdlock.Lock) error {
		_, err := l.Lock(ctx, "x")
		return err
	})
	wantIs(t, "Lock in Do", err, etcdlock.ErrReentrant)
}

// TestWithoutHold: work that is handed to another goroutine waits its turn.
func TestWithoutHold(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	l := clientLocker(t, srv)
	type key struct{}
	outer := mustLock(t, l, "outer")
	k, err := l.Lock(context.WithValue(outer.Context(), key{}, "value"), "x")
	if err != nil {
		t.Fatal(err)
	}
	ctx := etcdlock.WithoutHold(k.Context())
	if name, token, ok := fencing.FromContext(ctx); ok || name != "" || token != 0 {
		t.Errorf("still carries %q, %d, %t", name, token, ok)
	}
	if ctx.Value(key{}) != "value" {
		t.Error("other values are gone as well")
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), testLimit)
	defer cancel()
	next := goLock(ctx, l, "x")
	second := goLock(ctx, l, "outer")
	eventually(t, "waiters", func() bool { return l.TurnsWaiting("x") == 1 && l.TurnsWaiting("outer") == 1 })
	mustUnlock(t, k)
	mustUnlock(t, outer)
	mustUnlock(t, granted(t, next))
	mustUnlock(t, granted(t, second))
}

// TestTokenInContext: a lock's context carries its token as long as no other live hold makes it ambiguous.
func TestTokenInContext(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	l := clientLocker(t, srv)
	carries := func(what string, ctx context.Context, k *etcdlock.Lock) {
		t.Helper()
		name, token, ok := fencing.FromContext(ctx)
		if k == nil && ok {
			t.Errorf("%s: carries %q, %d; want nothing", what, name, token)
		}
		if k != nil && (!ok || name != k.Name() || token != k.Token()) {
			t.Errorf("%s: carries %q, %d, %t; want %q, %d", what, name, token, ok, k.Name(), k.Token())
		}
	}
	outer := mustLock(t, l, "outer")
	carries("one hold", outer.Context(), outer)
	inner, err := l.Lock(outer.Context(), "inner")
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.WithoutCancel(inner.Context())
	carries("two live holds", inner.Context(), nil)
	carries("outer's own", outer.Context(), outer)
	mustUnlock(t, inner)
	carries("inner released", ctx, outer)
	mustUnlock(t, outer)
	carries("both released", ctx, nil)
}

// TestTokenInContextWhileClosing: Close ends the contexts of locks that are still held, so two of them are as ambiguous as
// they were before.
func TestTokenInContextWhileClosing(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	l := clientLocker(t, srv)
	a := mustLock(t, l, "a")
	b, err := l.Lock(a.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	closed := make(chan error, 1)
	go func() { closed <- l.Close(context.Background()) }()
	receive(t, "end of a's context", a.Context().Done())
	receive(t, "end of b's context", b.Context().Done())
	if a.Remaining() == 0 || b.Remaining() == 0 {
		t.Errorf("not held while Close waits: %v and %v remaining", a.Remaining(), b.Remaining())
	}
	if name, token, ok := fencing.FromContext(context.WithoutCancel(b.Context())); ok {
		t.Errorf("with two locks held: carries %q, %d", name, token)
	}
	if name, token, ok := fencing.FromContext(a.Context()); !ok || name != "a" || token != a.Token() {
		t.Errorf("the outer lock's own: carries %q, %d, %t", name, token, ok)
	}
	mustUnlock(t, b)
	mustUnlock(t, a)
	if err := receive(t, "Close", closed); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// TestContextOfLock: it has the values of the context given to Lock and not its end.
func TestContextOfLock(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	l := clientLocker(t, srv)
	type key struct{}
	ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), key{}, "value"), testLimit)
	k, err := l.Lock(ctx, "x")
	cancel()
	if err != nil {
		t.Fatal(err)
	}
	if k.Context().Value(key{}) != "value" {
		t.Error("the values are gone")
	}
	if _, has := k.Context().Deadline(); has {
		t.Error("it has the deadline of the acquisition")
	}
	live(t, k)
	if k.Remaining() <= 0 || k.Remaining() > 30*time.Second {
		t.Errorf("%v remaining", k.Remaining())
	}
	mustUnlock(t, k)
	if cause := context.Cause(k.Context()); cause != etcdlock.ErrReleased {
		t.Errorf("cause after Unlock: %v", cause)
	}
}

func TestReentrantWithoutPrefix(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	a, b := clientLocker(t, srv, etcdlock.WithPrefix("")), clientLocker(t, srv, etcdlock.WithPrefix(""))
	k := mustLock(t, a, "x")
	_, err := b.Lock(k.Context(), "x")
	wantIs(t, "Lock under a hold of another Locker", err, etcdlock.ErrReentrant)
	mustUnlock(t, k)
}
