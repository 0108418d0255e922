package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/revfence/revfence/fencing"
	"github.com/revfence/revfence/internal/call"
	"github.com/revfence/revfence/internal/clock"
	"github.com/revfence/revfence/internal/view"
)

// ownWatchAfter is for how long a place or a hold goes without a watch on its
// own key: short ones, the most by far, pay for none.
const ownWatchAfter = time.Second

// ownReread is how often the own key is read beside its watch.
const ownReread = 5 * time.Second

// An attempt is one try to get one name on one session.
type attempt struct {
	view.Attempt
	locker *Locker
	name   string
	conf   lockConfig
	user   context.Context // as the caller gave it
	asked  clock.Reading
	at     func(step string) // told what the attempt waits for

	session *session
	used    bool // the session had been used before
	cancel  context.CancelCauseFunc
	refused bool // by a fence: whatever its error looks like, not to be tried again
}

// leaseEnded makes an attempt queue again.
func (a *attempt) leaseEnded(Reason, error) { a.cancel(view.ErrPlaceLost) }

// run tries once. Whatever it wrote for nothing is withdrawn.
func (a *attempt) run(ctx context.Context, wait bool) (*Lock, error) {
	l := a.locker
	ctx, a.cancel = context.WithCancelCause(ctx)
	defer a.cancel(nil)
	if !wait {
		if err := l.look(ctx, a.name); err != nil {
			return nil, err
		}
	}
	s, used, err := l.session(ctx, a.name, a)
	if err != nil {
		return nil, err
	}
	a.session, a.used = s, used
	a.Queue, a.Lease, a.Holder = l.queue(a.name), s.lease.ID(), l.identity
	a.Key = fmt.Sprintf("%s%x", a.Queue, int64(a.Lease))
	if wait {
		err = a.wait(ctx)
	} else {
		err = a.try(ctx)
	}
	if err == nil {
		var k *Lock
		if k, err = a.hold(ctx); err == nil {
			return k, nil
		}
	}
	gone := rpctypes.Error(err) == rpctypes.ErrLeaseNotFound
	placeLost := gone || errors.Is(err, view.ErrPlaceLost) || errors.Is(context.Cause(ctx), view.ErrPlaceLost)
	regressed := errors.Is(err, ErrRevisionRegressed)
	a.withdraw(gone, placeLost || regressed)
	if regressed {
		l.log.Error("etcd revision went backwards", zap.String("lock", a.name), zap.Error(err))
		l.discard()
	}
	if placeLost {
		return nil, view.ErrPlaceLost
	}
	return nil, err
}

// wait queues, in etcd's own way.
func (a *attempt) wait(ctx context.Context) error {
	var own *time.Timer
	a.Behind = func(kv *mvccpb.KeyValue) {
		a.at(fmt.Sprintf("waiting for earlier places in the queue, the next is of %q (key %q)", kv.Value, kv.Key))
	}
	a.Waiting = func() {
		own = time.AfterFunc(ownWatchAfter, func() {
			a.locker.background(func(context.Context) { a.guardPlace(ctx) })
		})
	}
	m := concurrency.NewMutex(a.session.stock, strings.TrimSuffix(a.Queue, "/"))
	err := m.Lock(view.NewContext(ctx, &a.Attempt))
	if own != nil {
		own.Stop()
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case a.Err != nil:
		return a.Err
	case errors.Is(err, concurrency.ErrSessionExpired):
		return view.ErrPlaceLost
	}
	return err
}

// guardPlace ends the attempt when its own key goes.
func (a *attempt) guardPlace(ctx context.Context) {
	err := a.locker.view.Gone(ctx, view.Target{Key: a.Key, Rev: a.Rev, Lease: a.Lease, Every: ownReread})
	if err == nil {
		err = view.ErrPlaceLost
	}
	a.cancel(err) // after ctx ended: a no-op
}

// try takes the name if it is free.
func (a *attempt) try(ctx context.Context) error {
	kv, err := a.locker.view.CreateIfFree(ctx, &a.Attempt)
	if err == nil && kv != nil {
		err = a.locker.locked(a.name, kv)
	}
	return err
}

// hold makes a lock of an attempt whose key is the oldest in the queue.
func (a *attempt) hold(ctx context.Context) (*Lock, error) {
	l, s := a.locker, a.session
	k := newLock(a)
	err := k.arm(ctx, a.conf)
	a.refused = err != nil
	if err == nil && s.lease.Remaining() < s.lease.Enough() {
		err = view.ErrPlaceLost // too late to be of use: the answers took too long
	}
	if err == nil {
		l.mu.Lock()
		switch {
		case ctx.Err() != nil:
			err = context.Cause(ctx)
		case l.closed:
			err = ErrClosed
		case s.over:
			err = view.ErrPlaceLost
		default:
			s.names[a.name] = k
			l.held[k] = struct{}{}
			l.work++
		}
		l.mu.Unlock()
	}
	if err != nil {
		k.cancel(err)
		k.die()
		return nil, err
	}
	k.start(a.conf)
	l.servers.Do(l.checkServers)
	wait := k.since.Since(a.asked)
	if e := l.log.Check(zap.DebugLevel, "lock acquired"); e != nil {
		e.Write(zap.String("lock", k.name), zap.Int64("token", int64(k.token)), zap.Duration("waited", wait))
	}
	l.observe(Event{Kind: EventAcquired, Name: k.name, Token: k.token, Elapsed: wait})
	return k, nil
}

// withdraw takes back what the attempt wrote, in the background. gone says
// that its lease is known not to exist; suspect, that its key or its lease ended
// unbidden or etcd was set back, so that no other name should get its session.
func (a *attempt) withdraw(gone, suspect bool) {
	l, s := a.locker, a.session
	how := clean
	if gone || suspect {
		how = dirty
	}
	switch {
	case gone:
		l.leave(s, a.name, how)
	case a.Dirty:
		l.scrub(s, a.name, a.Key)
		l.leave(s, a.name, dirty)
	case a.Rev == 0: // not written, or refused
		l.leave(s, a.name, how)
	default:
		l.background(func(ctx context.Context) {
			if err := l.erase(ctx, a.Key, fencing.Token(a.Rev)); err != nil {
				how = dirty
				l.scrub(s, a.name, a.Key)
			}
			l.leave(s, a.name, how)
		})
	}
}

// eraseLimit bounds a deletion in the background, during which the lease may
// still be renewed: what it deletes must not live much longer for it.
func (l *Locker) eraseLimit() time.Duration { return min(l.ttl/3, call.Limit) }

// erase deletes a key if its create revision is still rev. A nil error means
// that the key of that revision is gone.
func (l *Locker) erase(ctx context.Context, key string, rev fencing.Token) error {
	ctx, cancel := context.WithTimeout(ctx, l.eraseLimit())
	defer cancel()
	resp, err := l.view.Commit(ctx, []clientv3.Cmp{ownerCmp(key, rev)}, []clientv3.Op{clientv3.OpDelete(key)}, nil)
	if resp != nil {
		return nil
	}
	return err
}

// scrub deletes name's key that may be there, or still come, on a lease that
// lives on for its other locks, until that lease ends. A lease without others is
// revoked, which does the same.
func (l *Locker) scrub(s *session, name, key string) {
	l.mu.Lock()
	// The name itself may have left.
	others := len(s.names) > 1 || len(s.names) == 1 && s.names[name] == nil
	s.tainted = true // no new hold of the same name on this lease
	l.mu.Unlock()
	if !others {
		return
	}
	l.background(func(ctx context.Context) {
		ours := clientv3.Compare(clientv3.LeaseValue(key), "=", s.lease.ID())
		for wait := time.Second; ; wait = min(2*wait, l.ttl) { // a late copy comes soon or never
			try, cancel := context.WithTimeout(ctx, l.eraseLimit())
			_, _ = l.view.Commit(try, []clientv3.Cmp{ours}, []clientv3.Op{clientv3.OpDelete(key)}, nil)
			cancel()
			t := time.NewTimer(call.Jitter(wait))
			select {
			case <-t.C:
			case <-s.lease.Done():
				t.Stop()
				return
			case <-ctx.Done():
				t.Stop()
				return
			}
		}
	})
}
