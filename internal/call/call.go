// Package call has what all calls of etcd share: how long one may take, what its
// failure means, and how long to wait before the next.
package call

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Limit bounds every call. It is below the 7 s that an etcd server gives a
// request by default, so that the caller's context always ends first: clientv3
// silently repeats a write whose *server* ran out of time.
const Limit = 5 * time.Second

// Explain names the limit in the error of a call under limited, a child of ctx,
// that ran into it: the caller may have set no deadline at all.
func Explain(ctx, limited context.Context, err error) error {
	if err == nil || ctx.Err() != nil || limited.Err() == nil {
		return err
	}
	return fmt.Errorf("etcd did not answer within %v: %w", Limit, err)
}

// Transient reports whether a failed call of etcd is worth repeating: nothing
// but time stands between it and success. Errors that are not etcd's, such as
// ErrForeignKey, are not.
func Transient(err error) bool {
	if rpctypes.Error(err) == rpctypes.ErrTooManyRequests || TokenRefused(err) {
		return true
	}
	switch code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Unknown, codes.Aborted, codes.Internal:
		return true
	}
	return false
}

// TokenRefused reports whether etcd refused the caller's auth token. It passes
// where clientv3 can fetch another, and is final where it cannot.
func TokenRefused(err error) bool {
	switch rpctypes.Error(err) {
	case rpctypes.ErrInvalidAuthToken, rpctypes.ErrAuthOldRevision:
		return true
	}
	return false
}

// Definite reports whether err is etcd's own refusal, so that the write was
// not and will not be applied.
func Definite(err error) bool {
	switch code(err) {
	case codes.InvalidArgument, codes.NotFound, codes.FailedPrecondition, codes.PermissionDenied,
		codes.Unauthenticated, codes.ResourceExhausted, codes.OutOfRange, codes.AlreadyExists:
		return true
	}
	return false
}

func code(err error) codes.Code {
	if e, ok := rpctypes.Error(err).(rpctypes.EtcdError); ok {
		return e.Code()
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return codes.DeadlineExceeded
	}
	if s, ok := status.FromError(err); ok {
		return s.Code()
	}
	return codes.OK // not an answer of etcd: neither worth repeating nor a refusal
}

// A Backoff spaces repeated calls: jittered, since a lost leader hits all
// waiters at the same moment.
type Backoff struct{ last time.Duration }

// Wait pauses before the next try; false if ctx ended first.
func (b *Backoff) Wait(ctx context.Context) bool {
	b.last = min(max(2*b.last, 50*time.Millisecond), time.Second)
	t := time.NewTimer(Jitter(b.last))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Reset starts over, after a success.
func (b *Backoff) Reset() { b.last = 0 }

// Jitter returns between half of d and one and a half.
func Jitter(d time.Duration) time.Duration { return d/2 + rand.N(d) }
