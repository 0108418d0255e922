package etcdlock

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/revfence/revfence/internal/call"
	"github.com/revfence/revfence/internal/view"
)

// Lock waits its turn for name, which is 1 to 1024 bytes of any kind, and returns
// the held lock.
//
// Goroutines of one Locker take turns first come, first served, and one of
// them at a time stands in etcd's queue, which is served in the order in which
// places were taken. A waiter whose place is lost (its lease or its key was
// removed) queues again at the tail at once. Trouble with etcd that may pass is
// waited out until ctx ends.
//
// ctx bounds the acquisition, not the hold. If ctx is done already, Lock
// returns without asking etcd. On any error the lock is not held, and the
// request is withdrawn in the background; if that cannot be confirmed, it ends
// with its lease within the TTL, until when it may hold up other waiters.
//
// The error matches, under errors.Is:
//
//   - ctx's error, joined with the last one from etcd if there was one;
//   - ErrClosed, after Close, or when the client was closed;
//   - ErrReentrant, if ctx carries a live hold of name;
//   - ErrForeignKey, if a key that no lock made blocks the name;
//   - ErrRevisionRegressed, if etcd's revisions went backwards;
//   - ErrLost, if a fence given with WithFences knows a higher token.
//
// Other errors are etcd's own (permission denied, no space) or a fence's.
//
// A nil error means that the lock was held when etcd answered, and was then
// trusted for at least a third of its TTL (less with a margin above two ninths of
// it). It does not mean that it still is: give the token to every write that the
// lock protects.
func (l *Locker) Lock(ctx context.Context, name string, opts ...LockOption) (*Lock, error) {
	return l.acquire(ctx, name, opts, true)
}

// TryLock returns the held lock if name is free, and a *LockedError, which
// matches ErrLocked, at once if it is not.
//
// For a taken name it reads once and writes nothing. Otherwise, and in all
// errors, it is like Lock, except that it does not wait out trouble with etcd: a
// call that is not answered within 5 s is an error, whatever ctx allows.
func (l *Locker) TryLock(ctx context.Context, name string, opts ...LockOption) (*Lock, error) {
	return l.acquire(ctx, name, opts, false)
}

// acquire runs attempts until one succeeds or fails for good.
func (l *Locker) acquire(ctx context.Context, name string, opts []LockOption, wait bool) (k *Lock, err error) {
	if ctx == nil {
		return nil, errNoContext
	}
	if err := checkName(name); err != nil {
		return nil, err
	}
	conf, err := newLockConfig(l.ttl, opts)
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("etcdlock: lock %q not asked for: %w", name, ended(ctx))
	}
	if !l.begin() {
		return nil, ErrClosed
	}
	defer l.end()
	asked := l.clock.Now()
	defer func() {
		if err != nil {
			l.observe(Event{Kind: EventFailed, Name: name, Elapsed: l.clock.Now().Since(asked), Err: err})
		}
	}()
	user := ctx
	ctx, cancel := context.WithCancelCause(user)
	defer cancel(nil)
	defer context.AfterFunc(l.open, func() { cancel(ErrClosed) })()

	etcd := &trouble{locker: l, what: "lock not acquired yet, trouble with etcd", name: name, asked: asked, step: "etcd had not answered"}
	var pause call.Backoff
	for {
		err := l.reentrant(ctx, name)
		if err == nil {
			break
		}
		if !wait || !l.view.Transient(err) {
			return nil, l.failed(ctx, name, err, etcd)
		}
		if etcd.note(err); !pause.Wait(ctx) {
			return nil, l.failed(ctx, name, err, etcd)
		}
	}
	etcd.at("behind others of this process")
	if err := l.takeTurn(ctx, name, wait); err != nil {
		return nil, l.failed(ctx, name, err, etcd)
	}
	etcd.at("etcd had not answered")
	pause.Reset()
	for lostPlace := false; ; {
		a := &attempt{locker: l, name: name, conf: conf, user: user, asked: asked}
		a.Trouble, a.at = etcd.note, etcd.at
		k, err := a.run(ctx, wait)
		if err == nil {
			return k, nil
		}
		lost := errors.Is(err, view.ErrPlaceLost)
		again := lost || wait && !a.refused && l.view.Transient(err)
		if !again || ctx.Err() != nil {
			l.turns.pass(name)
			etcd.last(err)
			return nil, l.failed(ctx, name, err, etcd)
		}
		if !lost {
			etcd.note(err)
		}
		if lost && a.used {
			continue // at once: a session of the pool less
		}
		if lost && !lostPlace {
			lostPlace = true
			continue // at once, but not in a tight loop
		}
		if lostPlace = false; !pause.Wait(ctx) {
			l.turns.pass(name)
			return nil, l.failed(ctx, name, err, etcd)
		}
	}
}

// failed is what an acquisition under ctx returns when err ended it.
func (l *Locker) failed(ctx context.Context, name string, err error, etcd *trouble) error {
	switch {
	case l.open.Err() != nil:
		return ErrClosed
	case ctx.Err() != nil:
		return fmt.Errorf("etcdlock: lock %q not acquired: %w (%w)", name, ended(ctx), etcd.sum())
	}
	switch err.(type) {
	case *LostError, *LockedError: // they name it already
		return err
	}
	return fmt.Errorf("etcdlock: lock %q: %w", name, err)
}

// ended says why ctx is done, in an error that matches both ctx's own and its
// cause.
func ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// takeTurn waits for the name's turn in this process.
func (l *Locker) takeTurn(ctx context.Context, name string, wait bool) error {
	if wait {
		return l.turns.take(ctx, name)
	}
	if l.turns.try(name) {
		return nil
	}
	// Somebody in this process has the lock, or waits for whoever has.
	if err := l.look(ctx, name); err != nil {
		return err
	}
	return &LockedError{Name: name, Holder: l.identity}
}

// look returns a *LockedError if the name is taken.
func (l *Locker) look(ctx context.Context, name string) error {
	resp, err := l.view.Get(ctx, l.queue(name), clientv3.WithFirstCreate()...)
	if err != nil {
		return err
	}
	if len(resp.Kvs) == 0 {
		return nil
	}
	return l.locked(name, resp.Kvs[0])
}

func (l *Locker) locked(name string, kv *mvccpb.KeyValue) error {
	if err := view.Foreign(l.queue(name), kv); err != nil {
		return err
	}
	return &LockedError{Name: name, Holder: string(kv.Value), Key: string(kv.Key)}
}
