package fencingtest

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/revfence/revfence/fencing"
)

func TestGateConforms(t *testing.T) {
	Run(t, func(testing.TB) Harness {
		g := new(gated)
		return Harness{Fence: g, Write: g.Write, Read: g.Read}
	})
}

func TestRegisterConforms(t *testing.T) {
	Run(t, func(testing.TB) Harness { return newRegister().harness() })
}

// TestRegisterWithGapConforms keeps others out across the gap, as a transaction
// holds a row.
func TestRegisterWithGapConforms(t *testing.T) {
	Run(t, func(testing.TB) Harness {
		r := newRegister()
		r.between = func(ctx context.Context, _ *register) { Gap(ctx) }
		return r.harness()
	})
}

// TestOptimisticConforms lets everybody through the gap and compares again when
// it writes, as an etcd transaction does.
func TestOptimisticConforms(t *testing.T) {
	Run(t, func(testing.TB) Harness {
		r := newRegister()
		h := r.harness()
		h.Write = func(ctx context.Context, t fencing.Token, value string) error {
			if err := r.Advance(ctx, t); err != nil {
				return err
			}
			Gap(ctx)
			return r.Write(ctx, t, value)
		}
		return h
	})
}

// comeApart lets go of the register between the check and the write, for as long
// as a round trip to a store next door would take, which is never twice the same.
func comeApart(_ context.Context, r *register) {
	r.open(func() {
		for range 1 + rand.IntN(20) {
			runtime.Gosched()
		}
	})
}

// TestWrongFencesFail keeps a fence for each way to be wrong, and the properties
// that must see it.
func TestWrongFencesFail(t *testing.T) {
	for _, wrong := range []struct {
		name    string
		breakIt func(r *register)
		fails   []string
	}{
		{"equality only", func(r *register) {
			r.accepts = func(mark, t fencing.Token) bool { return mark == fencing.None || t == mark }
		}, []string{"LowerToken", "AdvanceArmsWrite", "WriteArmsAdvance", "ReadArms", "BigTokens", "Handover"}},
		{"check and write not atomic, gap in reach", func(r *register) {
			r.between = func(ctx context.Context, r *register) {
				r.open(func() { Gap(ctx) })
			}
		}, []string{"Gap"}},
		{"check and write not atomic, gap out of reach", func(r *register) {
			r.between = comeApart
		}, []string{"Handover", "MixedTokens"}},
		{"mark forgotten on restart", func(r *register) {
			r.forget = true
		}, []string{"Reopen"}},
		{"accepts everything", func(r *register) {
			r.accepts = func(_, _ fencing.Token) bool { return true }
		}, []string{"LowerToken", "RefusalChangesNothing", "BigTokens", "Reopen", "Handover", "MixedTokens"}},
		{"refuses equal", func(r *register) {
			r.accepts = func(mark, t fencing.Token) bool { return t > mark }
		}, []string{"FirstToken", "EqualToken"}},
		{"compares as float64", func(r *register) {
			r.accepts = func(mark, t fencing.Token) bool { return float64(t) >= float64(mark) }
		}, []string{"BigTokens"}},
		{"compares as unpadded text", func(r *register) {
			r.accepts = func(mark, t fencing.Token) bool { return mark == fencing.None || t.String() >= mark.String() }
		}, []string{"DigitCount"}},
		{"mark follows the last token down", func(r *register) {
			r.accepts = func(mark, t fencing.Token) bool { return true }
			r.raised = func(_, t fencing.Token) fencing.Token { return t }
		}, []string{"LowerToken", "RefusalChangesNothing"}},
		{"mark never rises", func(r *register) {
			r.raised = func(mark, _ fencing.Token) fencing.Token { return mark }
		}, []string{"LowerToken", "AdvanceArmsWrite", "WriteArmsAdvance", "ReadArms"}},
		{"reads without arming", func(r *register) {
			r.arms = false
		}, []string{"ReadArms", "Reopen"}},
		{"waves no token through", func(r *register) {
			r.vet = func(ctx context.Context, _ fencing.Token) error { return ctx.Err() }
			r.accepts = func(mark, t fencing.Token) bool { return t >= mark || !t.Valid() }
		}, []string{"NoToken"}},
		{"calls no token stale", func(r *register) {
			r.vet = func(ctx context.Context, t fencing.Token) error {
				if !t.Valid() {
					return &fencing.StaleError{Token: t}
				}
				return ctx.Err()
			}
		}, []string{"NoToken"}},
		{"ignores a cancelled context", func(r *register) {
			vet := r.vet
			r.vet = func(_ context.Context, t fencing.Token) error { return vet(context.Background(), t) }
		}, []string{"DoneContext"}},
		{"waits on when the context has ended", func(r *register) {
			r.deaf = true
			r.between = func(ctx context.Context, _ *register) { Gap(ctx) }
		}, []string{"WaitEnds"}},
		{"stale without numbers", func(r *register) {
			r.refuse = func(_, _ fencing.Token) error { return fencing.ErrStale }
		}, []string{"LowerToken"}},
		{"stale with the numbers swapped", func(r *register) {
			r.refuse = func(t, mark fencing.Token) error { return &fencing.StaleError{Token: mark, HighWater: t} }
		}, []string{"LowerToken"}},
		{"stale as some other error", func(r *register) {
			r.refuse = func(_, _ fencing.Token) error { return errors.New("no rows affected") }
		}, []string{"LowerToken", "Handover"}},
	} {
		t.Run(wrong.name, func(t *testing.T) {
			for _, name := range wrong.fails {
				failures := record(propertyNamed(t, name), func(testing.TB) Harness {
					r := newRegister()
					wrong.breakIt(r)
					return r.harness()
				})
				if len(failures) == 0 {
					t.Errorf("%s passed", name)
					continue
				}
				t.Logf("%s: %s", name, failures[0])
			}
		})
	}
}

func propertyNamed(t *testing.T, name string) property {
	t.Helper()
	for _, p := range properties {
		if p.name == name {
			return p
		}
	}
	t.Fatalf("no property is named %s", name)
	return property{}
}

// TestEveryPropertyCanFail is against properties that pass whatever they get.
func TestEveryPropertyCanFail(t *testing.T) {
	refusal := errors.New("out of order")
	for _, p := range properties {
		failures := record(p, func(testing.TB) Harness {
			r := newRegister()
			r.vet = func(context.Context, fencing.Token) error { return refusal }
			return r.harness()
		})
		if len(failures) == 0 {
			t.Errorf("%s passed with a resource that is out of order", p.name)
		}
		failures = record(p, func(testing.TB) Harness { return Harness{} })
		if len(failures) == 0 {
			t.Errorf("%s passed with an empty harness", p.name)
		}
	}
}

func TestGapOutsideTheSuiteDoesNothing(t *testing.T) {
	Gap(context.Background())
	called := 0
	Gap(withGap(context.Background(), func() { called++ }))
	if called != 1 {
		t.Errorf("Gap called the suite back %d times, want 1", called)
	}
}
