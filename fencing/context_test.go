package fencing

import (
	"context"
	"errors"
	"testing"
)

// take builds a lock's context over user the way a lock does: with the values
// of user, an end of its own, and the hold.
func take(t *testing.T, user context.Context, lock string, token Token) (ctx context.Context, lose func()) {
	lctx, cancel := context.WithCancelCause(context.WithoutCancel(user))
	t.Cleanup(func() { cancel(nil) })
	return NewContext(lctx, lock, token), func() { cancel(errors.New("lost")) }
}

func wantHold(t *testing.T, ctx context.Context, lock string, token Token) {
	t.Helper()
	gotLock, got, ok := FromContext(ctx)
	if !ok || gotLock != lock || got != token {
		t.Errorf("FromContext = %q, %d, %v, want %q, %d, true", gotLock, got, ok, lock, token)
	}
}

func wantNoHold(t *testing.T, ctx context.Context) {
	t.Helper()
	lock, token, ok := FromContext(ctx)
	if ok || lock != "" || token != None {
		t.Errorf("FromContext = %q, %d, %v, want nothing", lock, token, ok)
	}
}

func TestContextCarriesNothing(t *testing.T) {
	wantNoHold(t, t.Context())
}

func TestContextOneHold(t *testing.T) {
	ctx, lose := take(t, t.Context(), "a", 5)
	wantHold(t, ctx, "a", 5)

	derived, cancel := context.WithCancel(ctx)
	cancel()
	wantHold(t, derived, "a", 5)
	wantHold(t, context.WithoutCancel(derived), "a", 5)

	lose()
	wantHold(t, ctx, "a", 5) // for the fence to refuse
	wantHold(t, context.WithoutCancel(ctx), "a", 5)
}

func TestContextTwoHolds(t *testing.T) {
	a, loseA := take(t, t.Context(), "a", 5)
	b, loseB := take(t, a, "b", 9)
	wantNoHold(t, b)
	wantNoHold(t, context.WithoutCancel(b))
	wantHold(t, a, "a", 5)

	loseB()
	wantHold(t, b, "a", 5)
	loseA()
	wantNoHold(t, b) // none is live, or so it seems: a lock that is being shut down may be held
}

func TestContextOuterHoldLost(t *testing.T) {
	a, loseA := take(t, t.Context(), "a", 5)
	b, loseB := take(t, a, "b", 9)
	loseA()
	wantHold(t, b, "b", 9)
	loseB()
	wantNoHold(t, b)
}

// The same lock, taken again under the context of a hold that was lost.
func TestContextLockTakenAgain(t *testing.T) {
	a, lose := take(t, t.Context(), "a", 5)
	lose()
	again, loseAgain := take(t, context.WithoutCancel(a), "a", 9)
	wantHold(t, again, "a", 9)
	loseAgain()
	wantHold(t, again, "a", 9) // for the fence to refuse
}

// A loss of one hold must not let the innermost of the dead stand in for the
// live one, nor hide that two are left.
func TestContextThreeHolds(t *testing.T) {
	a, loseA := take(t, t.Context(), "a", 5)
	b, loseB := take(t, a, "b", 9)
	c, loseC := take(t, b, "c", 7)
	wantNoHold(t, c)
	loseC()
	wantNoHold(t, c)
	loseA()
	wantHold(t, c, "b", 9)
	loseB()
	wantNoHold(t, c)
}

func TestContextSameHoldTwice(t *testing.T) {
	a, lose := take(t, t.Context(), "a", 5)
	again := NewContext(a, "a", 5)
	wantHold(t, again, "a", 5)
	wantNoHold(t, NewContext(again, "a", 6)) // another acquisition of the same lock
	wantNoHold(t, NewContext(again, "b", 5)) // another lock with the same number
	lose()
	wantHold(t, again, "a", 5)
}

func TestContextLivesAsLongAsWhatItWasGiven(t *testing.T) {
	request, cancel := context.WithCancel(t.Context())
	a := NewContext(request, "a", 5)
	b, _ := take(t, a, "b", 9)
	wantNoHold(t, b)
	cancel() // ends a's hold, and no context of b's
	wantHold(t, b, "b", 9)
}

func TestContextDropsHolds(t *testing.T) {
	a, loseA := take(t, t.Context(), "a", 5)
	b, _ := take(t, a, "b", 9)
	for _, none := range []Token{None, -1} {
		dropped := NewContext(b, "b", none)
		wantNoHold(t, dropped)
		c, _ := take(t, dropped, "c", 11)
		wantHold(t, c, "c", 11)
	}
	loseA()
	wantNoHold(t, NewContext(b, "", None))
	wantHold(t, b, "b", 9)
}
