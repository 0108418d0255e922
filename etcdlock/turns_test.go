package etcdlock

import (
	"container/list"
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

func newTurns() *turns { return &turns{names: make(map[string]*list.List)} }

// TestTurnsInOrder: goroutines of one process are served first come, first served, and names do not matter to each
// other.
func TestTurnsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns, ctx := newTurns(), t.Context()
		if err := turns.take(ctx, "x"); err != nil {
			t.Fatal(err)
		}
		served := make(chan int)
		for i := range 5 {
			go func() {
				if err := turns.take(ctx, "x"); err != nil {
					t.Error(err)
				}
				served <- i
			}()
			synctest.Wait() // until it waits for its turn
		}
		if turns.try("x") {
			t.Error("a taken turn was taken again")
		}
		if !turns.try("y") {
			t.Error("another name's turn was not free")
		}
		turns.pass("y")
		for want := range 5 {
			turns.pass("x")
			if got := <-served; got != want {
				t.Errorf("served %d, want %d", got, want)
			}
		}
		turns.pass("x")
		if len(turns.names) != 0 {
			t.Errorf("left behind: %v", turns.names)
		}
	})
}

// TestTurnsGivenUp: a waiter that gives up leaves no gap, also when its turn comes at that very moment.
func TestTurnsGivenUp(t *testing.T) {
	gone := errors.New("gone")
	for range 200 {
		synctest.Test(t, func(t *testing.T) {
			turns := newTurns()
			if err := turns.take(t.Context(), "x"); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancelCause(t.Context())
			first, second := make(chan error, 1), make(chan error, 1)
			go func() { first <- turns.take(ctx, "x") }()
			synctest.Wait()
			go func() { second <- turns.take(t.Context(), "x") }()
			synctest.Wait()
			go turns.pass("x")
			cancel(gone)
			switch err := <-first; {
			case err == nil:
				turns.pass("x")
			case !errors.Is(err, gone):
				t.Errorf("given up with %v", err)
			}
			if err := <-second; err != nil {
				t.Errorf("the one behind: %v", err)
			}
			turns.pass("x")
			if len(turns.names) != 0 {
				t.Errorf("left behind: %v", turns.names)
			}
		})
	}
}
