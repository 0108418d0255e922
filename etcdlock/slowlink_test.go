package etcdlock_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/etcdtest"
	"github.com/revfence/revfence/internal/faultkit"
)

// TestSlowLink: a lock is kept while a renewal takes less than half of the trust
// window, whatever the watchdog thinks of it.
func TestSlowLink(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second
	for _, oneWay := range []time.Duration{300 * time.Millisecond, 600 * time.Millisecond, 1200 * time.Millisecond} {
		t.Run(oneWay.String(), func(t *testing.T) {
			t.Parallel()
			srv := startClean(t, soon)
			p := faultkit.NewProxy(t, srv.Endpoint())
			l := newLocker(t, srv.Client(t, etcdtest.Via(p.Addr())), etcdlock.WithTTL(ttl))
			k := mustLock(t, l, "x")
			p.Delay(oneWay)
			kept(t, k, 2*ttl, "slow link")
			p.Delay(0)
			mustUnlock(t, k)
		})
	}
}

// TestWatchdogManyLocksSlowRescue: of two ways to etcd the one in use goes dead,
// the other is slow, and every lock's watchdog barks at a time of its own.
func TestWatchdogManyLocksSlowRescue(t *testing.T) {
	t.Parallel()
	const ttl, locks, oneWay = 6 * time.Second, 40, 150 * time.Millisecond
	for dead := range 2 {
		t.Run(fmt.Sprint(dead), func(t *testing.T) {
			t.Parallel()
			srv := startClean(t, soon+soon)
			ways := []*faultkit.Proxy{faultkit.NewProxy(t, srv.Endpoint()), faultkit.NewProxy(t, srv.Endpoint())}
			l := newLocker(t, srv.Client(t, etcdtest.Via(ways[0].Addr(), ways[1].Addr())), etcdlock.WithTTL(ttl))
			var held []*etcdlock.Lock
			for i := range locks {
				held = append(held, mustLock(t, l, fmt.Sprint(i)))
				pass(ttl / 3 / locks)
			}
			ways[1-dead].Delay(oneWay)
			ways[dead].BlackHole()
			pass(2 * ttl)
			for _, k := range held {
				live(t, k)
			}
			ways[0].Heal()
			ways[1].Heal()
			for _, k := range held {
				mustUnlock(t, k)
			}
		})
	}
}

// TestLargeMarginKeepsPlace: with the largest margin little of the TTL is left to
// trust, but a waiter that is served has enough.
func TestLargeMarginKeepsPlace(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	opts := []etcdlock.Option{etcdlock.WithTTL(4 * time.Second), etcdlock.WithSafetyMargin(2 * time.Second)}
	holder, waiter := clientLocker(t, srv, opts...), clientLocker(t, srv, opts...)
	stalls := etcdtest.Stalls(t)
	// served returns the token of the waiter, and the revision of the place it had taken.
	served := func(wait time.Duration) (token, place int64) {
		k := mustLock(t, holder, "x")
		c := goLock(testContext(t), waiter, "x")
		awaitKeys(t, srv, "/revfence/x/", 2)
		for _, kv := range keys(t, srv, "/revfence/x/").Kvs {
			place = max(place, kv.CreateRevision)
		}
		pass(wait)
		// With a quarter of a second to spare, a busy machine can take the lock, or the place, away.
		if err := k.Unlock(testContext(t)); err != nil && !errors.Is(err, etcdlock.ErrLost) {
			t.Errorf("Unlock: %v", err)
		}
		next := granted(t, c)
		mustUnlock(t, next)
		return int64(next.Token()), place
	}
	for wait := 100 * time.Millisecond; wait < 3*time.Second; wait += 300 * time.Millisecond {
		for try := 1; ; try++ {
			from := time.Now()
			token, place := served(wait)
			if token == place {
				break
			}
			if try == 3 || !stalls.Overlaps(from, time.Now()) {
				t.Errorf("after a wait of %v: served with token %d, its place was %d (try %d)", wait, token, place, try)
				break
			}
		}
	}
}
