package etcdlock

import (
	"context"
	"errors"
)

// Do runs fn while it holds the lock.
//
// fn's context is that of Lock.Context, also cancelled when ctx ends. The lock
// is renewed until fn has returned, whatever was cancelled, and only then
// released; also when fn panics or calls runtime.Goexit. WithMaxHold bounds an
// fn that hangs.
//
// Do returns Lock's error, and fn has not run; or fn's error, joined with a
// *LostError if the lock was lost meanwhile, or with an error that matches
// ErrUnknown if its release was not confirmed. fn returning nil for a lock that
// was lost is an error: its work may have overlapped with the next holder's.
func (l *Locker) Do(ctx context.Context, name string, fn func(ctx context.Context, lock *Lock) error, opts ...LockOption) (err error) {
	if fn == nil {
		return errors.New("etcdlock: Do of a nil function")
	}
	k, err := l.Lock(ctx, name, opts...)
	if err != nil {
		return err
	}
	fctx, cancel := context.WithCancelCause(k.Context())
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	defer func() {
		stop()
		cancel(ErrReleased)
		if uerr := k.Unlock(ctx); uerr != nil && !errors.Is(err, uerr) {
			err = errors.Join(err, uerr)
		}
	}()
	return fn(fctx, k)
}
