package clock

import (
	"time"

	"golang.org/x/sys/unix"
)

// Now reads the three clocks.
//
// A goroutine that is preempted between the reads of BOOTTIME and MONOTONIC
// would later look like a suspend of that length, so a slow set of reads is
// thrown away, a few times at most: the error is on the early side, a lease
// given up too soon.
func (System) Now() Reading {
	var r Reading
	for range 4 {
		before := read(unix.CLOCK_MONOTONIC)
		r.boot = read(unix.CLOCK_BOOTTIME)
		r.mono = read(unix.CLOCK_MONOTONIC)
		r.raw = read(unix.CLOCK_MONOTONIC_RAW)
		if r.mono-before < time.Millisecond {
			break
		}
	}
	return r
}

// read cannot fail: the three ids exist on every Linux that Go supports.
func read(id int32) time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(id, &ts)
	return time.Duration(ts.Nano())
}
