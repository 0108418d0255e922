package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/etcdtest"
	"github.com/revfence/revfence/internal/faultkit"
)

// dyingTTL is the TTL of the leases that these tests bring near their end, or past it.
const dyingTTL = 3 * time.Second

// A dying is a Locker whose leases do not live.
type dying struct {
	locker  *etcdlock.Locker
	answers faultkit.Streams
	mute    *faultkit.StreamFault // of the answers to renewals
	calls   faultkit.Calls
	proxy   *faultkit.Proxy
}

func newDying(t *testing.T, srv *etcdtest.Server) *dying {
	d := &dying{proxy: faultkit.NewProxy(t, srv.Endpoint())}
	d.mute = silence(&d.answers)
	d.locker = newLocker(t, srv.Client(t, etcdtest.Via(d.proxy.Addr()), etcdtest.Unary(d.calls.Unary), etcdtest.Stream(d.answers.Stream)),
		etcdlock.WithTTL(dyingTTL))
	return d
}

// leases notes how much of a lock's time was left when it was returned.
type leases struct {
	mu   sync.Mutex
	left []etcdtest.Sample
}

// returned takes what Lock gave. A third of the TTL has to be left.
func (v *leases) returned(k *etcdlock.Lock, asked time.Time) {
	left := k.Remaining()
	v.mu.Lock()
	defer v.mu.Unlock()
	v.left = append(v.left, etcdtest.Sample{From: asked, To: time.Now(), Value: -left})
}

func (v *leases) judge(t *testing.T, stalls *etcdtest.Ticker) {
	t.Helper()
	stalls.Judge(t, "missing from what is left", v.left, 1, -dyingTTL/3+30*time.Millisecond)
}

// lives checks that a lock stands in etcd, alone, and releases it.
func lives(t *testing.T, srv *etcdtest.Server, k *etcdlock.Lock) {
	t.Helper()
	if err := k.Check(testContext(t)); err != nil {
		t.Errorf("%q: Check: %v", k.Name(), err)
	}
	eventuallyWithin(t, "only the held lock is left of "+k.Name(), soon, func() bool {
		kvs := keys(t, srv, "/revfence/"+k.Name()+"/").Kvs
		return len(kvs) == 1 && kvs[0].CreateRevision == int64(k.Token())
	})
	mustUnlock(t, k)
}

// TestF07LeaseDiesDuringLock: the name was free, the key is there, and then the lease comes near its end or goes. Such a
// lock is not returned: Lock tries again with another lease.
func TestF07LeaseDiesDuringLock(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	stalls := etcdtest.Stalls(t)
	var returned leases
	t.Run("all", func(t *testing.T) {
		for what, harm := range map[string]func(t *testing.T, d *dying, name string){
			// With an answer that comes late, and no other that says how long the lease lives.
			"near its end":      func(t *testing.T, d *dying, _ string) { pass(dyingTTL * 2 / 3) },
			"past its deadline": func(t *testing.T, d *dying, _ string) { pass(dyingTTL * 19 / 20) },
			"past its TTL":      func(t *testing.T, d *dying, _ string) { pass(dyingTTL * 5 / 4) },
			"revoked": func(t *testing.T, d *dying, name string) {
				d.mute.Disarm()
				revokeOf(t, srv, name)
				pass(dyingTTL / 2) // a renewal is due before
			},
			"expired": func(t *testing.T, d *dying, name string) {
				d.proxy.Hold()
				eventuallyWithin(t, "the key is gone", 2*dyingTTL, func() bool { return len(keys(t, srv, "/revfence/"+name+"/").Kvs) == 0 })
				d.proxy.Pass()
			},
		} {
			for _, try := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, TryLock %t", what, try), func(t *testing.T) {
					t.Parallel()
					name := strings.ReplaceAll(fmt.Sprint(what, try), " ", "-") // as escaping leaves it
					d := newDying(t, srv)
					fault := d.calls.Lost(creates, 1, nil, func() {
						harm(t, d, name)
						d.mute.Disarm()
					})
					asked := time.Now()
					lock := d.locker.Lock
					if try {
						lock = d.locker.TryLock
					}
					k, err := lock(testContext(t), name)
					if fault.Hits() != 1 {
						t.Errorf("fault applied %d times", fault.Hits())
					}
					if try && errors.Is(err, etcdlock.ErrLocked) {
						// It has met the key of its first try, and does not wait until that is deleted.
						asked = time.Now()
						k, err = d.locker.Lock(testContext(t), name)
					}
					if err != nil {
						t.Fatalf("Lock: %v", err)
					}
					returned.returned(k, asked)
					lives(t, srv, k)
				})
			}
		}
	})
	returned.judge(t, stalls)
}

// revokeOf revokes the lease of a name's only key.
func revokeOf(t testing.TB, srv *etcdtest.Server, name string) {
	t.Helper()
	kvs := keys(t, srv, "/revfence/"+name+"/").Kvs
	if len(kvs) != 1 {
		t.Errorf("keys of %q: %v", name, kvs)
		return
	}
	if _, err := srv.Admin().Revoke(testContext(t), clientv3.LeaseID(kvs[0].Lease)); err != nil {
		t.Error(err)
	}
}

// TestF07DyingIdleLease: a lease that was kept for reuse, and of which too little is left or nothing, is not used again.
func TestF07DyingIdleLease(t *testing.T) {
	t.Parallel()
	srv := startClean(t, dyingTTL+soon)
	stalls := etcdtest.Stalls(t)
	var returned leases
	t.Run("all", func(t *testing.T) {
		for i := range 12 {
			// From an age of 1.6 s on too little is left; the deadline is at 2.6 s, the TTL, when an idle lease is revoked, at 3 s.
			age := dyingTTL*7/12 + time.Duration(i)*dyingTTL/24
			t.Run(age.String(), func(t *testing.T) {
				t.Parallel()
				d := newDying(t, srv)
				name := age.String()
				first := mustLock(t, d.locker, name)
				begun := time.Now() // the lease is older
				mustUnlock(t, first)
				pass(time.Until(begun.Add(age)))
				ctx, cancel := context.WithTimeout(t.Context(), soon)
				defer cancel()
				asked := time.Now()
				k, err := d.locker.Lock(ctx, name)
				if err != nil {
					t.Fatalf("Lock: %v", err)
				}
				returned.returned(k, asked)
				if k.Key() == first.Key() {
					t.Error("the dying lease was used again")
				}
				lives(t, srv, k)
			})
		}
	})
	returned.judge(t, stalls)
}
