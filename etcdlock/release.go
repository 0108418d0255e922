package etcdlock

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/revfence/revfence/fencing"
	"github.com/revfence/revfence/internal/call"
)

// releaseGrace is for how long a release goes on after its caller's context
// has ended: a service that shuts down has usually cancelled everything by the
// time it unlocks, and the next holder should not have to wait out a TTL.
const releaseGrace = time.Second

// Unlock releases the lock. Finish, or abandon, all work the lock protects
// first. It cancels the lock's context and deletes its key, if that is still
// the key of this hold.
//
// Unlock is idempotent, and every call that sees its end returns the same:
//
//   - nil: released;
//   - a *LostError: the lock had been lost before. If its lease was left to
//     expire, it is revoked now, since its work is over (unless the Locker is
//     closed);
//   - an error that matches ErrUnknown: etcd did not confirm. The lock is no
//     longer renewed, and free within the TTL. (With WithSharedLeases its lease
//     may live on for others: the deletion is then repeated until it succeeds.)
//
// A release under way goes on for up to a second after ctx has ended, and Unlock
// returns by then. Without an end of ctx it gives up after the TTL. A nil ctx is
// context.Background().
func (k *Lock) Unlock(ctx context.Context) error {
	if ctx == nil { // an error would most often go unseen, and the lock stay
		ctx = context.Background()
	}
	k.settle()
	k.mu.Lock()
	switch k.state {
	case releasing:
		k.mu.Unlock()
		return k.await(ctx)
	case lost:
		left := k.left
		k.left = true
		k.mu.Unlock()
		if !left {
			k.handOver()
		}
		return k.await(ctx)
	}
	k.state = releasing
	k.stopLocked()
	k.mu.Unlock()
	k.cancel(ErrReleased)

	l := k.locker
	how, err := k.release(ctx)
	if how == dirty {
		l.scrub(k.session, k.name, k.key)
	}
	l.leave(k.session, k.name, how)
	l.turns.pass(k.name)
	hold := l.clock.Now().Since(k.since)
	level, what := zap.DebugLevel, "lock released"
	if err != nil {
		level, what = zap.WarnLevel, "lock release not confirmed, or lock lost before"
	}
	if e := l.log.Check(level, what); e != nil {
		e.Write(zap.String("lock", k.name), zap.Int64("token", int64(k.token)), zap.Duration("held", hold), zap.Error(err))
	}
	k.outcome = err
	close(k.released)
	l.observe(Event{Kind: EventReleased, Name: k.name, Token: k.token, Elapsed: hold, Err: err})
	l.drop(k)
	return err
}

// await returns the outcome of the call that ended the hold.
func (k *Lock) await(ctx context.Context) error {
	select {
	case <-k.released:
		return k.outcome
	default:
	}
	select {
	case <-k.released:
		return k.outcome
	case <-ctx.Done():
		return fmt.Errorf("etcdlock: release of %q under way: %w: %w", k.name, ErrUnknown, ended(ctx))
	}
}

// release deletes the lock's key and says how it leaves its session.
func (k *Lock) release(ctx context.Context) (parting, error) {
	l := k.locker
	ctx, cancel := graceful(ctx, min(releaseGrace, l.ttl/3), k.session.lease.TTL())
	defer cancel(nil)
	defer context.AfterFunc(l.base, func() { cancel(ErrClosed) })()
	unsure := false
	var pause call.Backoff
	var last error // of etcd
	for {
		resp, repeated, err := l.view.Write(ctx, []clientv3.Cmp{k.IsOwner()}, []clientv3.Op{clientv3.OpDelete(k.key)}, nil)
		unsure = unsure || repeated
		switch {
		case resp != nil && resp.Succeeded && !unsure && !k.dirty && err == nil:
			return clean, nil
		case resp != nil && (resp.Succeeded || unsure):
			// An attempt without an answer has deleted it, or may do so again;
			// or etcd was set back, and the lease has who knows what else.
			return dirty, nil
		case resp != nil:
			return dirty, &LostError{Name: k.name, Token: k.token, Reason: ReasonKeyGone}
		}
		if unsure = true; ctx.Err() == nil {
			last = err
		}
		l.stopRenewing(k.session)
		if !l.view.Transient(err) || !pause.Wait(ctx) {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
				if last != nil {
					err = fmt.Errorf("%w, the last error was %w", err, last)
				}
			}
			return dirty, fmt.Errorf("etcdlock: release of %q (token %d) not confirmed, it ends within its TTL of %v: %w: %w",
				k.name, int64(k.token), k.session.lease.TTL(), ErrUnknown, err)
		}
	}
}

// stopRenewing lets a lease run out that no other lock is on.
func (l *Locker) stopRenewing(s *session) {
	l.mu.Lock()
	alone := len(s.names) == 1
	s.tainted = true
	l.dropLocked(s)
	l.mu.Unlock()
	if alone {
		s.lease.Stop()
	}
}

// graceful returns a context that outlives ctx by grace, and lasts no longer
// than limit in all. Its cause says which of the two it was.
func graceful(ctx context.Context, grace, limit time.Duration) (context.Context, context.CancelCauseFunc) {
	out, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	last := time.AfterFunc(limit, func() { cancel(fmt.Errorf("no answer within the TTL, %v", limit)) })
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(grace, func() { cancel(ended(ctx)) }) })
	return out, func(cause error) {
		stop()
		last.Stop()
		cancel(cause)
	}
}

// handOver frees a lost lock's name early, once its holder has said, by
// calling Unlock, that its work is over.
func (k *Lock) handOver() {
	l := k.locker
	switch k.lost.Reason {
	case ReasonDeadline, ReasonSuspended, ReasonMaxHold:
		l.background(func(ctx context.Context) {
			if l.share == 1 {
				l.revoke(ctx, k.session.lease.ID(), l.ttl)
				return
			}
			_ = l.erase(ctx, k.key, k.token) // other locks' work may still run on the lease
		})
	}
}

// expire frees the name of an abandoned lock as the end of its lease would,
// if the lease lives on for other locks.
func (l *Locker) expire(k *Lock) {
	l.mu.Lock()
	others := len(k.session.names) > 1 && !k.session.over
	l.mu.Unlock()
	if !others {
		return
	}
	l.background(func(ctx context.Context) {
		t := time.NewTimer(k.session.lease.TTL())
		defer t.Stop()
		select {
		case <-t.C:
			if l.erase(ctx, k.key, k.token) != nil {
				l.scrub(k.session, k.name, k.key)
			}
		case <-k.session.lease.Done():
		case <-ctx.Done():
		}
	})
}

// ownerCmp is true while key has create revision rev.
func ownerCmp(key string, rev fencing.Token) clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(key), "=", int64(rev))
}
