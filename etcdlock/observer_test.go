package etcdlock_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/etcdtest"
	"github.com/revfence/revfence/internal/faultkit"
)

type observerFunc func(etcdlock.Event)

func (f observerFunc) Observe(e etcdlock.Event) { f(e) }

type events struct {
	mu   sync.Mutex
	seen []etcdlock.Event
}

func (o *events) Observe(e etcdlock.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.seen = append(o.seen, e)
}

func (o *events) all() []etcdlock.Event {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]etcdlock.Event(nil), o.seen...)
}

// TestObserver: one event for every acquisition, failure, release and loss.
func TestObserver(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	var o events
	l, other := clientLocker(t, srv, etcdlock.WithObserver(&o)), clientLocker(t, srv)
	ctx := testContext(t)

	first := mustLock(t, l, "x")
	mustUnlock(t, first)
	mustUnlock(t, first) // again: no event
	taken := mustLock(t, other, "x")
	if _, err := l.TryLock(ctx, "x"); !errors.Is(err, etcdlock.ErrLocked) {
		t.Fatal(err)
	}
	mustUnlock(t, taken)
	second := mustLock(t, l, "y")
	remove(t, srv, second.Key())
	wantIs(t, "Check", second.Check(ctx), etcdlock.ErrLost)
	wantIs(t, "Unlock", second.Unlock(ctx), etcdlock.ErrLost) // no event: it was lost, not released
	eventually(t, "five events", func() bool { return len(o.all()) >= 5 })

	for i, want := range []etcdlock.Event{
		{Kind: etcdlock.EventAcquired, Name: "x", Token: first.Token()},
		{Kind: etcdlock.EventReleased, Name: "x", Token: first.Token()},
		{Kind: etcdlock.EventFailed, Name: "x", Err: etcdlock.ErrLocked},
		{Kind: etcdlock.EventAcquired, Name: "y", Token: second.Token()},
		{Kind: etcdlock.EventLost, Name: "y", Token: second.Token(), Reason: etcdlock.ReasonKeyGone, Err: etcdlock.ErrLost},
	} {
		got := o.all()[i]
		if got.Kind != want.Kind || got.Name != want.Name || got.Token != want.Token || got.Reason != want.Reason || !errors.Is(got.Err, want.Err) {
			t.Errorf("event %d: %+v, want %+v", i, got, want)
		}
		if got.Elapsed <= 0 || got.Elapsed > testLimit {
			t.Errorf("event %d: %v elapsed", i, got.Elapsed)
		}
	}
	if n := len(o.all()); n != 5 {
		t.Errorf("%d events", n)
	}
}

// TestObserverPanics: the lock does not die of it, and it is logged.
func TestObserverPanics(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	core, logs := observer.New(zapcore.ErrorLevel)
	l := clientLocker(t, srv, etcdlock.WithLogger(zap.New(core)),
		etcdlock.WithObserver(observerFunc(func(etcdlock.Event) { panic("boo") })))
	k := mustLock(t, l, "x")
	mustUnlock(t, k)
	k = mustLock(t, l, "x")
	remove(t, srv, k.Key())
	wantIs(t, "Check", k.Check(testContext(t)), etcdlock.ErrLost)
	eventually(t, "four panics in the log", func() bool { return logs.FilterMessage("observer panicked").Len() == 4 })
}

// TestObserverOutsideOfLocks: an Observer may use the Locker.
func TestObserverOutsideOfLocks(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	var l *etcdlock.Locker
	ctx := testContext(t)
	asked := make(chan error, 10)
	l = clientLocker(t, srv, etcdlock.WithObserver(observerFunc(func(e etcdlock.Event) {
		if e.Name == "x" {
			_, err := l.Queue(ctx, "x")
			asked <- err
		}
	})))
	k := mustLock(t, l, "x", etcdlock.WithMaxHold(50*time.Millisecond))
	lostTo(t, k)
	mustLostUnlock(t, k)
	for range 2 {
		if err := receive(t, "event", asked); err != nil {
			t.Error(err)
		}
	}
}

// TestCloseWaitsForObserver: once Close has returned nothing of the Locker runs, an Observer that takes its time included.
func TestCloseWaitsForObserver(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	for kind, setUp := range map[etcdlock.EventKind]func(l *etcdlock.Locker, name string) (happen func()){
		etcdlock.EventLost: func(l *etcdlock.Locker, name string) func() {
			k := mustLock(t, l, name)
			remove(t, srv, k.Key()) // it learns of that when it asks
			return func() {
				wantIs(t, "Check", k.Check(testContext(t)), etcdlock.ErrLost)
				mustLostUnlock(t, k)
			}
		},
		etcdlock.EventReleased: func(l *etcdlock.Locker, name string) func() {
			k := mustLock(t, l, name)
			return func() { mustUnlock(t, k) }
		},
		etcdlock.EventFailed: func(l *etcdlock.Locker, name string) func() {
			k := mustLock(t, clientLocker(t, srv), name)
			return func() {
				_, err := l.TryLock(testContext(t), name)
				wantIs(t, "TryLock", err, etcdlock.ErrLocked)
				mustUnlock(t, k)
			}
		},
	} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			told := make(chan struct{})
			var returned atomic.Bool
			l := clientLocker(t, srv, etcdlock.WithObserver(observerFunc(func(e etcdlock.Event) {
				if e.Kind == kind {
					close(told)
					pass(300 * time.Millisecond) // slow, which is what is tested
					returned.Store(true)
				}
			})))
			happen := setUp(l, kind.String())
			done := make(chan struct{})
			go func() {
				defer close(done)
				happen()
			}()
			receive(t, "the Observer to be told", told)
			if err := l.Close(testContext(t)); err != nil {
				t.Errorf("Close: %v", err)
			}
			if !returned.Load() {
				t.Error("Close has returned before the Observer")
			}
			receive(t, "the call that it was told of", done)
		})
	}
}

// TestF41BlockedObserver: an Observer that does not return keeps its own call waiting and nothing else: neither renewals nor
// the news of a loss.
func TestF41BlockedObserver(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	srv := startClean(t, ttl+soon)
	stalls := etcdtest.Stalls(t)
	proxy := faultkit.NewProxy(t, srv.Endpoint())
	told := make(chan etcdlock.Event, 10)
	let := map[etcdlock.EventKind]chan struct{}{etcdlock.EventAcquired: make(chan struct{}), etcdlock.EventLost: make(chan struct{})}
	l := newLocker(t, srv.Client(t, etcdtest.Via(proxy.Addr())), etcdlock.WithTTL(ttl), etcdlock.WithSharedLeases(2),
		etcdlock.WithObserver(observerFunc(func(e etcdlock.Event) {
			told <- e
			<-let[e.Kind]
		})))
	var asked []<-chan result
	for i := range 4 { // on two leases
		asked = append(asked, goLock(testContext(t), l, lockName(i)))
		if e := receive(t, "event", told); e.Kind != etcdlock.EventAcquired {
			t.Errorf("%+v", e)
		}
	}
	pass(2 * ttl)
	if n := len(keys(t, srv, "/revfence/").Kvs); n != len(asked) {
		t.Errorf("%d keys of %d locks: the others were not renewed", n, len(asked))
	}
	close(let[etcdlock.EventAcquired])
	var held []*etcdlock.Lock
	for _, c := range asked {
		held = append(held, granted(t, c))
		live(t, held[len(held)-1])
	}
	defer close(let[etcdlock.EventLost])
	proxy.BlackHole()
	lostInTime(t, stalls, held, ttl)
	proxy.Heal()
	for range held {
		if e := receive(t, "event", told); e.Kind != etcdlock.EventLost {
			t.Errorf("%+v", e)
		}
	}
}

// lostInTime checks that locks under which etcd has just gone silent are told before the TTL of their last renewal is over.
func lostInTime(t testing.TB, stalls *etcdtest.Ticker, held []*etcdlock.Lock, ttl time.Duration) {
	t.Helper()
	var samples []etcdtest.Sample
	from := time.Now()
	for _, k := range held {
		if lost := lostTo(t, k); lost.Reason != etcdlock.ReasonDeadline {
			t.Errorf("lost: %v", lost)
		}
		to := time.Now()
		samples = append(samples, etcdtest.Sample{From: from, To: to, Value: to.Sub(from)})
	}
	stalls.Judge(t, "loss told", samples, 1, ttl-ttl/10-100*time.Millisecond+50*time.Millisecond)
}

// A stuck log takes nothing from when it is full until it is let.
type stuck struct {
	full  atomic.Bool
	let   chan struct{}
	lines atomic.Int64
}

func (s *stuck) Write(line []byte) (int, error) {
	if s.full.Load() {
		s.lines.Add(1)
		<-s.let
	}
	return len(line), nil
}

func (s *stuck) logger() *zap.Logger {
	return zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.AddSync(s), zap.DebugLevel))
}

// TestF41BlockedLogger: nor does a logger that does not return, as when nobody reads the process's output, while etcd goes
// silent under locks on shared leases.
func TestF41BlockedLogger(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	srv := startClean(t, ttl+soon)
	stalls := etcdtest.Stalls(t)
	proxy := faultkit.NewProxy(t, srv.Endpoint())
	log := &stuck{let: make(chan struct{})}
	l := newLocker(t, srv.Client(t, etcdtest.Via(proxy.Addr())), etcdlock.WithTTL(ttl), etcdlock.WithSharedLeases(5),
		etcdlock.WithLogger(log.logger()))
	defer close(log.let)
	var held []*etcdlock.Lock
	for i := range 10 { // in turn, or each would have a lease of its own
		held = append(held, mustLock(t, l, lockName(i)))
	}
	log.full.Store(true)
	proxy.BlackHole()
	lostInTime(t, stalls, held, ttl)
	proxy.Heal()
	eventually(t, "lines for all of them", func() bool { return log.lines.Load() >= int64(len(held)) })
}

// TestF41LossBesideOthers: while the loss of one lock is logged, observed and not taken note of, the others are renewed.
func TestF41LossBesideOthers(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	srv := startClean(t, soon)
	var streams faultkit.Streams
	log := &stuck{let: make(chan struct{})}
	l := newLocker(t, srv.Client(t, etcdtest.Stream(streams.Stream)), etcdlock.WithTTL(ttl), etcdlock.WithLogger(log.logger()),
		etcdlock.WithObserver(observerFunc(func(e etcdlock.Event) {
			if e.Kind == etcdlock.EventLost {
				<-log.let
			}
		})))
	let := sync.OnceFunc(func() { close(log.let) })
	defer let()
	k, other := mustLock(t, l, "x"), mustLock(t, l, "other")
	log.full.Store(true)
	streams.Break(renewal, 1, rpctypes.ErrGRPCNoLeader) // of which there is a line as well
	streams.Change(renewal, 1, notFound)
	select {
	case <-k.Context().Done():
	case <-other.Context().Done():
		k, other = other, k // whoever's renewal came first
	}
	wantLost(t, k, etcdlock.ReasonLeaseGone)
	kept(t, other, 2*ttl, "another's loss was not taken note of")
	let()
	mustUnlock(t, other)
}

func TestEventKindString(t *testing.T) {
	for kind, want := range map[etcdlock.EventKind]string{
		etcdlock.EventAcquired: "acquired",
		etcdlock.EventFailed:   "failed",
		etcdlock.EventReleased: "released",
		etcdlock.EventLost:     "lost",
		0:                      "EventKind(0)",
		99:                     "EventKind(99)",
	} {
		if got := kind.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// mustLostUnlock ends a lock that was lost, so that its name is free.
func mustLostUnlock(t testing.TB, k *etcdlock.Lock) {
	t.Helper()
	wantIs(t, "Unlock of a lost lock", k.Unlock(testContext(t)), etcdlock.ErrLost)
}
