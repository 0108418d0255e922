package etcdlock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/revfence/revfence/etcdlock"
)

// TestRequire: a step that does not fit into what is left is refused, and the error says whether waiting can help.
func TestRequire(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	const ttl, margin = 6 * time.Second, 2 * time.Second
	l := clientLocker(t, srv, etcdlock.WithTTL(ttl), etcdlock.WithSafetyMargin(margin))
	k := mustLock(t, l, "x")
	for _, d := range []time.Duration{-time.Second, 0, time.Millisecond, 2 * time.Second} {
		if err := k.Require(d); err != nil {
			t.Errorf("Require(%v): %v", d, err)
		}
	}
	var short *etcdlock.RequireError
	refuse := func(d time.Duration, text string) {
		t.Helper()
		before := k.Remaining()
		err := k.Require(d)
		after := k.Remaining()
		if !errors.As(err, &short) {
			t.Fatalf("Require(%v) with %v left: %v, want a *RequireError", d, after, err)
		}
		if short.Name != "x" || short.Need != d || short.Longest != ttl-margin {
			t.Errorf("Require(%v): %+v", d, short)
		}
		if short.Remaining > before || short.Remaining < after {
			t.Errorf("Require(%v): %v remaining, between %v and %v", d, short.Remaining, before, after)
		}
		wantText(t, "Require", err, text)
		if errors.Is(err, etcdlock.ErrLost) {
			t.Errorf("Require(%v): %v also says that the lock is lost", d, err)
		}
	}
	refuse(ttl-margin, "is trusted for") // some of it is always gone already
	refuse(ttl-margin+1, "can never be trusted for")
	refuse(ttl, "at most 4s")
	live(t, k)

	mustUnlock(t, k)
	wantIs(t, "Require after Unlock", k.Require(0), etcdlock.ErrReleased)
	if k.Remaining() != 0 {
		t.Errorf("%v remaining after Unlock", k.Remaining())
	}

	k = mustLock(t, l, "x")
	remove(t, srv, k.Key())
	if err := k.Check(testContext(t)); !errors.Is(err, etcdlock.ErrLost) {
		t.Errorf("Check: %v", err)
	}
	wantIs(t, "Require after a loss", k.Require(0), etcdlock.ErrLost)
	wantIs(t, "Require after a loss", k.Require(ttl), etcdlock.ErrLost)
}
