package fencingtest

import (
	"context"
	"testing"

	"github.com/revfence/revfence/fencing"
)

// Harness is one resource with its fence, reduced to a single text value. It
// must be safe for concurrent use. Every call must end when its context does, also
// while it waits for another call.
type Harness struct {
	// Fence is the fence under test, for the same mark as Write and Read.
	Fence fencing.Fence

	// Write checks t, raises the mark to it and sets the value, in one atomic step.
	// It returns nil only if the value was set, and an error matching
	// fencing.ErrStale or fencing.ErrNoToken only if it was not.
	Write func(ctx context.Context, t fencing.Token, value string) error

	// Read checks t and raises the mark to it first, and then reads the value.
	Read func(ctx context.Context, t fencing.Token) (value string, err error)

	// Reopen ends whatever keeps the mark, starts it again over the same data, and
	// returns a new harness for it; the old one is not used any more. Leave it nil
	// for state that dies with its process, mark and data together.
	Reopen func(tb testing.TB) Harness
}

// Run runs the conformance suite, one subtest per property. It calls open for
// each of them, to get a new resource that has seen no token; open registers
// its clean-up with tb.Cleanup. It takes about two seconds on top of what the
// resource takes.
func Run(t *testing.T, open func(tb testing.TB) Harness) {
	t.Helper()
	for _, p := range properties {
		t.Run(p.name, func(t *testing.T) { p.check(t, open) })
	}
}

// property is one thing that a fence must do. It takes a testing.TB so that the
// suite's own tests can watch it fail.
type property struct {
	name  string
	check func(tb testing.TB, open func(tb testing.TB) Harness)
}

var properties = []property{
	{"FirstToken", checkFirstToken},
	{"EqualToken", checkEqualToken},
	{"LowerToken", checkLowerToken},
	{"AdvanceArmsWrite", checkAdvanceArmsWrite},
	{"WriteArmsAdvance", checkWriteArmsAdvance},
	{"ReadArms", checkReadArms},
	{"RefusalChangesNothing", checkRefusalChangesNothing},
	{"NoToken", checkNoToken},
	{"BigTokens", checkBigTokens},
	{"DigitCount", checkDigitCount},
	{"DoneContext", checkDoneContext},
	{"Reopen", checkReopen},
	{"Gap", checkGap},
	{"WaitEnds", checkWaitEnds},
	{"Handover", checkHandover},
	{"MixedTokens", checkMixedTokens},
}

type gapKey struct{}

// Gap marks the moment between the check and the write. A Write of a [Harness]
// calls it there, with the context it was given, if it has such a moment: inside
// a transaction after the fence statement, inside a critical section before the
// assignment. It may be called again when a step is retried. Outside the suite it
// does nothing.
func Gap(ctx context.Context) {
	if f, ok := ctx.Value(gapKey{}).(func()); ok {
		f()
	}
}

func withGap(ctx context.Context, f func()) context.Context {
	return context.WithValue(ctx, gapKey{}, f)
}
