package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/revfence/revfence/internal/keyspace"
)

// Once runs fn for a slot of a name, a night of a nightly job or a tick of a
// clock, unless that slot is done, and marks it done when fn has returned nil.
// The slot is what the run was scheduled for, the same in every process: not the
// time at which its turn has come.
// Among all processes that ask, on time, late or again after a restart, fn is
// started for nobody once the slot is marked. A lock alone does not do that:
// whoever comes second runs the job a second time, one after the other.
//
// fn runs as under [Locker.Do], started with the lock of name held, whatever the
// slot; a holder that has lost the lock may still run beside the next one, and
// marks nothing. The mark is a key in etcd, written in a transaction that
// etcd applies only while the lock is held. name and slot are 1 to 1024 bytes of
// any kind.
//
// Once returns nil if the slot is done, by this fn or before; set a variable in
// fn to know which. Otherwise it returns what Do would, and errors may be joined:
//
//   - an error of Lock, and fn has not run;
//   - fn's error: the slot is open, and the next to ask runs fn again, whoever waits
//     already at once. Return nil for a failure that is not to be repeated;
//   - a *LostError: the lock was lost before the slot was marked, most often while
//     fn ran or may still run. The next to ask runs fn again;
//   - an error of etcd: before fn, what the look for the mark came to; after it, why
//     the mark was refused. The slot is open;
//   - an error that matches ErrUnknown, whatever else it matches: etcd did not
//     confirm the mark, or the release after it. It does not say whether fn ran.
//
// fn must not unlock the lock: what comes after it needs it.
//
// So what crashed or was cut off halfway is started again, by another process:
// fn has to find what an earlier try has done already, and its writes want a
// fence. Where a second start is worse than none, use [WithMarkFirst]. The context
// that fn is given ends with ctx, and with the lock. Once returns within two
// seconds of ctx's end, or of fn's return if that is later.
//
// Marks are kept, unless [WithMarkTTL] says for how long. A restore of etcd
// from a backup forgets the later ones, with or without a bumped revision.
// [Locker.MarkKey] names one, to look at it or to have the slot run again.
func (l *Locker) Once(ctx context.Context, name, slot string, fn func(ctx context.Context, lock *Lock) error, opts ...OnceOption) error {
	if fn == nil {
		return errors.New("etcdlock: Once of a nil function")
	}
	if ctx == nil {
		return errNoContext
	}
	if err := checkName(name); err != nil {
		return err
	}
	if slot == "" || len(slot) > maxNameLen {
		return fmt.Errorf("etcdlock: slot of %d bytes: 1 to %d are allowed", len(slot), maxNameLen)
	}
	conf, err := newOnceConfig(opts)
	if err != nil {
		return err
	}
	if _, err := newLockConfig(l.ttl, conf.lock); err != nil { // also for a slot that is done
		return err
	}
	m := mark{locker: l, key: l.MarkKey(name, slot), ttl: conf.ttl}
	// Most who ask come late. What this read does not see, the next one does.
	if ctx.Err() == nil && l.open.Err() == nil && m.seen(ctx) {
		return nil
	}
	return l.Do(ctx, name, func(ctx context.Context, lock *Lock) error {
		if conf.first {
			limited, cancel := context.WithTimeout(ctx, lock.session.lease.TTL())
			defer cancel()
			if mine, err := m.write(limited, lock); err != nil || !mine {
				return err
			}
			return fn(ctx, lock)
		}
		if done, err := m.read(ctx, lock); err != nil || done {
			return err
		}
		if err := fn(ctx, lock); err != nil {
			return err
		}
		// The work is done: its mark is worth more than the caller's patience.
		ctx, cancel := graceful(ctx, min(releaseGrace, l.ttl/3), lock.session.lease.TTL())
		defer cancel(nil)
		_, err := m.write(ctx, lock)
		return err
	}, conf.lock...)
}

// MarkKey returns the key in etcd that says that a slot of a name is done:
// <prefix>%done/<escaped name>/<escaped slot>. Its value is the token of the hold
// that did it, the time by that machine's clock, and the identity of its Locker,
// with spaces between. To ask whether a slot is done, read it; to have the slot
// run again, delete it.
func (l *Locker) MarkKey(name, slot string) string { return keyspace.Mark(l.prefix, name, slot) }

// A OnceOption configures one Once. Every LockOption is one.
type OnceOption interface{ applyOnce(*onceConfig) error }

type onceOptionFunc func(*onceConfig) error

func (f onceOptionFunc) applyOnce(c *onceConfig) error { return f(c) }

type onceConfig struct {
	lock  []LockOption
	ttl   time.Duration // of the mark; 0: kept
	first bool
}

func newOnceConfig(opts []OnceOption) (c onceConfig, err error) {
	for _, o := range opts {
		if o == nil {
			return c, errors.New("etcdlock: nil OnceOption")
		}
		if err := o.applyOnce(&c); err != nil {
			return c, err
		}
	}
	return c, nil
}

// maxMarkTTL is far from the most that etcd allows, and more than a clock is
// planned for.
const maxMarkTTL = 100 * 365 * 24 * time.Hour

// WithMarkTTL lets the mark of a done slot go d after writing it was begun, by
// etcd's clock; trouble with etcd can make that up to a lock's TTL before it was
// written. By default a mark is kept. d is rounded up to whole seconds, at most
// 100 years; etcd may grant more (2 s is its least, by default), and a new leader
// of it gives the mark its whole d again. It has to be longer than anybody may
// come late: after that the slot runs again. With [WithMarkFirst] it runs from
// before fn.
func WithMarkTTL(d time.Duration) OnceOption {
	return onceOptionFunc(func(c *onceConfig) error {
		if d <= 0 || d > maxMarkTTL {
			return fmt.Errorf("etcdlock: mark TTL %v: must be above 0 and at most 100 years", d)
		}
		c.ttl = (d + time.Second - 1).Truncate(time.Second)
		return nil
	})
}

// WithMarkFirst marks the slot before fn starts, so that fn starts at most once,
// whatever happens: a slot whose fn failed, or whose process died, counts as
// done, and nobody makes up for it. Other calls return nil also while fn still
// runs. For messages to people, say, of which a second is worse than none.
//
// With it an error that matches ErrUnknown, and an fn that has not run, mean that
// the slot may be marked: nobody's fn will run then.
func WithMarkFirst() OnceOption {
	return onceOptionFunc(func(c *onceConfig) error {
		c.first = true
		return nil
	})
}
