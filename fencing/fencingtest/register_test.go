package fencingtest

import (
	"context"
	"sync"
	"testing"

	"github.com/revfence/revfence/fencing"
)

// register is a value with a fence whose every rule can be broken. As made by
// newRegister it keeps them all.
type register struct {
	*disk

	accepts func(mark, t fencing.Token) bool
	raised  func(mark, t fencing.Token) fencing.Token
	vet     func(ctx context.Context, t fencing.Token) error
	refuse  func(t, mark fencing.Token) error
	between func(ctx context.Context, r *register) // called between check and write
	arms    bool                                   // Read raises the mark
	forget  bool                                   // Reopen loses the mark
	deaf    bool                                   // waiting for another call goes on when the context has ended
}

// disk is what a reopening leaves.
type disk struct {
	busy  chan struct{} // holds one element while a call is inside; a mutex could not be waited for under a context
	mark  fencing.Token
	value string
}

func newDisk() *disk { return &disk{busy: make(chan struct{}, 1)} }

func (r *register) enter(ctx context.Context) error {
	if r.deaf {
		ctx = context.Background()
	}
	select { // so that it is vet alone that decides about a context already done
	case r.busy <- struct{}{}:
		return nil
	default:
	}
	select {
	case r.busy <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (r *register) leave() { <-r.busy }

// open runs f with nobody inside.
func (r *register) open(f func()) {
	r.leave()
	f()
	r.busy <- struct{}{}
}

func newRegister() *register {
	return &register{
		disk:    newDisk(),
		accepts: func(mark, t fencing.Token) bool { return t >= mark },
		raised:  func(mark, t fencing.Token) fencing.Token { return max(mark, t) },
		vet: func(ctx context.Context, t fencing.Token) error {
			if !t.Valid() {
				return fencing.ErrNoToken
			}
			return ctx.Err()
		},
		refuse: func(t, mark fencing.Token) error {
			return &fencing.StaleError{Token: t, HighWater: mark}
		},
		between: func(context.Context, *register) {},
		arms:    true,
	}
}

// check is called inside.
func (r *register) check(ctx context.Context, t fencing.Token) error {
	if err := r.vet(ctx, t); err != nil {
		return err
	}
	if !r.accepts(r.mark, t) {
		return r.refuse(t, r.mark)
	}
	r.mark = r.raised(r.mark, t)
	return nil
}

func (r *register) Advance(ctx context.Context, t fencing.Token) error {
	if err := r.enter(ctx); err != nil {
		return err
	}
	defer r.leave()
	return r.check(ctx, t)
}

func (r *register) Write(ctx context.Context, t fencing.Token, value string) error {
	if err := r.enter(ctx); err != nil {
		return err
	}
	defer r.leave()
	if err := r.check(ctx, t); err != nil {
		return err
	}
	r.between(ctx, r)
	r.value = value
	return nil
}

func (r *register) Read(ctx context.Context, t fencing.Token) (string, error) {
	if err := r.enter(ctx); err != nil {
		return "", err
	}
	defer r.leave()
	before := r.mark
	if err := r.check(ctx, t); err != nil {
		return "", err
	}
	if !r.arms {
		r.mark = before
	}
	return r.value, nil
}

func (r *register) Reopen(testing.TB) Harness {
	again := *r
	again.disk = newDisk()
	r.busy <- struct{}{}
	defer r.leave()
	again.mark, again.value = r.mark, r.value
	if r.forget {
		again.mark = fencing.None
	}
	return again.harness()
}

func (r *register) harness() Harness {
	return Harness{Fence: r, Write: r.Write, Read: r.Read, Reopen: r.Reopen}
}

// gated is a value behind a fencing.Gate.
type gated struct {
	fencing.Gate
	mu    sync.Mutex // holders of one token share the gate
	value string
}

func (g *gated) Write(ctx context.Context, t fencing.Token, value string) error {
	leave, err := g.Enter(ctx, t)
	if err != nil {
		return err
	}
	defer leave()
	Gap(ctx)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.value = value
	return nil
}

func (g *gated) Read(ctx context.Context, t fencing.Token) (string, error) {
	leave, err := g.Enter(ctx, t)
	if err != nil {
		return "", err
	}
	defer leave()
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.value, nil
}
