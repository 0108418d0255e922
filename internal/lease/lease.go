package lease

import (
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/revfence/revfence/internal/clock"
)

// An End says why a lease is no longer believed.
type End int

// The ends a lease can come to.
const (
	Stopped         End = iota // the owner stopped renewing it
	Deadline                   // no renewal was answered in time
	Suspended                  // the machine slept past the deadline
	Gone                       // etcd says it does not exist
	Denied                     // etcd refused the renewal: permission
	Unauthenticated            // etcd refused the renewal: the token is not valid, and cannot be renewed
)

func (e End) String() string {
	switch e {
	case Stopped:
		return "stopped"
	case Deadline:
		return "deadline"
	case Suspended:
		return "suspended"
	case Gone:
		return "gone"
	case Denied:
		return "denied"
	case Unauthenticated:
		return "unauthenticated"
	}
	return fmt.Sprintf("End(%d)", int(e))
}

// A Lease is one granted lease that its Keeper renews.
type Lease struct {
	keeper *Keeper
	id     int64
	margin time.Duration
	onEnd  func(End, error)

	done   chan struct{}
	closed chan *clientv3.LeaseKeepAliveResponse // for concurrency.Session; never sent on

	mu     sync.Mutex
	ttl    time.Duration // as granted with the last answer
	sent   clock.Reading // when the last answered request was sent
	asked  bool          // a renewal is due and was handed to the streams
	barked clock.Reading // when the watchdog last acted; zero if not since sent
	timer  *time.Timer
	ended  bool
	why    End   // of the end
	err    error // with it
}

// ID returns the lease's id.
func (l *Lease) ID() clientv3.LeaseID { return clientv3.LeaseID(l.id) }

// TTL returns the TTL that etcd granted.
func (l *Lease) TTL() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ttl
}

// Done is closed when the lease has ended.
func (l *Lease) Done() <-chan struct{} { return l.done }

// Remaining returns how long the lease may still be believed: at least 0, at
// most TTL − margin. A lease found past its deadline has ended when Remaining
// returns 0; its owner has been told, unless another goroutine is just about
// to: Ended says what of.
func (l *Lease) Remaining() time.Duration {
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		return 0
	}
	now := l.keeper.clock.Now()
	left, why := l.left(now)
	l.mu.Unlock()
	if left <= 0 {
		l.end(why, nil)
		return 0
	}
	return left
}

// Left is Remaining without consequences, for callers that hold locks which
// onEnd takes.
func (l *Lease) Left() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return 0
	}
	left, _ := l.left(l.keeper.clock.Now())
	return max(0, left)
}

// Ended reports whether the lease has ended, and how.
func (l *Lease) Ended() (why End, err error, ended bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.why, l.err, l.ended
}

// Stop ends the lease for its owner: no more renewals, and no call of onEnd.
func (l *Lease) Stop() { l.end(Stopped, nil) }

// left returns what is left at now, and why if nothing is.
func (l *Lease) left(now clock.Reading) (time.Duration, End) {
	left := l.ttl - l.margin - now.Since(l.sent)
	if left <= 0 && left+now.Suspended(l.sent) > 0 {
		return left, Suspended
	}
	return left, Deadline
}

// dueAfter is the age at which a renewal is asked for, as etcd's client has it.
func (l *Lease) dueAfter() time.Duration { return l.ttl / 3 }

// dogAfter is the age at which a missing answer is taken for a broken stream.
func (l *Lease) dogAfter() time.Duration { return l.ttl/3 + min(2*time.Second, l.ttl/6) }

// barkEvery is how long a rescue is given before the next one replaces it.
func (l *Lease) barkEvery() time.Duration { return max(time.Second, l.ttl/6) }

// tick does what the lease's age calls for and arms the timer for what is
// next. It runs on the timer, and when the clocks jumped.
func (l *Lease) tick() {
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		return
	}
	now := l.keeper.clock.Now()
	left, why := l.left(now)
	if left <= 0 {
		l.mu.Unlock()
		l.end(why, nil)
		return
	}
	age := now.Since(l.sent)
	next := left
	ask, bark := false, false
	if due := l.dueAfter() - age; due > 0 {
		next = min(next, due)
	} else {
		ask, l.asked = !l.asked, true
		wait := l.dogAfter() - age
		if l.barked != (clock.Reading{}) {
			wait = l.barkEvery() - now.Since(l.barked)
		}
		if wait <= 0 {
			bark, l.barked, wait = true, now, l.barkEvery()
		}
		next = min(next, wait)
	}
	l.timer.Reset(next)
	l.mu.Unlock()
	if ask {
		l.keeper.ask(l)
	}
	if bark {
		l.keeper.bark(l, left)
	}
}

// renewed takes an answer to a request sent at sent.
func (l *Lease) renewed(sent clock.Reading, ttl time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return
	}
	now := l.keeper.clock.Now()
	if left, _ := l.left(now); left <= 0 {
		return // too late: the timer is about to say so
	}
	if ttl-now.Since(sent) <= l.ttl-now.Since(l.sent) {
		return // an older request, answered on a slower stream
	}
	l.sent, l.ttl, l.asked, l.barked = sent, ttl, false, clock.Reading{}
	l.timer.Reset(max(0, l.dueAfter()-now.Since(sent)))
}

// unanswered reports whether a renewal is due and not yet answered.
func (l *Lease) unanswered() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.ended && l.asked
}

// renewable reports whether a renewal may be sent now.
func (l *Lease) renewable(now clock.Reading) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return false
	}
	left, _ := l.left(now)
	return left > 0
}

// end ends the lease once.
func (l *Lease) end(why End, err error) {
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		return
	}
	l.ended, l.why, l.err = true, why, err
	l.timer.Stop()
	l.mu.Unlock()
	close(l.done)
	if why != Stopped && l.onEnd != nil {
		l.onEnd(why, err)
	}
	close(l.closed)
	l.keeper.drop(l)
}
