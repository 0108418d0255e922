package fencingtest

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/revfence/revfence/fencing"
)

// patience bounds each property, so that a fence that waits for ever fails.
const patience = 60 * time.Second

// subject is a harness with assertions. Its must methods end the property.
type subject struct {
	testing.TB
	Harness
	ctx context.Context
}

func start(tb testing.TB, open func(testing.TB) Harness) *subject {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	tb.Cleanup(cancel)
	s := &subject{TB: tb, Harness: open(tb), ctx: ctx}
	s.mustBeComplete()
	return s
}

func (s *subject) mustBeComplete() {
	s.Helper()
	if s.Fence == nil || s.Write == nil || s.Read == nil {
		s.Fatal("the harness lacks Fence, Write or Read")
	}
}

func (s *subject) mustAdvance(t fencing.Token) {
	s.Helper()
	if err := s.Fence.Advance(s.ctx, t); err != nil {
		s.Fatalf("Advance(%d) = %v, want it accepted", t, err)
	}
}

func (s *subject) mustWrite(t fencing.Token, value string) {
	s.Helper()
	if err := s.Write(s.ctx, t, value); err != nil {
		s.Fatalf("Write(%d, %q) = %v, want it accepted", t, value, err)
	}
}

func (s *subject) mustRead(t fencing.Token, want string) {
	s.Helper()
	got, err := s.Read(s.ctx, t)
	if err != nil {
		s.Fatalf("Read(%d) = %v, want it accepted", t, err)
	}
	if got != want {
		s.Fatalf("Read(%d) = %q, want %q", t, got, want)
	}
}

// mustBeStale checks all that can be checked of a refusal of t at mark.
func (s *subject) mustBeStale(call string, err error, t, mark fencing.Token) {
	s.Helper()
	if err == nil {
		s.Fatalf("%s with token %d was accepted, want it refused: the mark is %d", call, t, mark)
	}
	if !errors.Is(err, fencing.ErrStale) {
		s.Fatalf("%s with token %d: %v, want an error matching fencing.ErrStale", call, t, err)
	}
	if errors.Is(err, fencing.ErrNoToken) {
		s.Fatalf("%s with token %d: %v matches fencing.ErrNoToken as well as fencing.ErrStale", call, t, err)
	}
	var stale *fencing.StaleError
	if !errors.As(err, &stale) {
		s.Fatalf("%s with token %d: %v (%T), want a *fencing.StaleError", call, t, err, err)
	}
	if stale.Token != t || stale.HighWater != mark {
		s.Fatalf("%s with token %d: error has Token %d and HighWater %d, want %d and %d",
			call, t, stale.Token, stale.HighWater, t, mark)
	}
}

// mustRefuse checks that all three ways to show t find it stale.
func (s *subject) mustRefuse(t, mark fencing.Token) {
	s.Helper()
	s.mustBeStale("Write", s.Write(s.ctx, t, "written by a stale holder"), t, mark)
	s.mustBeStale("Advance", s.Fence.Advance(s.ctx, t), t, mark)
	_, err := s.Read(s.ctx, t)
	s.mustBeStale("Read", err, t, mark)
}

func checkFirstToken(tb testing.TB, open func(testing.TB) Harness) {
	s := start(tb, open)
	s.mustAdvance(1)
	s = start(tb, open)
	s.mustWrite(41, "first")
	s.mustRead(41, "first")
}

func checkEqualToken(tb testing.TB, open func(testing.TB) Harness) {
	s := start(tb, open)
	s.mustAdvance(7)
	s.mustAdvance(7)
	s.mustWrite(7, "one")
	s.mustWrite(7, "two")
	s.mustRead(7, "two")
	s.mustAdvance(7)
	s.mustRead(7, "two")
}

func checkLowerToken(tb testing.TB, open func(testing.TB) Harness) {
	s := start(tb, open)
	s.mustWrite(5, "five")
	s.mustWrite(9, "nine")
	s.mustRefuse(8, 9)
	s.mustRefuse(5, 9)
	s.mustRefuse(1, 9)
	s.mustWrite(10, "ten")
	s.mustRefuse(9, 10)
	s.mustRead(10, "ten")
}

func checkAdvanceArmsWrite(tb testing.TB, open func(testing.TB) Harness) {
	s := start(tb, open)
	s.mustWrite(5, "five")
	s.mustAdvance(9)
	s.mustRefuse(5, 9)
	s.mustRead(9, "five")
}

func checkWriteArmsAdvance(tb testing.TB, open func(testing.TB) Harness) {
	s := start(tb, open)
	s.mustAdvance(5)
	s.mustWrite(9, "nine")
	s.mustRefuse(5, 9)
	s.mustRead(9, "nine")
}

func checkReadArms(tb testing.TB, open func(testing.TB) Harness) {
	s := start(tb, open)
	s.mustWrite(5, "five")
	s.mustRead(9, "five")
	s.mustRefuse(5, 9)
	s.mustRead(9, "five")
}

func checkRefusalChangesNothing(tb testing.TB, open func(testing.TB) Harness) {
	s := start(tb, open)
	s.mustWrite(9, "nine")
	s.mustRefuse(3, 9)
	s.mustRefuse(8, 9) // a mark that fell to 3 would let 8 in
	s.mustRead(9, "nine")
	s.mustWrite(9, "nine again") // a mark that rose would refuse 9
}

func checkNoToken(tb testing.TB, open func(testing.TB) Harness) {
	for _, t := range []fencing.Token{fencing.None, -1, math.MinInt64} {
		s := start(tb, open)
		s.mustBeNoToken(t) // before any token was seen
		s.mustWrite(1, "one")
		s.mustBeNoToken(t)
		s.mustRead(1, "one")
		s.mustWrite(1, "one again")
	}
}

func (s *subject) mustBeNoToken(t fencing.Token) {
	s.Helper()
	check := func(call string, err error) {
		s.Helper()
		switch {
		case err == nil:
			s.Fatalf("%s with token %d was accepted, want it refused: it is no token", call, t)
		case errors.Is(err, fencing.ErrStale):
			s.Fatalf("%s with token %d: %v, want it told apart from stale", call, t, err)
		case !errors.Is(err, fencing.ErrNoToken):
			s.Fatalf("%s with token %d: %v, want an error matching fencing.ErrNoToken", call, t, err)
		}
	}
	check("Write", s.Write(s.ctx, t, "written without a token"))
	check("Advance", s.Fence.Advance(s.ctx, t))
	_, err := s.Read(s.ctx, t)
	check("Read", err)
}

// checkBigTokens walks over the places where a float64 merges neighbours and
// where a signed number ends.
func checkBigTokens(tb testing.TB, open func(testing.TB) Harness) {
	s := start(tb, open)
	s.mustClimb(1<<53-1, 1<<53, 1<<53+1, 1<<53+2, 1<<62, 1<<62+1, math.MaxInt64-1, math.MaxInt64)
}

// checkDigitCount walks over the places where text without leading zeros sorts
// otherwise than numbers do.
func checkDigitCount(tb testing.TB, open func(testing.TB) Harness) {
	s := start(tb, open)
	s.mustClimb(2, 9, 10, 99, 100, 999_999_999, 1_000_000_000, 999_999_999_999_999_999, 1_000_000_000_000_000_000)
}

// mustClimb shows the tokens, which rise, and after each the one before it.
func (s *subject) mustClimb(tokens ...fencing.Token) {
	s.Helper()
	for i, t := range tokens {
		if i%2 == 0 {
			s.mustAdvance(t)
		}
		s.mustWrite(t, t.String())
		if i > 0 {
			s.mustRefuse(tokens[i-1], t)
		}
		s.mustRead(t, t.String())
	}
}

func checkDoneContext(tb testing.TB, open func(testing.TB) Harness) {
	s := start(tb, open)
	s.mustWrite(5, "five")
	done, cancel := context.WithCancel(s.ctx)
	cancel()
	check := func(call string, err error) {
		s.Helper()
		if err == nil {
			s.Fatalf("%s under a cancelled context was accepted, want it refused", call)
		}
		if errors.Is(err, fencing.ErrStale) || errors.Is(err, fencing.ErrNoToken) {
			s.Fatalf("%s under a cancelled context: %v, want no verdict on the token", call, err)
		}
	}
	check("Write", s.Write(done, 9, "written under a cancelled context"))
	check("Advance", s.Fence.Advance(done, 9))
	_, err := s.Read(done, 9)
	check("Read", err)
	s.mustRead(5, "five") // the mark did not rise either
	s.mustWrite(5, "five again")
}

func checkReopen(tb testing.TB, open func(testing.TB) Harness) {
	s := start(tb, open)
	if s.Reopen == nil {
		tb.Log("no Reopen: state that dies with its process has nothing to keep")
		return
	}
	reopen := func() {
		s.Helper()
		s.Harness = s.Reopen(tb)
		s.mustBeComplete()
		if s.Reopen == nil {
			s.Fatal("the reopened harness lacks Reopen")
		}
	}
	s.mustWrite(5, "five")
	s.mustWrite(9, "nine")
	reopen() // a mark raised by a write
	s.mustRefuse(5, 9)
	s.mustRead(9, "nine")
	s.mustAdvance(12)
	reopen() // a mark raised by Advance alone
	s.mustRefuse(9, 12)
	s.mustRead(12, "nine")
	s.mustRead(15, "nine")
	reopen() // a mark raised by a read
	s.mustRefuse(12, 15)
	s.mustWrite(15, "fifteen")
}
