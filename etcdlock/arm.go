package etcdlock

import (
	"context"
	"errors"
	"fmt"

	"github.com/revfence/revfence/fencing"
	"github.com/revfence/revfence/internal/view"
)

// arm raises the marks of the lock's fences to its token, so that from before
// the holder's first read no earlier holder can write.
func (k *Lock) arm(ctx context.Context, conf lockConfig) error {
	// The fence sees the values of the holder's context, and the time limits
	// of the acquisition.
	hctx, cancel := context.WithCancelCause(k.ctx)
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })()
	for i, f := range conf.fences {
		if err := k.raise(hctx, f, conf); err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return k.refused(ctx, i, err)
		}
	}
	return nil
}

// raise calls one fence. It runs on a goroutine of its own, since a fence that
// does not heed its context must not keep Lock from returning.
func (k *Lock) raise(ctx context.Context, f fencing.Fence, conf lockConfig) error {
	ctx, cancel := context.WithTimeout(ctx, conf.fenceTimeout)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil {
				done <- fmt.Errorf("panic: %v", r)
			}
		}()
		done <- f.Advance(ctx, k.token)
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// refused sorts the error of the i-th fence.
func (k *Lock) refused(ctx context.Context, i int, err error) error {
	var stale *fencing.StaleError
	if !errors.As(err, &stale) {
		return fmt.Errorf("given back, since fence %d of WithFences was not raised to token %d: %w", i+1, int64(k.token), err)
	}
	// Somebody has shown a higher token. Either we have been overtaken, or
	// etcd's revisions are behind what it once handed out.
	resp, rerr := k.locker.view.Get(ctx, k.key)
	if rerr != nil {
		return &LostError{Name: k.name, Token: k.token, Reason: ReasonStale, Err: fmt.Errorf("%w (etcd could not be asked for its revision: %w)", err, rerr)}
	}
	if int64(stale.HighWater) > resp.Header.Revision {
		return fmt.Errorf("fence %q: %w: %w", stale.Resource,
			&view.RegressedError{Seen: int64(stale.HighWater), Got: resp.Header.Revision}, err)
	}
	return &LostError{Name: k.name, Token: k.token, Reason: ReasonStale, Err: err}
}
