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
	want   time.Duration // the TTL asked for
	margin time.Duration // for a TTL of want
	onEnd  func(End, error)

	done   chan struct{}
	closed chan *clientv3.LeaseKeepAliveResponse // for concurrency.Session; never sent on

	mu     sync.Mutex
	ttl    time.Duration // as granted with the last answer
	sent   clock.Reading // when the last answered request was sent
	asked  clock.Reading // when a renewal was last handed to the streams
	waits  bool          // for the answer to it
	trip   time.Duration // of the last answered renewal
	barks  int           // of the watchdog, since sent
	barked clock.Reading // when it last did
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

// Longest returns the most that Remaining ever returns: TTL − margin.
func (l *Lease) Longest() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.window()
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
	now := l.keeper.Clock.Now()
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
	left, _ := l.left(l.keeper.Clock.Now())
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

// clockNoise is what a Reading's clocks, which are read one after the other, may
// differ by although the machine has not slept.
const clockNoise = 10 * time.Millisecond

// left returns what is left at now, and why if nothing is.
func (l *Lease) left(now clock.Reading) (time.Duration, End) {
	left := l.window() - now.Since(l.sent)
	slept := now.Suspended(l.sent)
	if slept < clockNoise {
		slept = 0
	}
	if left <= 0 && left+slept > 0 {
		return left, Suspended
	}
	return left, Deadline
}

// window is for how long after its send an answered request is believed.
func (l *Lease) window() time.Duration {
	margin := l.margin
	if l.ttl > l.want { // and the clocks have longer to come apart
		margin = time.Duration(float64(margin) * float64(l.ttl) / float64(l.want))
	}
	return l.ttl - margin
}

// dueAfter is the age at which a renewal is asked for: a third of the TTL, as
// etcd's client has it, or sooner if a large margin leaves little.
func (l *Lease) dueAfter() time.Duration { return min(l.ttl/3, l.window()/2) }

// dogAfter is the age at which a missing answer is taken for a broken stream:
// up to 2 s later than the last one took, and early enough to help.
func (l *Lease) dogAfter() time.Duration {
	due := l.dueAfter()
	late := (l.window() - due) / 3
	return due + min(l.trip+min(2*time.Second, l.ttl/6, late), 2*late)
}

// barkAfter is how long after its n-th bark the watchdog barks again. It
// doubles: a link may be slow, not dead.
func (l *Lease) barkAfter(n int) time.Duration { return max(time.Second, l.ttl/6) << min(n-1, 4) }

// Enough returns what must be left for the lease to be worth starting on: a
// third of the TTL, or less if a large margin leaves little. A lease that is
// renewed as it should be always has more.
func (l *Lease) Enough() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return min(l.ttl/3, (l.window()-l.dueAfter())*3/4)
}

// tick does what the lease's age calls for and arms the timer for what is
// next. It runs on the timer, and when the clocks jumped.
func (l *Lease) tick() {
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		return
	}
	now := l.keeper.Clock.Now()
	left, why := l.left(now)
	if left <= 0 {
		l.mu.Unlock()
		l.end(why, nil)
		return
	}
	next := left
	ask, bark, every := false, false, l.barkAfter(1)
	// One request per third of the TTL, also while earlier ones are under way.
	due := l.dueAfter() - now.Since(l.asked)
	if due <= 0 {
		ask, l.asked, l.waits = true, now, true
		due = l.dueAfter()
	}
	next = min(next, due)
	if l.waits {
		wait := l.dogAfter() - now.Since(l.sent)
		if l.barks > 0 {
			wait = l.barkAfter(l.barks) - now.Since(l.barked)
		}
		if wait <= 0 {
			bark, l.barked = true, now
			l.barks++
			wait = l.barkAfter(l.barks)
		}
		next = min(next, wait)
	}
	l.timer.Reset(next)
	l.mu.Unlock()
	if ask {
		l.keeper.ask(l)
	}
	if bark {
		l.keeper.bark(l, left, every)
	}
}

// renewed takes an answer to a request sent at sent.
func (l *Lease) renewed(sent clock.Reading, ttl time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return
	}
	now := l.keeper.Clock.Now()
	if left, _ := l.left(now); left <= 0 {
		return // too late: the timer is about to say so
	}
	if ttl-now.Since(sent) <= l.ttl-now.Since(l.sent) {
		return // an older request, answered on a slower stream
	}
	l.sent, l.ttl, l.trip, l.barks = sent, ttl, now.Since(sent), 0
	next := l.dueAfter() - now.Since(l.asked)
	if l.waits = sent.Since(l.asked) < 0; l.waits {
		next = 0 // for tick to see to the watchdog
	}
	l.timer.Reset(max(0, next))
}

// unanswered reports whether a renewal is due and not yet answered.
func (l *Lease) unanswered() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.ended && l.waits
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
