//go:build !linux

package clock

import "time"

// wallclock: the origin of time.Since, which reads the monotonic clock only.
var origin = time.Now()

// Now reads Go's monotonic clock, which stands for all three here: slew and
// suspend stay invisible.
func (System) Now() Reading {
	d := time.Since(origin) //wallclock: monotonic difference.
	return Reading{raw: d, boot: d, mono: d}
}
