package fencing

import (
	"context"
	"errors"
	"fmt"
	"strconv"
)

// Fence keeps the high-water mark of one resource for one lock: the highest
// token it has seen.
type Fence interface {
	// Advance raises the mark to t, so that from its return on no write with a
	// lower token is applied to the resource. A token equal to the mark or above
	// it is accepted.
	//
	// A token below the mark is refused with a *StaleError, a token that is not
	// valid with an error matching ErrNoToken, and a ctx that is already done
	// with an error. All three leave the mark as it was. After any other error the
	// mark may or may not have been raised.
	//
	// Advance alone protects no write. It arms the fence before the new holder
	// reads; the write must show its token again, in the same atomic step that
	// applies it, by whatever means the resource has for that.
	Advance(ctx context.Context, t Token) error
}

// ErrStale is matched by every refusal of a token below the high-water mark.
// The error itself is a [*StaleError].
var ErrStale = errors.New("fencing: stale token")

// ErrNoToken is matched by every refusal of something that is no token: none
// given, zero, negative, or text that [ParseToken] does not accept. It is never
// stale: no holder was overtaken, the caller forgot its token or garbled it.
var ErrNoToken = errors.New("fencing: no valid token")

// StaleError refuses a token because a holder with a higher one has been seen.
// It matches [ErrStale]. The write it answers was not applied, and asking again
// with the same token cannot succeed: the lock has gone to someone else.
type StaleError struct {
	Resource  string // what refused it, as named when the fence was made; may be empty
	Token     Token  // the token that was shown
	HighWater Token  // the mark it is below
}

// Error names the resource and both numbers.
func (e *StaleError) Error() string {
	of := ""
	if e.Resource != "" {
		of = " of " + strconv.Quote(e.Resource)
	}
	return fmt.Sprintf("%v: %d is below the high-water mark %d%s", ErrStale, e.Token, e.HighWater, of)
}

// Is reports whether target is [ErrStale].
func (e *StaleError) Is(target error) bool { return target == ErrStale }

func noTokenError(t Token) error {
	return fmt.Errorf("%w: %d is not above zero", ErrNoToken, t)
}

// contextError says why ctx ended. A lock's context ends with a cause that names
// the loss; the error matches that as well as the plain context error.
func contextError(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if cause == nil || cause == err {
		return err
	}
	return fmt.Errorf("%w: %w", err, cause)
}
