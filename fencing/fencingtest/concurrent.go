package fencingtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/revfence/revfence/fencing"
)

// gapWindow is how long an old holder lingers between its check and its write
// while a new holder tries to get past. Not getting past is the right outcome
// for most fences, so each look costs the whole window; a fence that lets the
// new one past within it is held to the consequences.
const gapWindow = 200 * time.Millisecond

// checkGap stops an old holder between check and write, lets a new one show its
// token, and then lets the old one write. Either the new one waited, or the old
// one's write must be refused.
func checkGap(tb testing.TB, open func(testing.TB) Harness) {
	const before, mine = "before", "the new holder's"
	for _, show := range []struct {
		name string
		by   func(s *subject) (value string, err error) // value: what the resource must hold afterwards
	}{
		{"Advance", func(s *subject) (string, error) { return before, s.Fence.Advance(s.ctx, 9) }},
		{"Read", func(s *subject) (string, error) { return s.Read(s.ctx, 9) }},
		{"Write", func(s *subject) (string, error) { return mine, s.Write(s.ctx, 9, mine) }},
	} {
		s := start(tb, open)
		s.mustWrite(5, before)

		type outcome struct {
			value string
			err   error
		}
		shown := make(chan outcome, 1)
		past := false // the new holder's call returned while the old one was in the gap
		var first outcome
		var once sync.Once
		reached := false
		ctx := withGap(s.ctx, func() {
			once.Do(func() {
				reached = true
				go func() {
					value, err := show.by(s)
					shown <- outcome{value, err}
				}()
				window := time.NewTimer(gapWindow)
				defer window.Stop()
				select {
				case first = <-shown:
					past = true
				case <-window.C:
				}
			})
		})
		oldErr := s.Write(ctx, 5, "the old holder's")
		if !reached {
			if oldErr != nil {
				s.Fatalf("Write(5) = %v, want it accepted", oldErr)
			}
			s.Log("Write has no Gap: atomicity rests on the races that follow")
			return
		}
		if !past {
			first = <-shown
		}
		if first.err != nil {
			s.Fatalf("%s(9) beside a slow Write(5) = %v, want it accepted", show.name, first.err)
		}
		if past {
			s.mustBeStale("Write, resumed after "+show.name+"(9) had returned,", oldErr, 5, 9)
		} else if oldErr != nil && !errors.Is(oldErr, fencing.ErrStale) {
			s.Fatalf("slow Write(5) = %v, want nil or an error matching fencing.ErrStale", oldErr)
		}
		want := first.value
		if show.name == "Advance" && oldErr == nil {
			want = "the old holder's" // applied while Advance waited
		}
		s.mustRead(9, want)
	}
}

// rounds calls f with fresh numbers until about half a second has passed, twenty
// times at least, until f reports false.
func rounds(f func(base fencing.Token) bool) {
	budget, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	for i := 0; i < 20 || budget.Err() == nil; i++ {
		if !f(fencing.Token(i)*100 + 1) {
			return
		}
	}
}

// checkHandover lets old holders write as fast as they can while a new one comes
// in by way of Advance, Read and Write in turn. From then on the value is the new
// one's to change.
func checkHandover(tb testing.TB, open func(testing.TB) Harness) {
	s := start(tb, open)
	const writers = 3
	round := 0
	rounds(func(base fencing.Token) bool {
		old, next := base, base+1
		var (
			wg       sync.WaitGroup
			handed   atomic.Bool // the new holder's token has been accepted
			stop     atomic.Bool
			problems = make(chan string, writers+1)
			writing  = make(chan struct{}, writers)
		)
		for w := range writers {
			wg.Go(func() {
				for i := 0; !stop.Load(); i++ {
					late := handed.Load()
					err := s.Write(s.ctx, old, fmt.Sprintf("old %d writer %d no %d", old, w, i))
					if i == 0 {
						writing <- struct{}{}
					}
					switch {
					case errors.Is(err, fencing.ErrStale):
						return
					case err != nil:
						problems <- fmt.Sprintf("Write(%d) = %v, want nil or an error matching fencing.ErrStale", old, err)
						return
					case late:
						problems <- fmt.Sprintf("Write(%d) was accepted after %d had been", old, next)
						return
					}
				}
			})
		}
		for range writers {
			<-writing
		}
		problem := s.takeOver(next, round%3, &handed)
		stop.Store(problem != "")
		wg.Wait()
		if problem == "" && handed.Load() {
			problem = s.stillMine(next)
		}
		if problem != "" {
			problems <- problem
		}
		close(problems)
		ok := true
		for p := range problems {
			ok = false
			s.Errorf("round %d: %s", round, p)
		}
		round++
		return ok
	})
	s.Logf("%d rounds", round)
}

// takeOver shows the token of the new holder and watches for others' writes.
func (s *subject) takeOver(t fencing.Token, way int, handed *atomic.Bool) (problem string) {
	mine := fmt.Sprintf("new %d", t)
	var seen string
	var err error
	switch way {
	case 0:
		if err = s.Fence.Advance(s.ctx, t); err == nil {
			handed.Store(true)
			seen, err = s.Read(s.ctx, t)
		}
	case 1:
		if seen, err = s.Read(s.ctx, t); err == nil {
			handed.Store(true)
		}
	default:
		if err = s.Write(s.ctx, t, mine); err == nil {
			handed.Store(true)
			seen = mine
		}
	}
	if err != nil {
		return fmt.Sprintf("the new holder's token %d: %v, want it accepted", t, err)
	}
	for range 3 {
		got, err := s.Read(s.ctx, t)
		if err != nil {
			return fmt.Sprintf("Read(%d) = %v, want it accepted", t, err)
		}
		if got != seen {
			return fmt.Sprintf("the value went from %q to %q under the new holder %d", seen, got, t)
		}
	}
	if err := s.Write(s.ctx, t, mine); err != nil {
		return fmt.Sprintf("Write(%d) = %v, want it accepted", t, err)
	}
	return ""
}

func (s *subject) stillMine(t fencing.Token) (problem string) {
	want := fmt.Sprintf("new %d", t)
	got, err := s.Read(s.ctx, t)
	if err != nil {
		return fmt.Sprintf("Read(%d) = %v, want it accepted", t, err)
	}
	if got != want {
		return fmt.Sprintf("the write of %d was acknowledged and then overwritten by %q", t, got)
	}
	return ""
}

// checkMixedTokens releases one writer per token at once. Whatever the order,
// the highest is accepted and its value is the one that stays.
func checkMixedTokens(tb testing.TB, open func(testing.TB) Harness) {
	s := start(tb, open)
	const writers = 8
	round := 0
	rounds(func(base fencing.Token) bool {
		var (
			wg   sync.WaitGroup
			gun  = make(chan struct{})
			errs [writers]error
		)
		for w := range writers {
			wg.Go(func() {
				t := base + fencing.Token(w)
				<-gun
				errs[w] = s.Write(s.ctx, t, t.String())
			})
		}
		close(gun)
		wg.Wait()

		highest := base + writers - 1
		for w, err := range errs[:writers-1] {
			t := base + fencing.Token(w)
			var stale *fencing.StaleError
			switch {
			case err == nil:
			case !errors.As(err, &stale):
				s.Errorf("round %d: Write(%d) = %v, want nil or a *fencing.StaleError", round, t, err)
			case stale.Token != t || stale.HighWater <= t || stale.HighWater > highest:
				s.Errorf("round %d: Write(%d): error has Token %d and HighWater %d; the tokens shown go up to %d",
					round, t, stale.Token, stale.HighWater, highest)
			}
		}
		if err := errs[writers-1]; err != nil {
			s.Errorf("round %d: Write(%d) = %v, want the highest token accepted", round, highest, err)
		} else if got, err := s.Read(s.ctx, highest); err != nil || got != highest.String() {
			s.Errorf("round %d: Read(%d) = %q, %v, want the value written with the highest token", round, highest, got, err)
		}
		round++
		return !s.Failed()
	})
	s.Logf("%d rounds", round)
}
