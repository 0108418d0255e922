package fencing

import (
	"context"
	"errors"
	"math"
	"testing"
)

func enter(t *testing.T, g *Gate, token Token) (leave func()) {
	t.Helper()
	leave, err := g.Enter(t.Context(), token)
	if err != nil {
		t.Fatalf("Enter(%d) = %v, want it admitted", token, err)
	}
	return leave
}

func wantMark(t *testing.T, g *Gate, mark Token) {
	t.Helper()
	if got := g.HighWater(); got != mark {
		t.Errorf("HighWater() = %d, want %d", got, mark)
	}
}

// wantStale checks that both ways in refuse t at once.
func wantStale(t *testing.T, g *Gate, token, mark Token) {
	t.Helper()
	check := func(call string, err error) {
		t.Helper()
		var stale *StaleError
		if !errors.As(err, &stale) || *stale != (StaleError{Resource: g.resource, Token: token, HighWater: mark}) {
			t.Errorf("%s(%d) = %v, want it stale at %d", call, token, err, mark)
		}
	}
	check("Advance", g.Advance(t.Context(), token))
	leave, err := g.Enter(t.Context(), token)
	check("Enter", err)
	leave()
}

func TestGateOrdersTokens(t *testing.T) {
	var g Gate
	wantMark(t, &g, None)
	for _, token := range []Token{1, 2, 2, 1 << 53, 1<<53 + 1, math.MaxInt64} {
		if err := g.Advance(t.Context(), token); err != nil {
			t.Fatalf("Advance(%d) = %v", token, err)
		}
		wantMark(t, &g, token)
		enter(t, &g, token)()
	}
	wantStale(t, &g, 1<<53, math.MaxInt64)
	wantStale(t, &g, math.MaxInt64-1, math.MaxInt64)
	wantMark(t, &g, math.MaxInt64)
}

func TestGateEnterRaisesMark(t *testing.T) {
	g := NewGate("the ledger")
	leave := enter(t, g, 5)
	wantStale(t, g, 4, 5)
	leave()
	wantStale(t, g, 4, 5) // also with nobody inside
	enter(t, g, 6)()
	wantStale(t, g, 5, 6)
}

func TestGateRefusesNoToken(t *testing.T) {
	for _, token := range []Token{None, -1, math.MinInt64} {
		var g Gate
		for range 2 { // with no mark yet, then with one
			mark := g.HighWater()
			if err := g.Advance(t.Context(), token); !errors.Is(err, ErrNoToken) || errors.Is(err, ErrStale) {
				t.Errorf("Advance(%d) = %v, want an error matching ErrNoToken only", token, err)
			}
			leave, err := g.Enter(t.Context(), token)
			if !errors.Is(err, ErrNoToken) || errors.Is(err, ErrStale) {
				t.Errorf("Enter(%d) = %v, want an error matching ErrNoToken only", token, err)
			}
			leave()
			wantMark(t, &g, mark)
			enter(t, &g, 7)()
		}
	}
}

func TestGateRefusesDoneContext(t *testing.T) {
	var g Gate
	enter(t, &g, 5)()
	lost := errors.New("the lock is lost")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(lost)
	for _, token := range []Token{4, 5, 9} {
		err := g.Advance(ctx, token)
		if !errors.Is(err, context.Canceled) || !errors.Is(err, lost) || errors.Is(err, ErrStale) {
			t.Errorf("Advance(%d) = %v, want the context's error and its cause", token, err)
		}
		leave, err := g.Enter(ctx, token)
		if !errors.Is(err, context.Canceled) || !errors.Is(err, lost) || errors.Is(err, ErrStale) {
			t.Errorf("Enter(%d) = %v, want the context's error and its cause", token, err)
		}
		leave()
	}
	wantMark(t, &g, 5)
}

func TestGateEqualTokensShare(t *testing.T) {
	var g Gate
	first, second := enter(t, &g, 5), enter(t, &g, 5)
	if err := g.Advance(t.Context(), 5); err != nil {
		t.Errorf("Advance(5) beside holders of 5 = %v", err)
	}
	first()
	third := enter(t, &g, 5)
	second()
	third()
	enter(t, &g, 6)()
}

func TestGateReset(t *testing.T) {
	var g Gate
	if err := g.Advance(t.Context(), 1<<62); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		from, to Token
		want     bool
		mark     Token
	}{
		{5, 4, false, 1 << 62},
		{1<<62 - 1, 4, false, 1 << 62},
		{1 << 62, -1, false, 1 << 62},
		{1 << 62, 40, true, 40},
		{1 << 62, 30, false, 40},
		{40, 50, true, 50},
		{50, 50, true, 50},
		{50, None, true, None},
		{None, 7, true, 7},
	} {
		if got := g.Reset(tt.from, tt.to); got != tt.want {
			t.Errorf("Reset(%d, %d) = %v, want %v", tt.from, tt.to, got, tt.want)
		}
		wantMark(t, &g, tt.mark)
		if tt.mark > 1 {
			wantStale(t, &g, tt.mark-1, tt.mark)
		}
		if tt.mark.Valid() {
			enter(t, &g, tt.mark)()
		}
	}
	enter(t, &g, 7)()
}

func TestGateAllocations(t *testing.T) {
	var g Gate
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if n := testing.AllocsPerRun(1000, func() {
		if err := g.Advance(ctx, 5); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("Advance at the mark allocates %v times, want 0", n)
	}
	next := Token(5)
	if n := testing.AllocsPerRun(1000, func() {
		next++
		if err := g.Advance(ctx, next); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("Advance above the mark allocates %v times, want 0", n)
	}
	if n := testing.AllocsPerRun(1000, func() {
		leave, err := g.Enter(ctx, next)
		if err != nil {
			t.Fatal(err)
		}
		leave()
	}); n != 1 {
		t.Errorf("Enter and leave allocate %v times, want 1", n)
	}
}
