package etcdlock

import (
	"errors"
	"fmt"
	"time"

	"github.com/revfence/revfence/fencing"
	"github.com/revfence/revfence/internal/view"
)

// Targets for errors.Is.
var (
	// ErrLocked says that TryLock found the name taken. Details are in a
	// *LockedError.
	ErrLocked = errors.New("etcdlock: locked")

	// ErrLost says that a lock had been held and is no more. Details are in a
	// *LostError. Work done since may have overlapped with the next holder's;
	// only a fence keeps its writes out.
	ErrLost = errors.New("etcdlock: lost")

	// ErrReleased says that Unlock was called before. It is also the cause of
	// a released lock's context.
	ErrReleased = errors.New("etcdlock: released")

	// ErrUnknown says that etcd did not confirm a release. The lock's lease is
	// no longer renewed, so the name is free at the latest when the TTL of the
	// last renewal has passed on the server. (With WithSharedLeases its lease
	// may live on for others; then the deletion is repeated until it succeeds.)
	// From Txn it says that the transaction may or may not have been applied, from
	// Once that the mark, or the release, was not confirmed.
	ErrUnknown = errors.New("outcome unknown")

	// ErrClosed says that the Locker, or the client under it, was closed.
	ErrClosed = errors.New("etcdlock: closed")

	// ErrReentrant says that the context given to Lock or TryLock carries a
	// live hold of the same name: waiting for it would be waiting for oneself.
	// See WithoutHold.
	ErrReentrant = errors.New("already held under this context; see WithoutHold")

	// ErrForeignKey says that a key stands in the name's queue that no lock
	// has made, or that was written over without its lease. The error names
	// the key. It would block the name until somebody deletes it.
	ErrForeignKey = view.ErrForeignKey

	// ErrRevisionRegressed says that etcd's revisions, and with them tokens,
	// went backwards: etcd was restored from a backup without
	// etcdutl snapshot restore --bump-revision. No lock is handed out until
	// revisions have passed what this process has seen.
	ErrRevisionRegressed = view.ErrRegressed
)

// errNoContext refuses a nil context: a panic in the middle of a call could leave a
// lock that is renewed for ever.
var errNoContext = errors.New("etcdlock: nil context")

// A Reason says how a lock was lost.
type Reason int

// The ways to lose a lock.
const (
	// ReasonDeadline: no renewal was answered in time. The lock was given up
	// a safety margin before etcd could expire it.
	ReasonDeadline Reason = iota + 1
	// ReasonSuspended: the machine slept past the deadline.
	ReasonSuspended
	// ReasonLeaseGone: a renewal was answered with the lease being gone, by
	// expiry or revoke.
	ReasonLeaseGone
	// ReasonKeyGone: the lock's key was deleted, by itself or with its lease,
	// replaced, or put on another lease. Most often the watch of the key tells
	// of a revoke before the next renewal would.
	ReasonKeyGone
	// ReasonDenied: etcd refused a renewal or a look at the lock's key, for
	// lack of permission or another reason that will not pass. Err has it.
	ReasonDenied
	// ReasonUnauthenticated: the client's auth token is no longer valid and,
	// being fixed in its configuration, cannot be renewed.
	ReasonUnauthenticated
	// ReasonStale: a fence has already seen a higher token.
	ReasonStale
	// ReasonMaxHold: the time given with WithMaxHold is over.
	ReasonMaxHold
	// ReasonClosed: the context of Close ended before the lock was unlocked, or
	// the client was closed.
	ReasonClosed
)

var reasons = [...]string{
	ReasonDeadline:        "no renewal answered before the deadline (etcd not reached, or this process paused)",
	ReasonSuspended:       "machine suspended past the deadline",
	ReasonLeaseGone:       "lease gone",
	ReasonKeyGone:         "key deleted (by itself or with its lease) or replaced",
	ReasonDenied:          "permission denied",
	ReasonUnauthenticated: "auth token no longer valid",
	ReasonStale:           "a fence has seen a higher token",
	ReasonMaxHold:         "maximum hold over",
	ReasonClosed:          "locker or client closed",
}

// String describes the reason in a few words.
func (r Reason) String() string {
	if r > 0 && int(r) < len(reasons) {
		return reasons[r]
	}
	return fmt.Sprintf("Reason(%d)", int(r))
}

// A LostError says which lock was lost and how. It is the cause of the lost
// lock's context. errors.Is(err, ErrLost) holds.
type LostError struct {
	Name   string        // the lock's name
	Token  fencing.Token // its token
	Reason Reason
	Err    error // what etcd or a fence said, if anything
}

// Error describes the loss in one line.
func (e *LostError) Error() string {
	s := fmt.Sprintf("etcdlock: lock %q (token %d) lost: %v", e.Name, int64(e.Token), e.Reason)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Is makes errors.Is(err, ErrLost) true.
func (e *LostError) Is(target error) bool { return target == ErrLost }

// Unwrap returns what etcd or a fence said.
func (e *LostError) Unwrap() error { return e.Err }

// A LockedError says who was seen holding the name that TryLock wanted.
// errors.Is(err, ErrLocked) holds.
type LockedError struct {
	Name   string
	Holder string // identity of the holder; "" if it has none (etcdctl, a stock mutex) or is just changing
	Key    string // the holder's key; "" if not known
}

// Error names the lock and its holder.
func (e *LockedError) Error() string {
	s := fmt.Sprintf("etcdlock: %q is locked", e.Name)
	if e.Holder != "" {
		s += fmt.Sprintf(" by %q", e.Holder)
	}
	if e.Key != "" {
		s += fmt.Sprintf(" (key %q)", e.Key)
	}
	return s
}

// Is makes errors.Is(err, ErrLocked) true.
func (e *LockedError) Is(target error) bool { return target == ErrLocked }

// A RequireError is returned by Lock.Require for a lock that is held, but not
// for long enough.
type RequireError struct {
	Name      string
	Need      time.Duration // what Require was asked for
	Remaining time.Duration // what is left until the local deadline
	Longest   time.Duration // the most that is ever left: TTL − safety margin
}

// Error says whether waiting for the next renewal can help.
func (e *RequireError) Error() string {
	if e.Need > e.Longest {
		return fmt.Sprintf("etcdlock: lock %q can never be trusted for %v: its TTL allows at most %v; choose a longer TTL or shorter steps",
			e.Name, e.Need, e.Longest)
	}
	return fmt.Sprintf("etcdlock: lock %q is trusted for %v more, %v needed (its TTL allows at most %v)",
		e.Name, e.Remaining.Round(time.Millisecond), e.Need, e.Longest)
}
