package etcdtest

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"
)

const (
	stallPeriod = 2 * time.Millisecond
	// stallGap is what counts as a stall: a goroutine that asked for 2 ms and got the processor back only after this.
	stallGap = 20 * time.Millisecond
	// stallShare is the part of the samples that may be set aside before the run says nothing about the code.
	stallShare = 0.10
)

// Ticker records when the test process itself was kept from running, by a busy machine or a garbage collection. A timed
// sample that is late for that reason says nothing about the code under test.
type Ticker struct {
	mu     sync.Mutex
	woken  *sync.Cond
	last   time.Time // latest wake-up
	stalls []interval
	closed bool
}

type interval struct{ from, to time.Time }

// Sample is one timed observation: Value was measured between From and To.
type Sample struct {
	From, To time.Time
	Value    time.Duration
}

// Stalls starts a Ticker that runs until the end of the test.
func Stalls(tb testing.TB) *Ticker {
	t := newTicker(time.Now())
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(stallPeriod)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				t.wake(time.Now())
			}
		}
	}()
	tb.Cleanup(func() {
		close(stop)
		<-done
		t.close()
	})
	return t
}

func newTicker(now time.Time) *Ticker {
	t := &Ticker{last: now}
	t.woken = sync.NewCond(&t.mu)
	return t
}

func (t *Ticker) wake(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now.Sub(t.last) > stallGap {
		t.stalls = append(t.stalls, interval{t.last, now})
	}
	t.last = now
	t.woken.Broadcast()
}

func (t *Ticker) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	t.woken.Broadcast()
}

// Overlaps reports whether the process stalled for more than 20 ms at some moment between from and to. It waits for the
// ticker to wake once after to, since a stall is known only when it is over; to must not lie in the future.
func (t *Ticker) Overlaps(from, to time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.last.Before(to) && !t.closed {
		t.woken.Wait()
	}
	return slices.ContainsFunc(t.stalls, func(s interval) bool { return s.from.Before(to) && from.Before(s.to) })
}

// Judge fails the test when the given quantile (0 < quantile <= 1, 1 meaning the largest) of the samples is above bound.
// A sample above bound that overlaps a stall is set aside and reported; samples within bound always count. When more
// than a tenth of the samples had to be set aside the test fails, because the run proves nothing.
func (t *Ticker) Judge(tb testing.TB, what string, samples []Sample, quantile float64, bound time.Duration) {
	tb.Helper()
	v, err := t.judge(samples, quantile, bound)
	if err != nil {
		tb.Errorf("%s: %v", what, err)
		return
	}
	tb.Logf("%s: %v", what, v)
}

type verdict struct {
	quantile             float64
	bound                time.Duration
	min, median, at, max time.Duration
	kept, aside          int
}

func (v verdict) String() string {
	s := fmt.Sprintf("%d samples, min %v, median %v, p%g %v, max %v, bound %v",
		v.kept, v.min, v.median, v.quantile*100, v.at, v.max, v.bound)
	if v.aside > 0 {
		s += fmt.Sprintf("; %d late ones set aside, the process had stalled", v.aside)
	}
	return s
}

func (t *Ticker) judge(samples []Sample, quantile float64, bound time.Duration) (verdict, error) {
	v := verdict{quantile: quantile, bound: bound}
	if quantile <= 0 || quantile > 1 {
		return v, fmt.Errorf("quantile %v is not in (0, 1]", quantile)
	}
	var kept []time.Duration
	for _, s := range samples {
		if s.Value > bound && t.Overlaps(s.From, s.To) {
			v.aside++
			continue
		}
		kept = append(kept, s.Value)
	}
	if v.kept = len(kept); v.kept == 0 {
		return v, fmt.Errorf("no samples to judge (%d set aside)", v.aside)
	}
	slices.Sort(kept)
	v.min, v.max = kept[0], kept[len(kept)-1]
	v.median, v.at = rank(kept, 0.5), rank(kept, quantile)
	if float64(v.aside) > stallShare*float64(len(samples)) {
		return v, fmt.Errorf("%d of %d samples overlap stalls of the process, more than a tenth: the machine is too busy to judge (%v)", v.aside, len(samples), v)
	}
	if v.at > bound {
		return v, fmt.Errorf("too late: %v", v)
	}
	return v, nil
}

// rank returns the nearest-rank quantile of sorted values.
func rank(sorted []time.Duration, q float64) time.Duration {
	i := int(math.Ceil(q*float64(len(sorted))-1e-9)) - 1
	return sorted[max(i, 0)]
}
