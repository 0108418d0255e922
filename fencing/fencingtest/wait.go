package fencingtest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/revfence/revfence/fencing"
)

const (
	// shortWait is how long a call may wait in checkWaitEnds before its context ends.
	shortWait = 50 * time.Millisecond
	// waitGrace is how long after that it may take to return. A fence that looks at
	// its context needs next to nothing, so only one that does not look pays for it.
	waitGrace = 3 * time.Second
)

// checkWaitEnds stops an old holder between check and write, and has a new one
// show its token under a context that soon ends. Whether the new one gets past is
// for checkGap to judge; here it only has to return.
func checkWaitEnds(tb testing.TB, open func(testing.TB) Harness) {
	for _, show := range []struct {
		name string
		by   func(s *subject, ctx context.Context) error
	}{
		{"Advance", func(s *subject, ctx context.Context) error { return s.Fence.Advance(ctx, 9) }},
		{"Read", func(s *subject, ctx context.Context) error { _, err := s.Read(ctx, 9); return err }},
		{"Write", func(s *subject, ctx context.Context) error { return s.Write(ctx, 9, "the new holder's") }},
	} {
		s := start(tb, open)
		s.mustWrite(5, "before")

		var (
			shown   = make(chan error, 1)
			once    sync.Once
			reached = false
			ended   = false // the new holder's call returned in time
			err     error
		)
		ctx := withGap(s.ctx, func() {
			once.Do(func() {
				reached = true
				short, cancel := context.WithTimeout(s.ctx, shortWait)
				defer cancel()
				go func() { shown <- show.by(s, short) }()
				limit := time.NewTimer(shortWait + waitGrace)
				defer limit.Stop()
				select {
				case err = <-shown:
					ended = true
				case <-limit.C:
				}
			})
		})
		oldErr := s.Write(ctx, 5, "the old holder's")
		switch {
		case !reached && oldErr != nil:
			s.Fatalf("Write(5) = %v, want it accepted", oldErr)
		case !reached:
			s.Log("Write has no Gap: no call can be made to wait")
			return
		case !ended:
			s.Fatalf("%s(9), waiting for a slow Write(5), had not returned %v after its context had ended", show.name, waitGrace)
		case errors.Is(err, fencing.ErrStale) || errors.Is(err, fencing.ErrNoToken):
			s.Fatalf("%s(9) beside a slow Write(5) = %v, want it accepted or ended by its context", show.name, err)
		case oldErr != nil && !errors.Is(oldErr, fencing.ErrStale):
			s.Fatalf("slow Write(5) = %v, want nil or an error matching fencing.ErrStale", oldErr)
		}
		s.mustWrite(9, "after") // what gave up waiting has left nothing locked
		s.mustRead(9, "after")
	}
}
