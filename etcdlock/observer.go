package etcdlock

import (
	"fmt"
	"time"

	"github.com/revfence/revfence/fencing"
)

// An Observer is told of state changes, for metrics and tracing.
//
// Observe is called after the change, outside of all locks: for an acquisition
// and a release on the goroutine that asked, for a loss on one of its own. It
// should return soon, and not call Close, which waits for it. A panic in it is
// caught and logged.
type Observer interface {
	// Observe is told of one event.
	Observe(Event)
}

// An EventKind says what happened.
type EventKind int

// The events. More may be added.
const (
	// EventAcquired: a lock is held. Elapsed is the wait.
	EventAcquired EventKind = iota + 1
	// EventFailed: Lock or TryLock returned an error. Elapsed is the wait.
	EventFailed
	// EventReleased: a release ended, confirmed if Err is nil. Elapsed is the hold.
	EventReleased
	// EventLost: a lock was lost, Reason says how. Elapsed is the hold.
	EventLost
)

// String names the kind in one word.
func (k EventKind) String() string {
	switch k {
	case EventAcquired:
		return "acquired"
	case EventFailed:
		return "failed"
	case EventReleased:
		return "released"
	case EventLost:
		return "lost"
	}
	return fmt.Sprintf("EventKind(%d)", int(k))
}

// An Event is one state change.
type Event struct {
	Kind    EventKind
	Name    string        // of the lock
	Token   fencing.Token // 0 if no lock was held
	Reason  Reason        // of a loss; 0 for other kinds
	Elapsed time.Duration // wait or hold, see the kinds
	Err     error         // nil for an acquisition and a confirmed release
}
