package etcdlock

import (
	"context"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/revfence/revfence/internal/call"
	"github.com/revfence/revfence/internal/clock"
	"github.com/revfence/revfence/internal/lease"
	"github.com/revfence/revfence/internal/view"
)

const (
	// maxIdle bounds the leases kept for reuse.
	maxIdle = 16
	// maxAge, in TTLs, bounds a lease's life however busy: a key that was
	// released and came back with a restored backup is kept alive by nothing
	// for longer.
	maxAge = 10
	// lateGrant is when a lease whose grant was not answered, and that was not
	// there to be revoked, is revoked again.
	lateGrant = time.Second
)

// A session is a concurrency.Session on a lease of ours, used by one lock at a
// time, or by several of different names if WithSharedLeases says so.
type session struct {
	locker *Locker
	lease  *lease.Lease
	stock  *concurrency.Session
	born   clock.Reading

	// Guarded by Locker.mu.
	names   map[string]tenant
	over    bool          // its lease ended by itself
	tainted bool          // takes no new names; revoked with its last one
	spared  bool          // but not revoked: the work of a lock that was on it may still run
	since   clock.Reading // when it became idle
}

// A tenant is an attempt or a lock on a session's lease.
type tenant interface {
	// leaseEnded is called once, when the lease ended by itself.
	leaseEnded(Reason, error)
}

// session returns a session for one name, new or used before. On an error
// nothing is left to clean up for the caller.
func (l *Locker) session(ctx context.Context, name string, t tenant) (s *session, used bool, err error) {
	if s := l.reuse(name, t); s != nil {
		return s, true, nil
	}
	s = &session{locker: l, born: l.clock.Now(), names: map[string]tenant{name: t}}
	granted, id, err := l.keeper.Grant(ctx, l.ttl, l.margin, s.leaseEnded)
	if err != nil {
		if id != 0 {
			l.background(func(ctx context.Context) { l.revoke(ctx, id, l.ttl) })
		}
		return nil, false, err
	}
	s.lease = granted
	s.stock, err = concurrency.NewSession(l.view.Client, concurrency.WithLease(id), concurrency.WithTTL(int(granted.TTL()/time.Second)))
	if err != nil { // the lease ended within this moment
		l.leave(s, name, dirty)
		return nil, false, view.ErrPlaceLost
	}
	l.mu.Lock()
	if len(s.names) < l.share && !s.tainted {
		l.room = append(l.room, s)
	}
	l.mu.Unlock()
	return s, false, nil
}

// reuse returns a session that is known to be clean and has room for name.
func (l *Locker) reuse(name string, t tenant) *session {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := len(l.room) - 1; i >= 0; i-- {
		s := l.room[i]
		if s.names[name] != nil || l.aged(s) || s.lease.Left() < s.lease.Enough() {
			continue
		}
		s.names[name] = t
		if len(s.names) >= l.share {
			l.room = slices.Delete(l.room, i, i+1)
		}
		return s
	}
	return nil
}

func (l *Locker) aged(s *session) bool {
	return l.clock.Now().Since(s.born) > maxAge*l.ttl
}

// How a name leaves its session.
type parting int

const (
	clean     parting = iota // its key is known to be gone
	dirty                    // a write of unknown outcome: the key may be there, or still come
	abandoned                // its work may still run: not to be handed over early
)

// leave takes a name out of its session. A session that is not clean, too old
// or one too many is never used again.
func (l *Locker) leave(s *session, name string, how parting) {
	l.mu.Lock()
	delete(s.names, name)
	fits := how == clean && !s.tainted && !l.closed && !l.aged(s) && s.lease.Left() > 0
	if fits && len(s.names) == 0 {
		s.since = l.clock.Now()
		fits = l.idleLocked() < maxIdle
	}
	switch {
	case !fits:
		s.tainted = true
		l.dropLocked(s)
	case !slices.Contains(l.room, s):
		l.room = append(l.room, s)
	}
	if len(l.room) > 0 && l.reaper == nil && !l.closed {
		l.reaper = time.AfterFunc(l.ttl, l.reap)
	}
	last := len(s.names) == 0
	s.spared = s.spared || how == abandoned
	spared := s.spared
	l.mu.Unlock()
	if fits || !last {
		return
	}
	s.lease.Stop()
	if !spared {
		l.background(func(ctx context.Context) { l.revoke(ctx, s.lease.ID(), l.ttl) })
	}
}

// idleLocked counts the idle sessions in the pool.
func (l *Locker) idleLocked() (n int) {
	for _, s := range l.room {
		if len(s.names) == 0 {
			n++
		}
	}
	return n
}

func (l *Locker) dropLocked(s *session) {
	if i := slices.Index(l.room, s); i >= 0 {
		l.room = slices.Delete(l.room, i, i+1)
	}
}

// reap revokes what was idle for a TTL or has become too old.
func (l *Locker) reap() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reaper = nil
	now := l.clock.Now()
	l.retireLocked(func(s *session) bool { return now.Since(s.since) >= l.ttl || l.aged(s) })
	if len(l.room) > 0 && !l.closed {
		next := l.ttl // no longer: a released key that a backup brings back lives on an idle lease
		for _, s := range l.room {
			if len(s.names) == 0 {
				next = min(next, l.ttl-now.Since(s.since))
			}
		}
		l.reaper = time.AfterFunc(next, l.reap)
	}
}

// shutLocked retires all idle sessions, for Close.
func (l *Locker) shutLocked() {
	if l.reaper != nil {
		l.reaper.Stop()
		l.reaper = nil
	}
	l.retireLocked(func(*session) bool { return true })
}

// discard retires all idle sessions, and keeps those of held locks from being used
// again.
func (l *Locker) discard() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.room {
		s.tainted = true
	}
	for k := range l.held {
		k.session.tainted = true
	}
	l.retireLocked(func(*session) bool { return true })
}

// retireLocked revokes the idle sessions that pick picks, in the background.
func (l *Locker) retireLocked(pick func(*session) bool) {
	var out []*session
	l.room = slices.DeleteFunc(l.room, func(s *session) bool {
		if len(s.names) > 0 {
			return s.tainted
		}
		if pick(s) {
			out = append(out, s)
			return true
		}
		return false
	})
	for _, s := range out {
		l.work++
		go func() {
			defer l.end()
			s.lease.Stop()
			l.revoke(l.base, s.lease.ID(), l.ttl)
		}()
	}
}

// revoke ends a lease in etcd. It goes on trying for as long as the lease can
// live by itself, ttl: a blip must not cost the next in the queue a long TTL. A
// closed Locker tries once.
func (l *Locker) revoke(ctx context.Context, id clientv3.LeaseID, ttl time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, ttl)
	defer cancel()
	again, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(l.open, stop)()
	unsure := false
	var pause call.Backoff
	for {
		late, err := l.keeper.Revoke(ctx, id)
		unsure = unsure || late
		if err == nil && !unsure {
			return
		}
		if err == nil {
			unsure = false // once more: what comes late comes soon or never
			t := time.NewTimer(call.Jitter(lateGrant))
			select {
			case <-t.C:
				continue
			case <-again.Done():
				t.Stop()
				return
			}
		}
		if !l.view.Transient(err) || !pause.Wait(again) {
			l.log.Info("lease not revoked, left to expire", zap.Int64("lease", int64(id)), zap.Error(err))
			return
		}
	}
}

// leaseReasons is what the end of a lease means for its locks; lease.Stopped,
// which comes after theirs, means nothing.
var leaseReasons = map[lease.End]Reason{
	lease.Deadline: ReasonDeadline, lease.Suspended: ReasonSuspended, lease.Gone: ReasonLeaseGone,
	lease.Denied: ReasonDenied, lease.Unauthenticated: ReasonUnauthenticated,
}

// leaseEnded tells everybody on the lease that it is over.
func (s *session) leaseEnded(why lease.End, err error) {
	reason := leaseReasons[why]
	l := s.locker
	l.mu.Lock()
	s.over, s.tainted = true, true
	l.dropLocked(s)
	told := make([]tenant, 0, len(s.names))
	for _, t := range s.names {
		told = append(told, t)
	}
	l.mu.Unlock()
	for _, t := range told {
		t.leaseEnded(reason, err)
	}
}
