package clock

import (
	"sync"
	"time"
)

// A Fake follows Go's time, so it works inside a testing/synctest bubble, and
// can be made to diverge from it. Only tests use it.
type Fake struct {
	start time.Time

	mu        sync.Mutex
	suspended time.Duration
	slewed    time.Duration
}

// NewFake returns a clock that starts at zero.
func NewFake() *Fake {
	return &Fake{start: time.Now()} //wallclock: origin of monotonic differences.
}

// Now returns Go's time with what Suspend and Slew added.
func (f *Fake) Now() Reading {
	d := time.Since(f.start) //wallclock: monotonic difference.
	f.mu.Lock()
	defer f.mu.Unlock()
	return Reading{raw: d + f.slewed, boot: d + f.suspended, mono: d}
}

// Suspend makes the machine sleep for d: BOOTTIME goes on, the others do not.
func (f *Fake) Suspend(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.suspended += d
}

// Slew lets d more of real time pass than MONOTONIC shows.
func (f *Fake) Slew(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.slewed += d
}
