package fencing

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
)

// Gate is a [Fence] in memory. It guards state that lives and dies with its
// process: a map, a connection to a device, a cache. Its mark is gone after a
// restart and unknown to other replicas, so state that outlives the process
// needs a durable fence that keeps its mark where the data is.
//
// Write to the guarded state between [Gate.Enter] and leave; that makes check and
// write one step. At any moment everybody inside shows the same token. A higher
// token closes the gate to lower ones first and then waits for those inside to
// leave, so a holder that is stuck inside delays its successor and is never
// overtaken in the middle of a write. Keep what happens inside short.
//
// Use one Gate for what one lock name protects. Tokens carry no name, and a
// higher token of another lock would shut the rightful holder out.
//
// The zero Gate is ready for use, with no token seen and no resource name. A Gate
// is safe for concurrent use and must not be copied after first use.
type Gate struct {
	resource string

	// settled repeats mark while nobody with another token is inside, and is None
	// otherwise. Advance at the mark, the common case, needs nothing else.
	settled atomic.Int64

	mu      sync.Mutex
	mark    Token
	token   Token         // shown by everybody inside; of no meaning when count is 0
	count   int           // entries that have not left
	spare   *seat         // seats nobody sits on
	changed chan struct{} // closed at the next change of mark or last leave; nil when nobody waits
}

// seat belongs to one entry at a time and is used again afterwards. A leave func
// remembers the turn it was made for, so that calling it late or twice cannot
// end the entry of whoever has the seat by then.
type seat struct {
	gate *Gate
	turn uint64
	next *seat
}

// NewGate returns a Gate whose errors name the resource it guards.
func NewGate(resource string) *Gate { return &Gate{resource: resource} }

// Advance raises the mark to t and waits until nobody with a lower token is
// inside. From its return on, no such holder gets in or is in. See [Fence] for the
// refusals and for what it does not protect.
//
// If ctx ends during the wait the error matches ctx's error and its cause, and
// the mark stays raised: lower tokens are refused from the moment Advance began to
// wait. A ctx already done raises nothing.
func (g *Gate) Advance(ctx context.Context, t Token) error {
	if err := vet(ctx, t); err != nil {
		return err
	}
	if Token(g.settled.Load()) == t {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.pass(ctx, t)
}

// Enter admits the holder of t, raising the mark to t. Until leave is called, no
// holder of another token is inside; holders of t share the inside among them,
// and what they do to each other is theirs to order.
//
// Enter waits, bounded by ctx, for those inside with a lower token. If ctx ends
// first the error matches ctx's error and its cause, nobody is admitted, and the
// mark stays raised. A ctx already done raises nothing. A token below the mark is
// refused at once with a [*StaleError], also when the mark passes it during
// the wait; an invalid one with an error matching [ErrNoToken].
//
// A holder that is inside may enter again with the same token. That never
// blocks: it is admitted, or refused as stale because a higher token is waiting.
// Entering with a higher token from inside waits for oneself, until ctx ends.
//
// The end of ctx does not end an entry. Call leave when done, from any goroutine;
// calls after the first do nothing. It is never nil: on an error it is a func that
// does nothing. Enter allocates once, 24 bytes for leave.
func (g *Gate) Enter(ctx context.Context, t Token) (leave func(), err error) {
	if err := vet(ctx, t); err != nil {
		return notInside, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.pass(ctx, t); err != nil {
		return notInside, err
	}
	g.token = t
	g.count++
	s := g.spare
	if s == nil {
		s = &seat{gate: g}
	} else {
		g.spare = s.next
	}
	turn := s.turn
	return func() { s.leave(turn) }, nil
}

// HighWater returns the mark: the highest token seen, or [None]. It is for people
// and dashboards. A check of one's own against it protects nothing.
func (g *Gate) HighWater() Token {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mark
}

// Reset sets the mark to to if it is from, and reports whether it did. It is the
// way back after a bogus token, too high for any real holder to reach, was shown
// by mistake; to is then the token of the present holder, or [None]. A negative to
// is refused.
//
// Reset moves only the mark. Those inside stay until they leave, and whoever
// comes next waits for them, with a higher token or a lower one. Those waiting
// with a token above to are refused with an error; should they ask again they
// raise the mark again, so stop the source of the bogus token first. Tokens
// between to and from that were refused before are accepted from now on. Leave
// this to an operator, and log it.
func (g *Gate) Reset(from, to Token) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mark != from || to < None {
		return false
	}
	g.setMark(to)
	return true
}

// vet refuses what must not touch the mark.
func vet(ctx context.Context, t Token) error {
	if !t.Valid() {
		return noTokenError(t)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("fencing: token %d was not shown: %w", t, contextError(ctx))
	}
	return nil
}

// pass returns nil once t is the mark and nobody with another token is inside.
// It is called with mu held, lets go of it while waiting, and returns with it held.
func (g *Gate) pass(ctx context.Context, t Token) error {
	if t < g.mark {
		return g.stale(t)
	}
	if t > g.mark {
		g.setMark(t)
	}
	for g.count > 0 && g.token != t {
		if g.changed == nil {
			g.changed = make(chan struct{})
		}
		changed := g.changed
		g.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		g.mu.Lock()
		switch {
		case t < g.mark:
			return g.stale(t)
		case t > g.mark:
			// Raising it once more would undo what the operator just did.
			return fmt.Errorf("fencing: the high-water mark%s was reset to %d while token %d waited", g.of(), g.mark, t)
		case ctx.Err() != nil:
			return fmt.Errorf("fencing: token %d raised the high-water mark%s but did not outwait those inside: %w",
				t, g.of(), contextError(ctx))
		}
	}
	return nil
}

func (s *seat) leave(turn uint64) {
	g := s.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	if s.turn != turn {
		return
	}
	s.turn++
	s.next, g.spare = g.spare, s
	g.count--
	if g.count == 0 {
		g.change()
	}
}

func (g *Gate) setMark(t Token) {
	g.mark = t
	g.change()
}

// change follows every change of the mark and of who is inside, except an entry,
// which finds the gate settled and leaves it so.
func (g *Gate) change() {
	settled := g.mark
	if g.count > 0 && g.token != g.mark {
		settled = None
	}
	if g.settled.Load() != int64(settled) { // a store costs several times a load
		g.settled.Store(int64(settled))
	}
	if g.changed != nil {
		close(g.changed)
		g.changed = nil
	}
}

func (g *Gate) stale(t Token) error {
	return &StaleError{Resource: g.resource, Token: t, HighWater: g.mark}
}

func (g *Gate) of() string {
	if g.resource == "" {
		return ""
	}
	return " of " + strconv.Quote(g.resource)
}

func notInside() {}
