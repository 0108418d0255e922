// Package clock measures how much time has really passed, for code that must
// know when a lease can have ended.
//
// Go's timers and time.Since follow CLOCK_MONOTONIC on Linux. That clock
// stands still while the machine is suspended, and a clock daemon may slew it
// (chrony by up to 8.3 %). A lease on a server does neither. A Reading
// therefore keeps three clocks, and the age between two readings is
//
//	ΔMONOTONIC_RAW + max(0, ΔBOOTTIME − ΔMONOTONIC)
//
// RAW is not slewed; the difference adds what a suspend hid. On other systems
// all three are Go's monotonic clock, which may stop in sleep. A hypervisor
// that pauses the whole guest is invisible everywhere: no clock is part of a
// safety argument in this module.
package clock

import "time"

// A Reading is one look at the clocks. Only differences between two readings
// of the same Source mean anything. The zero Reading is not a valid one.
type Reading struct {
	raw, boot, mono time.Duration
}

// Since returns the time that passed between earlier and r, including time
// the machine was suspended.
func (r Reading) Since(earlier Reading) time.Duration {
	return r.raw - earlier.raw + r.Suspended(earlier)
}

// Suspended returns how long the machine was suspended between earlier and r,
// 0 where that cannot be known.
func (r Reading) Suspended(earlier Reading) time.Duration {
	return max(0, (r.boot-earlier.boot)-(r.mono-earlier.mono))
}

// Missed returns how far Go's timers, which follow the monotonic clock, fell
// behind between earlier and r.
func (r Reading) Missed(earlier Reading) time.Duration {
	return r.Since(earlier) - (r.mono - earlier.mono)
}

// A Source is read for the present.
type Source interface {
	Now() Reading
}

// System reads the clocks of this machine.
type System struct{}

var _ Source = System{}
