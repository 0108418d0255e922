package clock

import (
	"time"

	"golang.org/x/sys/unix"
)

// wallclock: the origin of time.Since, which reads the monotonic clock only.
var origin = time.Now()

// Now reads the three clocks.
//
// A goroutine that is preempted between the reads of BOOTTIME and MONOTONIC
// would later look like a suspend of that length, so a slow set of reads is
// thrown away, a few times at most: the error is on the early side, a lease
// given up too soon.
func (System) Now() Reading {
	var r Reading
	for range 4 {
		before := time.Since(origin) //wallclock: monotonic difference, many times faster than a system call.
		r.boot = read(unix.CLOCK_BOOTTIME)
		r.mono = time.Since(origin) //wallclock: monotonic difference.
		r.raw = read(unix.CLOCK_MONOTONIC_RAW)
		if r.mono-before < time.Millisecond {
			break
		}
	}
	return r
}

// read cannot fail: both ids exist on every Linux that Go supports.
func read(id int32) time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(id, &ts)
	return time.Duration(ts.Nano())
}
