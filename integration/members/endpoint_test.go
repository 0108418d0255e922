//go:build unix

package members_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/revfence/revfence/etcdlock"
)

// ttl leaves the watchdog 3.5 s between its first doubt and the deadline, on a machine that has other tests to run.
const ttl = 9 * time.Second

// TestF34StoppedEndpoint stops the member that renewals go through, just before one is due. Its connections stay open.
func TestF34StoppedEndpoint(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3)
	used := c.Follower(t)
	h := take(t, c, used, "stopped", ttl)
	h.due(t)
	c.Member(used).Stop()
	h.kept(t, 3*ttl/2, "endpoint stopped")
	c.Member(used).Cont()
	h.kept(t, ttl/2, "resumed")
	h.release(t)
}

// TestEndpointSilent has everything lost that goes to, and comes from, the member in use.
func TestEndpointSilent(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3)
	used := c.Follower(t)
	h := take(t, c, used, "silent", ttl)
	h.due(t)
	c.Member(used).Proxy.BlackHole()
	h.kept(t, 3*ttl/2, "endpoint silent")
	c.Member(used).Proxy.Heal()
	h.kept(t, ttl/2, "healed")
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
	next := newLocker(t, c.Member(0).Admin(), etcdlock.WithTTL(ttl))
	for range 3 {
		deleted := h.deletion(t, c.Leader(t))
		for i := range c.Len() {
			c.Member(i).Proxy.BlackHole()
		}
		waiting := goLock(testContext(t), next, h.lock.Name())
		h.toldBefore(t, deleted)
		if lost := h.lost(t); lost.Reason != etcdlock.ReasonDeadline {
			t.Errorf("lost by %v", lost.Reason)
		}
		k := granted(t, waiting)
		if k.Token() <= h.lock.Token() {
			t.Errorf("token %v after %v", k.Token(), h.lock.Token())
		}
		mustUnlock(t, k)
		for i := range c.Len() {
			c.Member(i).Proxy.Heal()
		}
		h = take(t, c, c.Follower(t), "cut off", ttl)
	}
	h.release(t)
}
