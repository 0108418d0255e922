package fencing

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// call is an Advance or Enter under way in a synctest bubble.
type call struct {
	done  bool
	leave func()
	err   error
}

func goEnter(ctx context.Context, g *Gate, token Token) *call {
	c := new(call)
	go func() {
		c.leave, c.err = g.Enter(ctx, token)
		c.done = true
	}()
	synctest.Wait()
	return c
}

func goAdvance(ctx context.Context, g *Gate, token Token) *call {
	c := new(call)
	go func() {
		c.err = g.Advance(ctx, token)
		c.done = true
	}()
	synctest.Wait()
	return c
}

func (c *call) mustWait(t *testing.T) {
	t.Helper()
	synctest.Wait()
	if c.done {
		t.Fatalf("the call returned %v, want it to wait", c.err)
	}
}

func (c *call) mustReturn(t *testing.T) error {
	t.Helper()
	synctest.Wait()
	if !c.done {
		t.Fatal("the call waits, want it to return")
	}
	return c.err
}

func (c *call) mustSucceed(t *testing.T) {
	t.Helper()
	if err := c.mustReturn(t); err != nil {
		t.Fatalf("the call returned %v, want success", err)
	}
}

func TestGateHigherTokenClosesThenWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Gate
		first, second := enter(t, &g, 5), enter(t, &g, 5)
		in, armed := goEnter(t.Context(), &g, 9), goAdvance(t.Context(), &g, 9)
		in.mustWait(t)
		armed.mustWait(t)
		wantMark(t, &g, 9)
		wantStale(t, &g, 5, 9) // closed to lower ones already, at once and for the nested too
		first()
		in.mustWait(t)
		armed.mustWait(t)
		second()
		in.mustSucceed(t)
		armed.mustSucceed(t)
		in.leave()
	})
}

func TestGateWaitersOfOneTokenEnterTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Gate
		leave := enter(t, &g, 5)
		calls := []*call{goEnter(t.Context(), &g, 9), goEnter(t.Context(), &g, 9), goEnter(t.Context(), &g, 9)}
		for _, c := range calls {
			c.mustWait(t)
		}
		leave()
		for _, c := range calls {
			c.mustSucceed(t)
		}
		next := goEnter(t.Context(), &g, 10)
		for _, c := range calls {
			next.mustWait(t)
			c.leave()
		}
		next.mustSucceed(t)
		next.leave()
	})
}

// TestGateNestedEnter walks through a holder that enters again while it is
// inside: alone, and with a higher token waiting for it.
func TestGateNestedEnter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Gate
		outer := enter(t, &g, 5)
		inner := goEnter(t.Context(), &g, 5)
		inner.mustSucceed(t)
		inner.leave()

		next := goEnter(t.Context(), &g, 9)
		next.mustWait(t)
		nested := goEnter(t.Context(), &g, 5)
		if err := nested.mustReturn(t); !errors.Is(err, ErrStale) {
			t.Errorf("nested Enter(5) behind a waiting 9 = %v, want it stale", err)
		}
		outer()
		next.mustSucceed(t)
		again := goEnter(t.Context(), &g, 9)
		again.mustSucceed(t)
		again.leave()
		next.leave()
	})
}

func TestGateHigherTokenFromInsideIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Gate
		leave := enter(t, &g, 5)
		defer leave()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		if _, err := g.Enter(ctx, 9); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Enter(9) from inside with 5 = %v, want the deadline", err)
		}
		if waited := time.Since(start); waited != time.Minute {
			t.Errorf("Enter(9) waited %v, want the minute its context had", waited)
		}
	})
}

func TestGateWaitEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Gate
		leave := enter(t, &g, 5)
		lost := errors.New("the lock is lost")
		ctx, cancel := context.WithCancelCause(t.Context())
		in, armed := goEnter(ctx, &g, 9), goAdvance(ctx, &g, 9)
		in.mustWait(t)
		armed.mustWait(t)
		cancel(lost)
		for _, c := range []*call{in, armed} {
			if err := c.mustReturn(t); !errors.Is(err, context.Canceled) || !errors.Is(err, lost) || errors.Is(err, ErrStale) {
				t.Errorf("the call returned %v, want the context's error and its cause", err)
			}
		}
		in.leave()
		wantMark(t, &g, 9) // stays raised
		wantStale(t, &g, 5, 9)
		leave()
		enter(t, &g, 9)() // and nobody was admitted
		enter(t, &g, 10)()
	})
}

// TestGateContextEndsAsTheGateOpens makes both happen before the waiter can look.
// Whichever it is woken by, nothing is admitted under a context that is done.
func TestGateContextEndsAsTheGateOpens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 100 { // select picks either
			var g Gate
			enter(t, &g, 5)
			ctx, cancel := context.WithCancel(t.Context())
			in := goEnter(ctx, &g, 9)
			in.mustWait(t)
			g.mu.Lock()
			g.count = 0 // what the leave does
			g.change()
			cancel()
			g.mu.Unlock()
			if err := in.mustReturn(t); !errors.Is(err, context.Canceled) {
				t.Fatalf("Enter(9) = %v, want the context's error", err)
			}
			enter(t, &g, 10)()
		}
	})
}

// TestGateLeaveIsIdempotent calls a leave again when its seat has passed to
// another entry, which must not be ended by it.
func TestGateLeaveIsIdempotent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Gate
		late := enter(t, &g, 5)
		late()
		late()
		leave := enter(t, &g, 5)
		late()
		armed := goAdvance(t.Context(), &g, 9)
		armed.mustWait(t)
		late()
		armed.mustWait(t)
		leave()
		armed.mustSucceed(t)
	})
}

func TestGateWaiterIsOvertaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Gate
		leave := enter(t, &g, 5)
		in, armed := goEnter(t.Context(), &g, 9), goAdvance(t.Context(), &g, 9)
		next := goEnter(t.Context(), &g, 12)
		for _, c := range []*call{in, armed} { // at once, with 5 still inside
			var stale *StaleError
			if err := c.mustReturn(t); !errors.As(err, &stale) || stale.Token != 9 || stale.HighWater != 12 {
				t.Errorf("the call returned %v, want 9 stale at 12", err)
			}
		}
		next.mustWait(t)
		leave()
		next.mustSucceed(t)
		next.leave()
	})
}

// TestGateAdvanceAtMarkStillWaits shows the mark a second time while the first
// to show it waits: the mark being right is not enough.
func TestGateAdvanceAtMarkStillWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Gate
		leave := enter(t, &g, 5)
		ctx, cancel := context.WithCancel(t.Context())
		goAdvance(ctx, &g, 9).mustWait(t)
		cancel()
		armed := goAdvance(t.Context(), &g, 9)
		armed.mustWait(t)
		leave()
		armed.mustSucceed(t)
	})
}

func TestGateLeaveFromAnotherGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Gate
		leave := enter(t, &g, 5)
		in := goEnter(t.Context(), &g, 9)
		for range 10 {
			go leave()
		}
		in.mustSucceed(t)
		goEnter(t.Context(), &g, 9).mustSucceed(t)
		in.leave()
	})
}

func TestGateResetBesideThoseInside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Gate
		const bogus = 1 << 62
		leave := enter(t, &g, bogus)
		if !g.Reset(bogus, 5) {
			t.Fatal("Reset refused")
		}
		lower := goEnter(t.Context(), &g, 6) // below what is inside, and waits for it all the same
		armed := goAdvance(t.Context(), &g, 6)
		lower.mustWait(t)
		armed.mustWait(t)
		leave()
		lower.mustSucceed(t)
		armed.mustSucceed(t)
		lower.leave()
		wantMark(t, &g, 6)
	})
}

func TestGateResetBesideThoseWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g Gate
		const bogus = 1 << 62
		leave := enter(t, &g, 5)
		in, armed := goEnter(t.Context(), &g, bogus), goAdvance(t.Context(), &g, bogus)
		if !g.Reset(bogus, 5) {
			t.Fatal("Reset refused")
		}
		for _, c := range []*call{in, armed} {
			if err := c.mustReturn(t); err == nil || errors.Is(err, ErrStale) || errors.Is(err, ErrNoToken) {
				t.Errorf("the call returned %v, want an error of its own kind", err)
			}
		}
		wantMark(t, &g, 5)
		enter(t, &g, 5)()
		leave()
	})
}

// TestGateUnderLoad lets many holders in and out and watches from inside: one
// token at a time, never one lower than before, and none lower than what an
// Advance has returned for.
func TestGateUnderLoad(t *testing.T) {
	var (
		g        Gate
		wg       sync.WaitGroup
		shown    atomic.Int64 // tokens are handed out in order
		applied  atomic.Int64 // the token of the last write
		armed    atomic.Int64 // the highest token Advance has returned for
		accepted atomic.Int64
		inside   [8]atomic.Int64
	)
	enough := int64(20_000)
	for w := range inside {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(uint64(w), 1))
			for shown.Load() < enough {
				token := shown.Load()
				if random.IntN(3) == 0 || token == 0 {
					token = shown.Add(1)
				}
				if random.IntN(4) == 0 {
					if err := g.Advance(t.Context(), Token(token)); err == nil {
						raise(&armed, token)
					} else if !errors.Is(err, ErrStale) {
						t.Errorf("Advance(%d) = %v", token, err)
					}
				}
				floor := armed.Load()
				leave, err := g.Enter(t.Context(), Token(token))
				if err != nil {
					if !errors.Is(err, ErrStale) {
						t.Errorf("Enter(%d) = %v", token, err)
					}
					shown.Add(1)
					continue
				}
				accepted.Add(1)
				if token < floor {
					t.Errorf("%d was admitted after Advance had returned for %d", token, floor)
				}
				inside[w].Store(token)
				if before := applied.Swap(token); before > token {
					t.Errorf("%d was applied after %d", token, before)
				}
				runtime.Gosched()
				for i := range inside {
					if other := inside[i].Load(); other != 0 && other != token {
						t.Errorf("%d is inside together with %d", other, token)
					}
				}
				inside[w].Store(0)
				leave()
				if random.IntN(8) == 0 {
					leave()
				}
			}
		})
	}
	wg.Wait()
	if accepted.Load() == 0 {
		t.Error("nobody was ever admitted")
	}
	t.Logf("%d entries", accepted.Load())
}

func raise(v *atomic.Int64, to int64) {
	for {
		now := v.Load()
		if now >= to || v.CompareAndSwap(now, to) {
			return
		}
	}
}
