package etcdlock_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/etcdtest"
	"github.com/revfence/revfence/internal/faultkit"
)

// All times in this file are Go's monotonic clock of the one process that runs the server, the proxies and the lock, so
// they can be compared. (The lock itself counts on internal/clock.)

var holdFor = flag.Duration("hold", 30*time.Second,
	"how long TestHeldWithHealthyEtcd holds its locks; give -timeout a little more than that")

// heldLocks is how many locks TestHeldWithHealthyEtcd holds.
const heldLocks = 10

func TestHeldWithHealthyEtcd(t *testing.T) {
	t.Parallel()
	srv := startClean(t, 5*time.Second)
	ctx, cancel := context.WithTimeout(context.Background(), *holdFor+testLimit)
	defer cancel()
	var renewals tap
	l := newLocker(t, srv.Client(t, etcdtest.Stream(renewals.stream)), etcdlock.WithTTL(2*time.Second))
	lost := make(chan error, heldLocks)
	locks := make([]*etcdlock.Lock, heldLocks)
	for i := range locks {
		k, err := l.Lock(ctx, fmt.Sprint("held", i))
		if err != nil {
			t.Fatal(err)
		}
		locks[i] = k
		defer context.AfterFunc(k.Context(), func() { lost <- context.Cause(k.Context()) })()
	}
	select {
	case err := <-lost:
		t.Errorf("lost with a healthy etcd: %v", err)
	case <-time.After(*holdFor):
	}
	for _, k := range locks {
		if err := k.Unlock(ctx); err != nil {
			t.Errorf("Unlock after %v: %v", *holdFor, err)
		}
	}
	sent, _ := renewals.counts()
	t.Logf("%d locks at TTL 2 s held for %v on %d renewals", heldLocks, *holdFor, sent)
}

// earliness is by how much a holder has to be told before the deletion of its key is seen, so that a slow watch event
// cannot make a late notice look early.
const earliness = 20 * time.Millisecond

// TestF03ToldBeforeDelete takes the network away at random moments. The holder must be told before etcd deletes the key.
func TestF03ToldBeforeDelete(t *testing.T) {
	t.Parallel()
	srv := startClean(t, 5*time.Second)
	stalls := etcdtest.Stalls(t)
	deleted := deletions(t, srv)
	for _, f := range []struct {
		name   string
		phases int
		cut    func(*faultkit.Proxy)
	}{
		{"BlackHole", 50, func(p *faultkit.Proxy) { p.BlackHole() }},
		{"RequestsLost", 10, func(p *faultkit.Proxy) { p.BlackHole(faultkit.Up) }},
		{"AnswersLost", 10, func(p *faultkit.Proxy) { p.BlackHole(faultkit.Down) }},
		{"RequestsHeld", 10, func(p *faultkit.Proxy) { p.Hold(faultkit.Up) }},
		{"AnswersHeld", 10, func(p *faultkit.Proxy) { p.Hold(faultkit.Down) }},
	} {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			judgeLeads(t, stalls, f.phases, func(i int) func(context.Context) (etcdtest.Sample, error) {
				ttl := time.Duration(2+i%3) * time.Second
				h := newHold(t, srv, fmt.Sprint(f.name, i), etcdlock.WithTTL(ttl))
				phase := time.Duration((float64(i) + rand.Float64()) / float64(f.phases) * float64(3*ttl/2))
				return func(ctx context.Context) (etcdtest.Sample, error) {
					if err := h.lock(ctx); err != nil {
						return etcdtest.Sample{}, err
					}
					if err := h.keep(phase); err != nil {
						return etcdtest.Sample{}, err
					}
					f.cut(h.proxy)
					return h.lead(ctx, defaultMargin(ttl), deleted(h.held.Key()))
				}
			})
		})
	}
}

// TestF03ToldBeforeDeleteAfterLateAnswer holds one answer back, and lets nothing reach the server after the request it
// answers. A deadline that was counted from the receipt of the answer would come after the deletion.
func TestF03ToldBeforeDeleteAfterLateAnswer(t *testing.T) {
	t.Parallel()
	srv := startClean(t, 5*time.Second)
	stalls := etcdtest.Stalls(t)
	deleted := deletions(t, srv)

	// Before the watchdog has done anything, the answer certainly counts.
	t.Run("Accepted", func(t *testing.T) {
		t.Parallel()
		const ttl, margin, phases = 6 * time.Second, 100 * time.Millisecond, 16
		judgeLeads(t, stalls, phases, func(i int) func(context.Context) (etcdtest.Sample, error) {
			h := newHold(t, srv, fmt.Sprint("accepted", i), etcdlock.WithTTL(ttl), etcdlock.WithSafetyMargin(margin))
			late := 500*time.Millisecond + time.Duration((float64(i)+rand.Float64())/phases*float64(350*time.Millisecond))
			return func(ctx context.Context) (etcdtest.Sample, error) {
				from, err := h.lateAnswer(ctx, srv.Admin(), ttl, late)
				if err != nil {
					return etcdtest.Sample{}, err
				}
				before := h.held.Remaining()
				h.proxy.Pass(faultkit.Down)
				if err := h.renewals.answer(ctx, from); err != nil {
					return etcdtest.Sample{}, err
				}
				after, err := h.risen(ctx, before)
				if err != nil {
					return etcdtest.Sample{}, fmt.Errorf("the late answer did not count: %w", err)
				}
				if most := ttl - margin - late; after > most {
					return etcdtest.Sample{}, fmt.Errorf("Remaining is %v after an answer that is %v late: at most %v is known", after, late, most)
				}
				return h.lead(ctx, margin, deleted(h.held.Key()))
			}
		})
	})

	// Later, the watchdog has tried other streams, or the lock is lost already.
	t.Run("MuchLater", func(t *testing.T) {
		t.Parallel()
		const phases = 16
		judgeLeads(t, stalls, phases, func(i int) func(context.Context) (etcdtest.Sample, error) {
			ttl := time.Duration(3+i%2) * time.Second
			h := newHold(t, srv, fmt.Sprint("muchlater", i), etcdlock.WithTTL(ttl))
			late := time.Duration((0.4 + 0.4*(float64(i)+rand.Float64())/phases) * float64(ttl))
			return func(ctx context.Context) (etcdtest.Sample, error) {
				if _, err := h.lateAnswer(ctx, srv.Admin(), ttl, late); err != nil {
					return etcdtest.Sample{}, err
				}
				h.proxy.Pass(faultkit.Down)
				return h.lead(ctx, defaultMargin(ttl), deleted(h.held.Key()))
			}
		})
	})
}

// judgeLeads runs samples at the same time, all set up before the first begins. A sample's value is negative: how long
// after the notice the deletion was seen.
func judgeLeads(t *testing.T, stalls *etcdtest.Ticker, n int, setUp func(i int) func(context.Context) (etcdtest.Sample, error)) {
	t.Helper()
	run := make([]func(context.Context) (etcdtest.Sample, error), n)
	for i := range run {
		run[i] = setUp(i)
	}
	ctx := testContext(t)
	var mu sync.Mutex
	var samples []etcdtest.Sample
	var notReady []error
	var wg sync.WaitGroup
	for i, f := range run {
		wg.Go(func() {
			// Not all at once; and etcd expires leases every half a second: spread the samples over that as well.
			<-time.After(rand.N(2 * time.Second))
			from := time.Now()
			s, err := f(ctx)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				samples = append(samples, s)
			case errors.Is(err, errNotReady) && stalls.Overlaps(from, time.Now()):
				notReady = append(notReady, err)
			default:
				t.Errorf("sample %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	if len(notReady) > n/10 {
		t.Errorf("the machine is too busy: %d of %d samples came to nothing before the fault, as in: %v", len(notReady), n, notReady[0])
	}
	if t.Failed() {
		return
	}
	stalls.Judge(t, "notice after deletion", samples, 1, -earliness)
	leads := make([]time.Duration, len(samples))
	for i, s := range samples {
		leads[i] = -s.Value.Round(time.Millisecond)
	}
	slices.Sort(leads)
	t.Logf("told ahead of the deletion: min %v, median %v, max %v; %d samples not made, the process had stalled",
		leads[0], leads[len(leads)/2], leads[len(leads)-1], len(notReady))
}

// errNotReady says that a sample could not be brought to the moment of its fault.
var errNotReady = errors.New("lost or late before the fault")

// A hold is one lock of one client behind a proxy of its own.
type hold struct {
	name     string
	proxy    *faultkit.Proxy
	locker   *etcdlock.Locker
	renewals tap
	held     *etcdlock.Lock
	told     chan time.Time
}

func newHold(t *testing.T, srv *etcdtest.Server, name string, opts ...etcdlock.Option) *hold {
	t.Helper()
	h := &hold{name: name, told: make(chan time.Time, 1), proxy: faultkit.NewProxy(t, srv.Endpoint())}
	h.locker = newLocker(t, srv.Client(t, etcdtest.Via(h.proxy.Addr()), etcdtest.Stream(h.renewals.stream)), opts...)
	return h
}

func (h *hold) lock(ctx context.Context) (err error) {
	if h.held, err = h.locker.Lock(ctx, h.name); err != nil {
		return err
	}
	context.AfterFunc(h.held.Context(), func() { h.told <- time.Now() })
	return nil
}

// keep holds the lock for d.
func (h *hold) keep(d time.Duration) error {
	select {
	case <-h.held.Context().Done():
		return fmt.Errorf("%w: %w", errNotReady, context.Cause(h.held.Context()))
	case <-time.After(d):
		return nil
	}
}

// defaultMargin is the safety margin of a Locker that was given none.
func defaultMargin(ttl time.Duration) time.Duration { return ttl/10 + 100*time.Millisecond }

// lead waits for the notice, which is due the margin before the first moment at which etcd can delete, and the deletion.
func (h *hold) lead(ctx context.Context, margin time.Duration, deleted <-chan time.Time) (etcdtest.Sample, error) {
	var told, gone time.Time
	for told.IsZero() || gone.IsZero() {
		select {
		case told = <-h.told:
		case gone = <-deleted:
		case <-ctx.Done():
			return etcdtest.Sample{}, fmt.Errorf("told %t, deleted %t: %w", !told.IsZero(), !gone.IsZero(), ctx.Err())
		}
	}
	h.proxy.Heal()
	var lost *etcdlock.LostError
	if err := h.held.Unlock(ctx); !errors.As(err, &lost) || lost.Reason != etcdlock.ReasonDeadline {
		return etcdtest.Sample{}, fmt.Errorf("lost for another reason than the deadline: %v", err)
	}
	to := told
	if gone.After(told) {
		to = gone
	}
	// Only a stall after the notice was due can have delayed it.
	return etcdtest.Sample{From: gone.Add(-margin), To: to, Value: told.Sub(gone)}, nil
}

// lateAnswer takes the lock and holds the answer of its next renewal back for late. Nothing sent after that request
// reaches the server. It returns when the request was sent.
func (h *hold) lateAnswer(ctx context.Context, admin *clientv3.Client, ttl, late time.Duration) (time.Time, error) {
	if err := h.lock(ctx); err != nil {
		return time.Time{}, err
	}
	sending := make(chan time.Time, 1)
	h.renewals.before(func() {
		h.proxy.Hold(faultkit.Down)
		sending <- time.Now()
	})
	var sent time.Time
	select {
	case sent = <-sending:
	case <-ctx.Done():
		return sent, fmt.Errorf("no renewal: %w", ctx.Err())
	}
	// The server counts whole seconds, rounded down: a third of the TTL was over before the renewal.
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for ; ; <-tick.C {
		kv, err := admin.Get(ctx, h.held.Key())
		if err != nil {
			return sent, err
		}
		if len(kv.Kvs) == 0 {
			return sent, fmt.Errorf("%w: key gone", errNotReady)
		}
		left, err := admin.TimeToLive(ctx, clientv3.LeaseID(kv.Kvs[0].Lease))
		if err != nil {
			return sent, err
		}
		if time.Duration(left.TTL+1)*time.Second >= ttl {
			break
		}
	}
	h.proxy.BlackHole(faultkit.Up)
	if spent := time.Since(sent); spent > late {
		return sent, fmt.Errorf("%w: the renewal took %v to arrive", errNotReady, spent)
	}
	timer := time.NewTimer(late - time.Since(sent))
	defer timer.Stop()
	select {
	case <-timer.C:
		return sent, nil
	case <-ctx.Done():
		return sent, ctx.Err()
	}
}

// risen waits until Remaining is above what it was.
func (h *hold) risen(ctx context.Context, before time.Duration) (time.Duration, error) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		if left := h.held.Remaining(); left > before {
			return left, nil
		}
		select {
		case <-tick.C:
		case <-h.held.Context().Done():
			return 0, context.Cause(h.held.Context())
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// deletions watches all locks over a connection that is never disturbed, and returns a function that says when a key's
// deletion was seen.
func deletions(t *testing.T, srv *etcdtest.Server) func(key string) <-chan time.Time {
	t.Helper()
	var seen sync.Map
	of := func(key string) chan time.Time {
		c, _ := seen.LoadOrStore(key, make(chan time.Time, 1))
		return c.(chan time.Time)
	}
	ctx, cancel := context.WithCancel(context.Background())
	events := srv.Client(t).Watch(ctx, "/revfence/", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	if resp := <-events; !resp.Created {
		t.Fatalf("watch: %+v", resp)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for resp := range events {
			at := time.Now()
			for _, e := range resp.Events {
				if e.Type == clientv3.EventTypeDelete {
					of(string(e.Kv.Key)) <- at // keys of these tests are deleted once
				}
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return func(key string) <-chan time.Time { return of(key) }
}
