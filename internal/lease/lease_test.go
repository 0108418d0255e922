package lease

import (
	"io"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/revfence/revfence/internal/clock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a Keeper on a fake server with members to dial.
type rig struct {
	*Keeper
	srv   *server
	main  *member
	other map[string]*member
	clock *clock.Fake
	dials int
}

// ended is what a lease's owner was told.
type ended struct {
	why End
	err error
	at  time.Time
}

// bubble runs f in a synctest bubble; the bubble itself fails if anything of
// the Keeper is left running.
func bubble(t *testing.T, f func(t *testing.T, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		srv := newServer()
		r := &rig{srv: srv, main: &member{server: srv}, other: map[string]*member{}, clock: clock.NewFake()}
		r.Keeper = NewKeeper(Config{
			Remote: r.main,
			Endpoints: func() (eps []string) {
				for ep := range r.other {
					eps = append(eps, ep)
				}
				return eps
			},
			Dial: func(ep string) (pb.LeaseClient, io.Closer, error) {
				r.dials++
				return r.other[ep], r.other[ep], nil
			},
			Clock:  r.clock,
			Logger: zap.NewNop(),
		})
		defer r.Close()
		f(t, r)
	})
}

func (r *rig) grant(t *testing.T, ttl, margin time.Duration) (*Lease, chan ended) {
	t.Helper()
	told := make(chan ended, 2)
	l, _, err := r.Grant(t.Context(), ttl, margin, func(why End, err error) { told <- ended{why, err, time.Now()} })
	if err != nil {
		t.Fatal(err)
	}
	return l, told
}

// none fails if the owner was told of an end.
func none(t *testing.T, told chan ended) {
	t.Helper()
	select {
	case e := <-told:
		t.Fatalf("lease ended: %v %v", e.why, e.err)
	default:
	}
}

func TestRenewsOncePerThirdOfTTL(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		l, told := r.grant(t, 30*time.Second, 3*time.Second)
		time.Sleep(5*time.Minute + time.Second)
		none(t, told)
		if n := r.srv.sent(l.id); n < 29 || n > 30 {
			t.Errorf("%d renewals in 5 minutes at TTL 30 s, want 30", n)
		}
		if left := l.Remaining(); left > 27*time.Second || left < 17*time.Second {
			t.Errorf("Remaining = %v", left)
		}
	})
}

func TestRemainingCountsFromSend(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.main.set(func(m *member) { m.there, m.back = 100*time.Millisecond, 400*time.Millisecond })
		l, _ := r.grant(t, 30*time.Second, 3*time.Second)
		if left := l.Remaining(); left != 26500*time.Millisecond {
			t.Errorf("after a grant of 0.5 s: %v left, want 26.5 s", left)
		}
		time.Sleep(10*time.Second - 500*time.Millisecond) // the renewal is sent
		time.Sleep(499 * time.Millisecond)                // not yet answered
		if left := l.Remaining(); left != 16501*time.Millisecond {
			t.Errorf("before the answer: %v left, want 16.501 s", left)
		}
		time.Sleep(2 * time.Millisecond)
		if left := l.Remaining(); left != 26499*time.Millisecond {
			t.Errorf("after the answer: %v left, want 26.499 s", left)
		}
	})
}

// TestToldBeforeExpiry: whatever the delays, and wherever in the renewal cycle
// the network dies, the owner is told before the server lets the lease expire.
func TestToldBeforeExpiry(t *testing.T) {
	const ttl, margin = 6 * time.Second, 700 * time.Millisecond
	for there := time.Duration(0); there <= 5*time.Second; there += 500 * time.Millisecond {
		for back := time.Duration(0); back <= 5*time.Second; back += 500 * time.Millisecond {
			for phase := 200 * time.Millisecond; phase < 6*time.Second; phase += 650 * time.Millisecond {
				bubble(t, func(t *testing.T, r *rig) {
					l, told := r.grant(t, ttl, margin)
					r.main.set(func(m *member) { m.there, m.back = there, back })
					time.Sleep(phase)
					r.main.set(func(m *member) { m.stuck = true }) // what is under way still arrives
					e := <-told
					if e.why != Deadline {
						t.Errorf("there %v back %v phase %v: told %v", there, back, phase, e.why)
					}
					if lead := r.srv.expires(l.id).Sub(e.at); lead < margin {
						t.Errorf("there %v back %v phase %v: told %v before expiry, want at least %v", there, back, phase, lead, margin)
					}
				})
			}
		}
	}
}

func TestFirstDeadlineIsTheTTL(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		start := time.Now()
		_, told := r.grant(t, 2*time.Second, 300*time.Millisecond)
		r.main.set(func(m *member) { m.stuck = true })
		if e := <-told; e.at.Sub(start) != 1700*time.Millisecond {
			t.Errorf("told after %v, want 1.7 s", e.at.Sub(start))
		}
	})
}

func TestLateAnswerDoesNotRevive(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		l, told := r.grant(t, 6*time.Second, 700*time.Millisecond)
		r.main.set(func(m *member) { m.back = 3400 * time.Millisecond }) // answered at 5.4 s, deadline 5.3 s
		e := <-told
		time.Sleep(time.Second)
		if l.Remaining() != 0 || e.why != Deadline {
			t.Errorf("after a late answer: %v left, told %v", l.Remaining(), e.why)
		}
		n := r.srv.sent(l.id)
		time.Sleep(time.Minute)
		if now := r.srv.sent(l.id); now != n {
			t.Errorf("an ended lease was renewed %d more times", now-n)
		}
	})
}

// TestLateAnswerBeforeLateTimer: a process that was stopped may read the
// answer before its timers run.
func TestLateAnswerBeforeLateTimer(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		l, _ := r.grant(t, 6*time.Second, 700*time.Millisecond)
		sent := r.clock.Now()
		r.clock.Suspend(5400 * time.Millisecond)
		l.renewed(sent, time.Minute)
		if left := l.Remaining(); left != 0 {
			t.Errorf("revived for %v", left)
		}
	})
}

// TestPastDeadlineIsNotSent: etcd would hold up the stream over a lease that
// has expired.
func TestPastDeadlineIsNotSent(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		l, _ := r.grant(t, 6*time.Second, 700*time.Millisecond)
		r.clock.Suspend(5400 * time.Millisecond)
		r.ask(l)
		synctest.Wait()
		if n := r.srv.sent(l.id); n != 0 {
			t.Errorf("sent %d renewals past the deadline", n)
		}
	})
}

func TestStopIsSilentAndFinal(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		l, told := r.grant(t, 6*time.Second, 700*time.Millisecond)
		ch, err := r.View(nil).KeepAlive(t.Context(), l.ID())
		if err != nil {
			t.Fatal(err)
		}
		l.Stop()
		l.Stop()
		if _, open := <-ch; open {
			t.Error("the session was sent an answer")
		}
		<-l.Done()
		time.Sleep(time.Minute)
		none(t, told)
		if n := r.srv.sent(l.id); n != 0 {
			t.Errorf("%d renewals after Stop", n)
		}
		if _, err := r.View(nil).KeepAlive(t.Context(), l.ID()); rpctypes.Error(err) != rpctypes.ErrLeaseNotFound {
			t.Errorf("KeepAlive of an ended lease: %v", err)
		}
	})
}

func TestGoneLeaseIsToldAtTheNextRenewal(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		l, told := r.grant(t, 6*time.Second, 700*time.Millisecond)
		r.srv.delete(l.id)
		time.Sleep(2001 * time.Millisecond)
		select {
		case e := <-told:
			if e.why != Gone {
				t.Errorf("told %v", e.why)
			}
		default:
			t.Error("not told")
		}
	})
}

func TestSuspendIsNoticed(t *testing.T) {
	for _, ask := range []bool{true, false} {
		bubble(t, func(t *testing.T, r *rig) {
			l, told := r.grant(t, 30*time.Second, 3*time.Second)
			time.Sleep(5 * time.Second)
			r.clock.Suspend(time.Hour)
			if ask {
				if left := l.Remaining(); left != 0 {
					t.Errorf("after an hour asleep: %v left", left)
				}
			} else {
				time.Sleep(pulseEvery)
			}
			synctest.Wait()
			select {
			case e := <-told:
				if e.why != Suspended {
					t.Errorf("told %v", e.why)
				}
			default:
				t.Error("not told")
			}
		})
	}
}

// TestClockNoiseIsNoSuspend: the clocks of a busy machine are read a moment apart.
func TestClockNoiseIsNoSuspend(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		_, told := r.grant(t, 30*time.Second, 3*time.Second)
		r.main.set(func(m *member) { m.stuck = true })
		r.clock.Suspend(time.Millisecond)
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if e := <-told; e.why != Deadline {
			t.Errorf("told %v", e.why)
		}
	})
}

func TestShortSuspendIsSurvived(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		l, told := r.grant(t, 30*time.Second, 3*time.Second)
		time.Sleep(5 * time.Second)
		r.clock.Suspend(15 * time.Second) // the server's count goes on
		r.srv.mu.Lock()
		r.srv.leases[l.id].expires = r.srv.leases[l.id].expires.Add(-15 * time.Second)
		r.srv.mu.Unlock()
		time.Sleep(time.Minute)
		none(t, told)
	})
}

// TestSlewedTimersAreCaughtUp: MONOTONIC, and with it every Go timer, runs
// 8.3 % slow; the deadline is kept on the raw clock all the same. The margin is
// chosen so that the watchdog's last look, at 22 s, is long before it.
func TestSlewedTimersAreCaughtUp(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		start := r.clock.Now()
		_, told := r.grant(t, 30*time.Second, 4*time.Second)
		r.main.set(func(m *member) { m.stuck = true })
		for len(told) == 0 {
			time.Sleep(10 * time.Millisecond)
			r.clock.Slew(900 * time.Microsecond)
		}
		if age := r.clock.Now().Since(start); age < 26*time.Second || age > 26150*time.Millisecond {
			t.Errorf("told at an age of %v, want 26 s", age)
		}
	})
}
