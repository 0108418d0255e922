//go:build unix

package members_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/faultkit"
	"github.com/revfence/revfence/internal/locktest"
)

// ttl leaves the watchdog 3.5 s between its first doubt and the deadline, on a machine that has other tests to run.
const ttl = 9 * time.Second

// TestF34StoppedEndpoint stops the member that renewals go through, just before one is due. Its connections stay open.
func TestF34StoppedEndpoint(t *testing.T) {
	t.Parallel()
	outlive(t, "stopped", (*faultkit.Member).Stop, (*faultkit.Member).Cont)
}

// TestEndpointSilent has everything lost that goes to, and comes from, the member in use.
func TestEndpointSilent(t *testing.T) {
	t.Parallel()
	outlive(t, "silent", func(m *faultkit.Member) { m.Proxy.BlackHole() }, func(m *faultkit.Member) { m.Proxy.Heal() })
}

// outlive fails the test if a lock does not live through a fault, of the member in use, that lasts for longer than its TTL.
func outlive(t *testing.T, fault string, begin, end func(*faultkit.Member)) {
	t.Helper()
	c := startCluster(t, 3)
	used := c.Follower(t)
	h := take(t, c, used, fault, ttl)
	h.due(t)
	begin(c.Member(used))
	h.kept(t, 3*ttl/2, "endpoint "+fault)
	end(c.Member(used))
	h.kept(t, ttl/2, "no longer "+fault)
	h.release(t)
}

// TestMembersKilledInTurn kills and restarts all members, that in use first.
func TestMembersKilledInTurn(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3)
	used := c.Follower(t)
	h := take(t, c, used, "killed", ttl)
	for i := range c.Len() {
		m := c.Member((used + i) % c.Len())
		h.due(t)
		m.Kill()
		h.kept(t, ttl, fmt.Sprint(i+1, ". member killed"))
		m.Restart()
		m.Await()
		h.kept(t, ttl/3, "restarted")
	}
	h.release(t)
}

// TestAllEndpointsSilent cuts the client off from a healthy cluster, which goes on to expire its lease.
func TestAllEndpointsSilent(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	c := startCluster(t, 3)
	h := take(t, c, c.Follower(t), "cut off", ttl)
	next := locktest.New(t, c.Member(0).Admin(), etcdlock.WithTTL(ttl))
	for range 3 {
		deleted := h.deletion(t, c.Leader(t))
		for i := range c.Len() {
			c.Member(i).Proxy.BlackHole()
		}
		waiting := goLock(locktest.Context(t), next, h.lock.Name())
		h.toldBefore(t, deleted)
		if lost := h.lost(t); lost.Reason != etcdlock.ReasonDeadline {
			t.Errorf("lost by %v", lost.Reason)
		}
		k := granted(t, waiting)
		if k.Token() <= h.lock.Token() {
			t.Errorf("token %v after %v", k.Token(), h.lock.Token())
		}
		locktest.Unlock(t, k)
		for i := range c.Len() {
			c.Member(i).Proxy.Heal()
		}
		h = take(t, c, c.Follower(t), "cut off", ttl)
	}
	h.release(t)
}
