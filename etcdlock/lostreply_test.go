package etcdlock_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/etcdtest"
	"github.com/revfence/revfence/internal/faultkit"
)

var errLostReply = status.Error(codes.Unavailable, "reply lost")

// faulty returns a Locker whose calls fail on demand.
func faulty(t testing.TB, srv *etcdtest.Server, opts ...etcdlock.Option) (*etcdlock.Locker, *faultkit.Calls) {
	t.Helper()
	faults := new(faultkit.Calls)
	l := newLocker(t, srv.Client(t, etcdtest.Unary(faults.Unary)), opts...)
	t.Cleanup(faults.Wait)
	return l, faults
}

// settled checks that nothing of a name is in etcd but a held lock, and no lease but that lock's.
func settled(t testing.TB, srv *etcdtest.Server, k *etcdlock.Lock) {
	t.Helper()
	eventuallyWithin(t, "only the held lock is left", soon, func() bool {
		kvs := keys(t, srv, "/revfence/"+k.Name()+"/").Kvs
		return len(kvs) == 1 && kvs[0].CreateRevision == int64(k.Token()) && leaseCount(t, srv) == 1
	})
	if err := k.Check(testContext(t)); err != nil {
		t.Errorf("Check: %v", err)
	}
}

// TestF22GrantReplyLost: the lease that may exist is used if that comes out, and else revoked.
func TestF22GrantReplyLost(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		err   error
		calls int
	}{
		// etcd's client repeats this one by itself, and is told that the lease exists.
		"repeated by the client": {errLostReply, 1},
		"not repeated":           {status.Error(codes.Unknown, "reply lost"), 2},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			srv := startClean(t, soon)
			l, faults := faulty(t, srv)
			fault := faults.Lost(faultkit.Method("LeaseGrant"), c.calls, c.err)
			k := mustLock(t, l, "x")
			if fault.Hits() != c.calls {
				t.Errorf("%d replies lost", fault.Hits())
			}
			settled(t, srv, k)
			mustUnlock(t, k)
		})
	}
}

// TestF22GrantCommittedLate: when it is revoked, there is no lease yet. It does not live for a TTL.
func TestF22GrantCommittedLate(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	l, faults := faulty(t, srv)
	ctx, cancel := context.WithCancel(testContext(t))
	revoke := faults.Lost(callsOf(revokeCall), 1, nil)
	// Unknown is not repeated by etcd's client.
	grant := faults.Late(func(method string, req any) bool {
		if callsOf(grantCall)(method, req) {
			cancel()
			return true
		}
		return false
	}, 1, 300*time.Millisecond, status.Error(codes.Unknown, "reply lost"))
	_, err := l.Lock(ctx, "x")
	wantIs(t, "Lock", err, context.Canceled)
	eventually(t, "the lease is revoked", func() bool { return revoke.Hits() == 1 })
	if grant.Hits() != 1 || leaseCount(t, srv) != 0 {
		t.Fatalf("%d grants, %d leases: the revoke did not come first", grant.Hits(), leaseCount(t, srv))
	}
	faults.Wait()
	eventuallyWithin(t, "the late lease is revoked", soon, func() bool { return leaseCount(t, srv) == 0 })
}

// TestF19CreateReplyLost: the key that may be in the queue does not stay there, and its session is not used again.
func TestF19CreateReplyLost(t *testing.T) {
	t.Parallel()
	for what, arm := range map[string]func(*faultkit.Calls) *faultkit.Fault{
		"committed":       func(c *faultkit.Calls) *faultkit.Fault { return c.Lost(creates, 1, errLostReply) },
		"not sent":        func(c *faultkit.Calls) *faultkit.Fault { return c.Fail(creates, 1, errLostReply) },
		"committed later": func(c *faultkit.Calls) *faultkit.Fault { return c.Late(creates, 1, 300*time.Millisecond, errLostReply) },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			srv := startClean(t, soon)
			l, faults := faulty(t, srv)
			mustUnlock(t, mustLock(t, l, "warm"))
			fault := arm(faults)
			k := mustLock(t, l, "x")
			if fault.Hits() != 1 {
				t.Errorf("%d replies lost", fault.Hits())
			}
			faults.Wait()
			settled(t, srv, k)
			mustUnlock(t, k)

			// TryLock does not try again, and what it may have written goes as well.
			fault = arm(faults)
			if k, err := l.TryLock(testContext(t), "x"); k != nil || err == nil {
				t.Errorf("TryLock: %v, %v", k, err)
			}
			if fault.Hits() != 1 {
				t.Errorf("%d replies lost by TryLock", fault.Hits())
			}
			faults.Wait()
			k = mustLock(t, l, "x")
			settled(t, srv, k)
			mustUnlock(t, k)
		})
	}
}

// TestF19CreateReplyLostAsContextEnds: Lock returns, and the key is withdrawn behind it.
func TestF19CreateReplyLostAsContextEnds(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	l, faults := faulty(t, srv)
	ctx, cancel := context.WithCancel(testContext(t))
	faults.Lost(creates, 1, errLostReply, cancel)
	_, err := l.Lock(ctx, "x")
	wantIs(t, "Lock", err, context.Canceled)
	eventuallyWithin(t, "nothing is left", soon, func() bool { return len(keys(t, srv, "").Kvs) == 0 && leaseCount(t, srv) == 0 })
	mustUnlock(t, mustLock(t, l, "x"))
}

// TestF19CreateReplyLostOnSharedLease: the lease lives on for another lock, so the key has to be deleted, also one that
// comes late.
func TestF19CreateReplyLostOnSharedLease(t *testing.T) {
	t.Parallel()
	for what, arm := range map[string]func(*faultkit.Calls) *faultkit.Fault{
		"committed":       func(c *faultkit.Calls) *faultkit.Fault { return c.Lost(creates, 1, errLostReply) },
		"committed later": func(c *faultkit.Calls) *faultkit.Fault { return c.Late(creates, 1, 500*time.Millisecond, errLostReply) },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			srv := startClean(t, soon)
			l, faults := faulty(t, srv, etcdlock.WithSharedLeases(10))
			neighbour := mustLock(t, l, "neighbour")
			tainted := leaseOf(t, srv, neighbour)
			arm(faults)
			k := mustLock(t, l, "x")
			if id := leaseOf(t, srv, k); id == tainted {
				t.Errorf("the lease with a write of unknown outcome has taken the name again")
			}
			faults.Wait()
			eventuallyWithin(t, "the stray key is deleted", soon, func() bool {
				kvs := keys(t, srv, "/revfence/x/").Kvs
				return len(kvs) == 1 && kvs[0].CreateRevision == int64(k.Token())
			})
			if err := neighbour.Check(testContext(t)); err != nil {
				t.Errorf("the neighbour: %v", err)
			}
			other := mustLock(t, l, "other")
			if leaseOf(t, srv, other) == tainted {
				t.Error("the tainted lease takes new names")
			}
			mustUnlock(t, neighbour)
			eventuallyWithin(t, "the tainted lease goes with its last lock", soon, func() bool { return leaseCount(t, srv) == 1 })
			mustUnlock(t, other)
			mustUnlock(t, k)
		})
	}
}

// TestDeleteReplyLost: the retry finds the key gone. It is released, but the delete may still come again, so its
// session, and with that its key, is not used again.
func TestDeleteReplyLost(t *testing.T) {
	t.Parallel()
	for what, arm := range map[string]func(*faultkit.Calls) *faultkit.Fault{
		"committed":       func(c *faultkit.Calls) *faultkit.Fault { return c.Lost(deletes, 1, errLostReply) },
		"not sent":        func(c *faultkit.Calls) *faultkit.Fault { return c.Fail(deletes, 1, errLostReply) },
		"committed later": func(c *faultkit.Calls) *faultkit.Fault { return c.Late(deletes, 1, 500*time.Millisecond, errLostReply) },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			srv := startClean(t, soon)
			l, faults := faulty(t, srv)
			old := mustLock(t, l, "x")
			fault := arm(faults)
			mustUnlock(t, old)
			if fault.Hits() != 1 {
				t.Errorf("%d replies lost", fault.Hits())
			}
			k := mustLock(t, l, "x")
			if k.Key() == old.Key() {
				t.Error("the session was used again")
			}
			faults.Wait() // the late delete has arrived
			settled(t, srv, k)
			mustUnlock(t, old) // and neither does a repeated Unlock touch the next hold
			if err := k.Check(testContext(t)); err != nil {
				t.Errorf("Check: %v", err)
			}
			mustUnlock(t, k)
		})
	}
}
