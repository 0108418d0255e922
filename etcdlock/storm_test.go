package etcdlock_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/etcdtest"
	"github.com/revfence/revfence/internal/faultkit"
)

var stormSeed = flag.Uint64("storm.seed", 0, "seed of TestF19CancellationStorm; 0 for another one each time")

// A storm is many acquisitions, all cut short, on few names.
type storm struct {
	t       *testing.T
	srv     *etcdtest.Server
	proxy   *faultkit.Proxy
	lockers []*etcdlock.Locker
	inside  [3]atomic.Int32 // holders by name
	calls   atomic.Int64

	got, locked, late, failed atomic.Int64
}

// TestF19CancellationStorm: 10 000 calls of Lock and TryLock that are given 0 to 20 ms, half of them through connections
// that are cut all the time, leave no key, no lease but those kept for reuse, and no goroutine, and every name is free.
// Under the race detector it is a fifth of the calls, of five times as long each: with less nothing is ever acquired.
func TestF19CancellationStorm(t *testing.T) {
	etcdtest.LeakCheck(t)
	seed := *stormSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-storm.seed=%d", seed)
	// Long enough for nothing to be free because its TTL has passed.
	const total, workers, ttl = 10_000 / slowness, 4, 20 * time.Second
	srv := startClean(t, soon)
	s := &storm{t: t, srv: srv, proxy: faultkit.NewProxy(t, srv.Endpoint())}
	for i := range 4 {
		opts := []etcdtest.ClientOption{}
		if i%2 == 1 {
			opts = append(opts, etcdtest.Via(s.proxy.Addr()), eager)
		}
		s.lockers = append(s.lockers, newLocker(t, srv.Client(t, opts...), etcdlock.WithTTL(ttl)))
	}
	over, cut := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(cut)
		s.cut(rand.New(rand.NewPCG(seed, 0)), over)
	}()
	from := time.Now()
	var wg sync.WaitGroup
	for i := range workers * len(s.lockers) {
		rnd := rand.New(rand.NewPCG(seed, uint64(i+1)))
		l := s.lockers[i%len(s.lockers)]
		wg.Go(func() {
			for s.calls.Add(1) <= total {
				s.call(rnd, l)
			}
		})
	}
	wg.Wait()
	close(over)
	<-cut
	s.proxy.Heal()
	t.Logf("in %v: %d acquired, %d locked, %d not in time, %d failed otherwise", time.Since(from).Round(time.Millisecond),
		s.got.Load(), s.locked.Load(), s.late.Load(), s.failed.Load())
	if s.got.Load() == 0 || s.late.Load() < total/100 {
		t.Error("a storm without acquisitions, or without cancelled ones, shows nothing")
	}
	s.calm()
}

// eager makes a client connect again at once.
func eager(c *clientv3.Config) {
	c.DialOptions = append(c.DialOptions, grpc.WithConnectParams(grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: 50 * time.Millisecond},
		MinConnectTimeout: time.Second,
	}))
}

// cut breaks the connections through the proxy until over.
func (s *storm) cut(rnd *rand.Rand, over <-chan struct{}) {
	for {
		select {
		case <-over:
			return
		case <-time.After(time.Duration(rnd.IntN(40)) * time.Millisecond):
		}
		if rnd.IntN(4) > 0 {
			s.proxy.Drop()
			continue
		}
		s.proxy.Cut()
		pass(time.Duration(rnd.IntN(20)) * time.Millisecond)
		s.proxy.Heal()
	}
}

// call is one Lock or TryLock, and if it succeeds a hold of up to 2 ms.
func (s *storm) call(rnd *rand.Rand, l *etcdlock.Locker) {
	name := rnd.IntN(len(s.inside))
	acquire := l.Lock
	if rnd.IntN(2) == 0 {
		acquire = l.TryLock
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rnd.Int64N(int64(slowness*20*time.Millisecond))))
	defer cancel()
	k, err := acquire(ctx, lockName(name))
	switch {
	case errors.Is(err, etcdlock.ErrLocked):
		s.locked.Add(1)
	case errors.Is(err, context.DeadlineExceeded):
		s.late.Add(1)
	case err != nil:
		s.failed.Add(1)
	default:
		s.got.Add(1)
		if n := s.inside[name].Add(1); n != 1 {
			s.t.Errorf("%d hold %q", n, lockName(name))
		}
		pass(time.Duration(rnd.Int64N(int64(2 * time.Millisecond))))
		s.inside[name].Add(-1)
		// The same context: it has often ended by now, or is about to.
		if err := k.Unlock(ctx); err != nil && !errors.Is(err, etcdlock.ErrUnknown) {
			s.t.Errorf("Unlock: %v", err)
		}
	}
}

// calm checks what the storm has left.
func (s *storm) calm() {
	t := s.t
	from := time.Now()
	fresh := clientLocker(t, s.srv)
	for i := range s.inside {
		k := mustLock(t, fresh, lockName(i))
		if took := time.Since(from); took > soon {
			t.Errorf("%q is free %v after the storm", k.Name(), took)
		}
		mustUnlock(t, k)
	}
	took := time.Since(from)
	if err := fresh.Close(testContext(t)); err != nil {
		t.Errorf("Close: %v", err)
	}
	if kvs := keys(t, s.srv, "").Kvs; len(kvs) > 0 {
		t.Errorf("keys left: %v", kvs)
	}
	var left []string
	deadline := time.Now().Add(3 * soon) // a call may be under way for 5 s
	for left = s.leases(); len(left) > 0 && time.Now().Before(deadline); left = s.leases() {
		pass(20 * time.Millisecond)
	}
	if len(left) > 0 {
		t.Errorf("leases left that nobody keeps for reuse: %v", left)
	}
	t.Logf("all names free after %v, all leases gone after %v, %d kept for reuse", took, time.Since(from), leaseCount(t, s.srv))
	for _, l := range s.lockers {
		if err := l.Close(testContext(t)); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	if n := leaseCount(t, s.srv); n > 0 {
		t.Errorf("%d leases left by Close", n)
	}
}

// leases returns the leases that no Locker keeps for reuse.
func (s *storm) leases() (left []string) {
	var idle []clientv3.LeaseID
	for _, l := range s.lockers {
		idle = append(idle, l.IdleLeases()...)
	}
	resp, err := s.srv.Admin().Leases(testContext(s.t))
	if err != nil {
		s.t.Fatal(err)
	}
	for _, r := range resp.Leases {
		if !slices.Contains(idle, r.ID) {
			left = append(left, fmt.Sprintf("%x", r.ID))
		}
	}
	return left
}
