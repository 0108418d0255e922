package etcdlock

import (
	"context"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/revfence/revfence/fencing"
	"github.com/revfence/revfence/internal/call"
	"github.com/revfence/revfence/internal/clock"
	"github.com/revfence/revfence/internal/view"
)

// A Lock is one hold of one name. It ends once, by Unlock or by loss, and is
// never held again. All methods are safe for concurrent use.
type Lock struct {
	locker  *Locker
	session *session
	name    string
	key     string
	token   fencing.Token
	since   clock.Reading
	dirty   bool            // a copy of its create transaction may still be under way
	ctx     context.Context // the holder's
	cancel  context.CancelCauseFunc

	// live ends with the hold; ctx may end before, when the Locker is closed.
	live context.Context
	die  context.CancelFunc

	mu       sync.Mutex
	state    state
	lost     *LostError
	timers   []*time.Timer
	released chan struct{} // closed when Unlock's outcome is known
	outcome  error
	left     bool // Unlock was called on the lost lock
}

type state int

const (
	held state = iota
	releasing
	lost
)

func newLock(a *attempt) *Lock {
	k := &Lock{
		locker: a.locker, session: a.session, name: a.name, key: a.Key, token: fencing.Token(a.Rev),
		since: a.locker.clock.Now(), dirty: a.Dirty, released: make(chan struct{}),
	}
	base := context.WithValue(context.WithoutCancel(a.user), holdsKey{}, &holds{k, holdsOf(a.user)})
	base, k.cancel = context.WithCancelCause(base)
	k.ctx = fencing.NewContext(base, k.name, k.token)
	k.live, k.die = context.WithCancel(context.Background())
	return k
}

// start starts what runs beside a hold.
func (k *Lock) start(conf lockConfig) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.state != held {
		return
	}
	k.timers = append(k.timers, time.AfterFunc(call.Jitter(ownWatchAfter*2/3), func() {
		k.locker.background(func(context.Context) { k.guardKey() })
	}))
	if conf.maxHold > 0 {
		// Go's timer will do: this is a policy, not a promise.
		k.timers = append(k.timers, time.AfterFunc(conf.maxHold, func() { k.lose(ReasonMaxHold, nil) }))
	}
}

// guardKey loses the lock when its key is deleted, replaced or moved to
// another lease: renewals go on without it.
func (k *Lock) guardKey() {
	// The watch is the signal, the read only its backstop: one more per third
	// of the TTL would cost more than the renewals.
	every := max(ownReread, k.session.lease.TTL())
	etcd := &trouble{locker: k.locker, what: "held lock's key cannot be watched, trouble with etcd", name: k.name, asked: k.since}
	err := k.locker.view.Gone(k.live, view.Target{
		Key: k.key, Rev: int64(k.token), Lease: k.session.lease.ID(), Every: every, Trouble: etcd.note,
	})
	switch {
	case k.live.Err() != nil:
	case err == nil:
		k.lose(ReasonKeyGone, nil)
	case call.TokenRefused(err): // and no other to be had
		k.lose(ReasonUnauthenticated, err)
	default:
		k.lose(ReasonDenied, err)
	}
}

// Token returns the lock's fencing token: the create revision of its key, fixed
// for the life of the lock. While etcd's revisions do not go backwards, tokens
// of one name strictly increase from holder to holder.
func (k *Lock) Token() fencing.Token { return k.token }

// String names the lock and its token.
func (k *Lock) String() string { return fmt.Sprintf("lock %q (token %d)", k.name, int64(k.token)) }

// Name returns the name the lock was taken under.
func (k *Lock) Name() string { return k.name }

// Key returns the lock's key in etcd.
func (k *Lock) Key() string { return k.key }

// Context returns the holder's context. It has the values, not the
// cancellation, of the context given to Lock, and carries the token for
// fencing.FromContext. It is cancelled when the lock is lost, with a
// *LostError as its cause, when it is released, with ErrReleased, and when the
// Locker is closed, with ErrClosed.
//
// A context that is not cancelled proves nothing: the signal of a process that
// was paused comes after the pause. Once Close has cancelled it, it says nothing
// about the lock any more, which is held until it is unlocked: ask Remaining.
func (k *Lock) Context() context.Context { return k.ctx }

// Remaining returns how long the lock may still be trusted: until its local
// deadline, which lies the safety margin before the first moment at which etcd
// can expire it. It is between 0 and TTL − margin, and 0 once the lock has
// ended.
func (k *Lock) Remaining() time.Duration {
	left := k.settle()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.state != held {
		return 0
	}
	return left
}

// settle makes what the clocks know now the lock's state, before anything is
// said about it: timers may be late, or have slept. It returns what is left.
func (k *Lock) settle() time.Duration {
	left := k.session.lease.Remaining()
	if left > 0 {
		return left
	}
	// Another goroutine may be about to tell the lock: nobody waits for that.
	if why, err, ended := k.session.lease.Ended(); ended && leaseReasons[why] != 0 {
		k.lose(leaseReasons[why], err)
	}
	return 0
}

// Require returns nil if the lock may be trusted for d more, a *RequireError
// if it is held but not for that long, which also says the longest d that its
// TTL allows, and else what Check would say without asking etcd. Use it before
// a step that must not be cut short. It is a precaution, not a fence.
func (k *Lock) Require(d time.Duration) error {
	left := k.Remaining()
	if err := k.err(); err != nil {
		return err
	}
	if d <= left {
		return nil
	}
	return &RequireError{Name: k.name, Need: d, Remaining: left, Longest: k.session.lease.Longest()}
}

// Check asks etcd whether the lock is still held. It asks with a write to the
// lock's own key, that changes nothing but its mod revision, since some etcd
// versions answer a linearizable read from the past after a pause
// (etcd #20418).
//
// It returns nil if the lock was held when etcd answered, a *LostError if it is
// lost, ErrReleased after Unlock, ErrRevisionRegressed if revisions went
// backwards, and otherwise the error of the call, which says nothing about the
// lock. Between its answer and the next statement the lock can be lost: it does
// not replace a fence. A call takes 5 s at the most, whatever ctx allows.
func (k *Lock) Check(ctx context.Context) error {
	if ctx == nil {
		return errNoContext
	}
	if err := k.err(); err != nil {
		return err
	}
	resp, err := k.locker.view.Commit(ctx, []clientv3.Cmp{k.IsOwner()}, []clientv3.Op{k.touch()}, nil)
	if resp != nil && !resp.Succeeded {
		k.lose(ReasonKeyGone, nil)
	}
	if lost := k.err(); lost != nil {
		return lost
	}
	if err != nil {
		return fmt.Errorf("etcdlock: check of %q: %w", k.name, err)
	}
	return nil
}

// touch writes to the lock's key without changing anything but its mod revision.
func (k *Lock) touch() clientv3.Op {
	return clientv3.OpPut(k.key, "", clientv3.WithIgnoreValue(), clientv3.WithIgnoreLease())
}

// err returns nil while the lock is held, and else how it ended.
func (k *Lock) err() error {
	k.settle()
	k.mu.Lock()
	defer k.mu.Unlock()
	switch k.state {
	case held:
		return nil
	case lost:
		return k.lost
	}
	return ErrReleased
}

// leaseEnded loses the lock with its lease.
func (k *Lock) leaseEnded(reason Reason, err error) { k.lose(reason, err) }

// lose ends the hold by loss, once, and reports whether it did.
//
// The order matters: the holder is told before anybody else can be let in, in
// this process by passing the turn, elsewhere by revoking the lease.
func (k *Lock) lose(reason Reason, err error) bool {
	l := k.locker
	k.mu.Lock()
	if k.state != held {
		k.mu.Unlock()
		return false
	}
	k.state = lost
	k.lost = &LostError{Name: k.name, Token: k.token, Reason: reason, Err: err}
	k.stopLocked()
	k.mu.Unlock()
	k.cancel(k.lost)
	k.outcome = k.lost
	close(k.released)

	how := dirty
	switch reason {
	case ReasonDeadline, ReasonSuspended, ReasonMaxHold, ReasonClosed:
		// The holder's work may still run: the margin, and what is left of the
		// TTL, is its time to stop. Revoking would give the lock away now.
		how = abandoned
		l.expire(k)
	}
	l.leave(k.session, k.name, how)
	l.turns.pass(k.name)
	hold := l.clock.Now().Since(k.since)
	// Others are still to be told, and renewed, on this goroutine: neither the
	// logger nor the Observer may hold it up.
	l.background(func(context.Context) {
		l.log.Warn("lock lost", zap.String("lock", k.name), zap.Int64("token", int64(k.token)),
			zap.Stringer("reason", reason), zap.Duration("held", hold), zap.Error(err))
		l.observe(Event{Kind: EventLost, Name: k.name, Token: k.token, Reason: reason, Elapsed: hold, Err: k.lost})
	})
	l.drop(k)
	return true
}

// stopLocked ends what runs beside the hold.
func (k *Lock) stopLocked() {
	k.die()
	for _, t := range k.timers {
		t.Stop()
	}
}

// drop takes an ended hold out of the books.
func (l *Locker) drop(k *Lock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.held, k)
	l.endLocked()
}
