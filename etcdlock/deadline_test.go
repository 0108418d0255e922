package etcdlock_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/clock"
	"github.com/revfence/revfence/internal/etcdtest"
)

// promptness is what is allowed between an event and the moment a test that polls every millisecond has seen it, on a
// processor that does not stall.
const promptness = 50 * time.Millisecond

// TestRemainingAfterRenewal makes sure that an early notice does not come from giving the lock away early: just after a
// renewal all but the margin, and the time since the renewal was sent, is left.
func TestRemainingAfterRenewal(t *testing.T) {
	t.Parallel()
	const ttl, renewals, holds = 3 * time.Second, 4, 5
	srv := startClean(t, 5*time.Second)
	stalls := etcdtest.Stalls(t)
	for _, c := range []struct {
		name   string
		delay  time.Duration // of each direction
		margin time.Duration
		opts   []etcdlock.Option
	}{
		{"DefaultMargin", 0, defaultMargin(ttl), nil},
		{"SmallMargin", 0, 10 * time.Millisecond, []etcdlock.Option{etcdlock.WithSafetyMargin(10 * time.Millisecond)}},
		{"LargeMargin", 0, time.Second, []etcdlock.Option{etcdlock.WithSafetyMargin(time.Second)}},
		{"SlowNetwork", 100 * time.Millisecond, defaultMargin(ttl), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			all := make([]*hold, holds)
			for i := range all {
				all[i] = newHold(t, srv, fmt.Sprint(c.name, i), append(c.opts, etcdlock.WithTTL(ttl))...)
				all[i].proxy.Delay(c.delay)
			}
			behind := make([][]etcdtest.Sample, holds)
			var wg sync.WaitGroup
			for i, h := range all {
				wg.Go(func() {
					<-time.After(rand.N(ttl / 3)) // not all at the same moment
					var err error
					if behind[i], err = followRenewals(ctx, stalls, h, renewals, ttl-c.margin); err != nil {
						t.Errorf("lock %d: %v", i, err)
					}
				})
			}
			wg.Wait()
			stalls.Judge(t, "Remaining below TTL - margin - round trip", slices.Concat(behind...), 1, promptness)
		})
	}
}

// followRenewals holds a lock over n renewals and checks Remaining all the time. Its samples are by how much Remaining
// is below longest less the round trip, when it was seen to have risen. A renewal that was seen late while the process
// had stalled says nothing, and another one is followed instead, as long as that is the exception.
func followRenewals(ctx context.Context, stalls *etcdtest.Ticker, h *hold, n int, longest time.Duration) ([]etcdtest.Sample, error) {
	asked := time.Now()
	if err := h.lock(ctx); err != nil {
		return nil, err
	}
	defer h.held.Unlock(ctx) // for an early return
	left := h.held.Remaining()
	if took := time.Since(asked); left > longest || left < longest-took-took/10 {
		return nil, fmt.Errorf("Remaining of a new lock is %v: want at most %v, and no more than the %v less that Lock took", left, longest, took)
	}
	var behind []etcdtest.Sample
	answered, excused := 0, 0
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for len(behind) < n && excused <= 2*n {
		select {
		case <-tick.C:
		case <-h.held.Context().Done():
			return nil, context.Cause(h.held.Context())
		}
		before, from := left, time.Now()
		left = h.held.Remaining()
		seen := time.Now()
		if left > longest {
			return nil, fmt.Errorf("Remaining is %v: TTL - margin is %v", left, longest)
		}
		if left <= before {
			continue
		}
		// Whatever it counts from is among the answers so far; most often one has come since it last rose.
		trips := h.renewals.all()
		if len(trips) == 0 {
			return nil, fmt.Errorf("Remaining rose from %v to %v without a renewal", before, left)
		}
		fresh := trips[min(answered, len(trips)-1):]
		answered = len(trips)
		latest := slices.MaxFunc(trips, func(a, b trip) int { return a.sent.Compare(b.sent) })
		// The lock's clock is not slewed, Go's may be, by up to a twelfth.
		age := from.Sub(latest.sent)
		if left > longest-age+age/10+time.Millisecond {
			return nil, fmt.Errorf("Remaining is %v, %v after the last answered request was sent: that was not counted from the request", left, age)
		}
		slowest := slices.MaxFunc(fresh, func(a, b trip) int { return cmp.Compare(a.took(), b.took()) })
		s := etcdtest.Sample{From: fresh[0].received, To: seen, Value: longest - slowest.took() - left}
		if s.Value > promptness && stalls.Overlaps(s.From, s.To) {
			excused++
			continue
		}
		behind = append(behind, s)
	}
	if len(behind) < n {
		return nil, fmt.Errorf("the machine is too busy: it had stalled during %d of %d renewals", excused, excused+len(behind))
	}
	if _, received := h.renewals.counts(); received < n {
		return nil, fmt.Errorf("Remaining rose %d times on %d renewals", n, received)
	}
	if err := h.held.Unlock(ctx); err != nil {
		return nil, err
	}
	if left := h.held.Remaining(); left != 0 {
		return nil, fmt.Errorf("Remaining is %v after Unlock", left)
	}
	return behind, nil
}

// TestLostAtTheDeadline makes sure that the notice of a lock that is no longer renewed comes when Remaining said so.
func TestLostAtTheDeadline(t *testing.T) {
	t.Parallel()
	srv := startClean(t, 5*time.Second)
	stalls := etcdtest.Stalls(t)
	due := holdMany(t, srv, 0, etcdlock.WithTTL(4*time.Second), etcdlock.WithSafetyMargin(500*time.Millisecond))
	stalls.Judge(t, "told after the deadline", due, 1, promptness)
}

// TestSlewedClock makes more time pass than Go's timers show, as a clock daemon does. The notice comes when that much
// less time has passed on the timers.
func TestSlewedClock(t *testing.T) {
	t.Parallel()
	srv := startClean(t, 5*time.Second)
	stalls := etcdtest.Stalls(t)
	due := holdMany(t, srv, 2*time.Second, etcdlock.WithTTL(4*time.Second), etcdlock.WithSafetyMargin(500*time.Millisecond))
	stalls.Judge(t, "told after the deadline", due, 1, promptness)

	// Past the deadline at once.
	ctx := testContext(t)
	fake := clock.NewFake()
	k := heldOn(t, srv.Client(t), fake, "jumped")
	fake.Slew(9500 * time.Millisecond)
	var lost *etcdlock.LostError
	if err := k.Check(ctx); !errors.As(err, &lost) || lost.Reason != etcdlock.ReasonDeadline {
		t.Errorf("Check: %v", err)
	}
	if err := k.Unlock(ctx); err != error(lost) {
		t.Errorf("Unlock: %v", err)
	}
}

// holdMany takes locks one after another, cuts them off, slews the clock and returns by how much each notice came after
// what Remaining had said. No notice may come before.
func holdMany(t *testing.T, srv *etcdtest.Server, slew time.Duration, opts ...etcdlock.Option) []etcdtest.Sample {
	t.Helper()
	const locks = 20
	ctx := testContext(t)
	fake := clock.NewFake()
	h := newHold(t, srv, "many", append(opts, etcdlock.WithClock(fake))...)
	held := make([]*etcdlock.Lock, locks)
	told := make([]chan time.Time, locks)
	for i := range held {
		k, err := h.locker.Lock(ctx, fmt.Sprint("many", i))
		if err != nil {
			t.Fatal(err)
		}
		held[i], told[i] = k, make(chan time.Time, 1)
		context.AfterFunc(k.Context(), func() { told[i] <- time.Now() })
		<-time.After(25 * time.Millisecond) // so that the deadlines lie apart
	}
	h.proxy.BlackHole()
	deadlines := make([]span, locks)
	for i, k := range held {
		deadlines[i] = deadline(k)
		if err := k.Require(slew); err != nil {
			t.Fatalf("before the slew: %v", err)
		}
	}
	fake.Slew(slew)
	samples := make([]etcdtest.Sample, locks)
	for i, k := range held {
		due := deadlines[i].add(-slew)
		if got := deadline(k); got.to.Before(due.from) || got.from.After(due.to) {
			t.Errorf("Remaining of lock %d ends %v to %v after it should", i, got.from.Sub(due.to), got.to.Sub(due.from))
		}
		deadlines[i] = due
	}
	for i := range samples {
		due := deadlines[i]
		s := etcdtest.Sample{From: due.to, To: receive(t, "notice", told[i])}
		s.Value = s.To.Sub(s.From)
		if early := due.from.Sub(s.To); early > promptness {
			t.Errorf("lock %d: told %v before Remaining was over", i, early)
		}
		samples[i] = s
	}
	h.proxy.Heal()
	for _, k := range held {
		var lost *etcdlock.LostError
		if err := k.Unlock(ctx); !errors.As(err, &lost) || lost.Reason != etcdlock.ReasonDeadline {
			t.Errorf("Unlock: %v", err)
		}
	}
	return samples
}

// A span is when something is known to happen: not before from, and not after to.
type span struct{ from, to time.Time }

func (s span) add(d time.Duration) span { return span{s.from.Add(d), s.to.Add(d)} }

// deadline returns when Remaining will be over. It looks again if it was interrupted between its looks at two clocks.
func deadline(k *etcdlock.Lock) span {
	var s span
	for range 100 {
		from := time.Now()
		left := k.Remaining()
		s = span{from.Add(left), time.Now().Add(left)}
		if s.to.Sub(s.from) < time.Millisecond {
			break
		}
	}
	return s
}

// heldOn takes a lock on a clock that the test controls.
func heldOn(t *testing.T, c *clientv3.Client, fake *clock.Fake, name string) *etcdlock.Lock {
	t.Helper()
	l := newLocker(t, c, etcdlock.WithTTL(10*time.Second), etcdlock.WithClock(fake))
	k, err := l.Lock(testContext(t), name)
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Require(8 * time.Second); err != nil {
		t.Fatal(err)
	}
	return k
}

// TestF10SuspendedMachine lets the machine sleep past the deadline. Go's timers have not noticed when the first call comes.
func TestF10SuspendedMachine(t *testing.T) {
	t.Parallel()
	srv := startClean(t, 12*time.Second)
	ctx := testContext(t)
	for name, call := range map[string]func(*etcdlock.Lock) error{
		"Remaining": func(k *etcdlock.Lock) error {
			if left := k.Remaining(); left != 0 {
				return fmt.Errorf("Remaining is %v", left)
			}
			return context.Cause(k.Context())
		},
		"Check":   func(k *etcdlock.Lock) error { return k.Check(ctx) },
		"Require": func(k *etcdlock.Lock) error { return k.Require(time.Nanosecond) },
		"Commit": func(k *etcdlock.Lock) error {
			_, err := k.Txn(ctx).Then(clientv3.OpPut("written", "by nobody")).Commit()
			return err
		},
		"Unlock": func(k *etcdlock.Lock) error { return k.Unlock(ctx) },
		"NoCall": func(k *etcdlock.Lock) error {
			select {
			case <-k.Context().Done():
				return context.Cause(k.Context())
			case <-time.After(2 * time.Second):
				return errors.New("not told within 2 s")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := clock.NewFake()
			k := heldOn(t, srv.Client(t), fake, name)
			fake.Suspend(time.Minute)
			err := call(k)
			var lost *etcdlock.LostError
			if !errors.As(err, &lost) || lost.Reason != etcdlock.ReasonSuspended || lost.Token != k.Token() {
				t.Errorf("after a minute of sleep: %v", err)
			}
			if cause := context.Cause(k.Context()); cause != error(lost) {
				t.Errorf("the context's cause is %v", cause)
			}
			if err := k.Unlock(ctx); err != error(lost) {
				t.Errorf("Unlock: %v", err)
			}
		})
	}
	t.Cleanup(func() {
		if r, err := srv.Admin().Get(testContext(t), "written", clientv3.WithCountOnly()); err != nil || r.Count != 0 {
			t.Errorf("a lost lock has written: %v, %v", r, err)
		}
	})
}

// TestShortSleep lets the machine sleep for less than the TTL: the lock is still held, for that much less.
func TestShortSleep(t *testing.T) {
	t.Parallel()
	srv := startClean(t, 5*time.Second)
	ctx := testContext(t)
	fake := clock.NewFake()
	k := heldOn(t, srv.Client(t), fake, "short")
	before := k.Remaining()
	fake.Suspend(2 * time.Second)
	if left := k.Remaining(); left > before-2*time.Second || left == 0 {
		t.Errorf("Remaining is %v after 2 s of sleep, %v before it", left, before)
	}
	if err := k.Check(ctx); err != nil {
		t.Error(err)
	}
	if err := k.Unlock(ctx); err != nil {
		t.Error(err)
	}
}
