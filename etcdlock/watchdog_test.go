package etcdlock_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/etcdtest"
	"github.com/revfence/revfence/internal/faultkit"
)

// kept fails the test if the lock is lost within d.
func kept(t *testing.T, k *etcdlock.Lock, d time.Duration, what string) {
	t.Helper()
	select {
	case <-k.Context().Done():
		t.Fatalf("%s: %v", what, context.Cause(k.Context()))
	case <-time.After(d):
	}
}

// TestF34WatchdogDeadConnection: of two ways to etcd the one that carries the
// renewals goes silent, and nothing tells the client's connection.
func TestF34WatchdogDeadConnection(t *testing.T) {
	t.Parallel()
	srv := startClean(t, 10*time.Second)
	var proxies []*faultkit.Proxy
	var addrs []string
	for range 2 {
		p := faultkit.NewProxy(t, srv.Endpoint())
		proxies, addrs = append(proxies, p), append(addrs, p.Addr())
	}
	const ttl = 5 * time.Second
	l := newLocker(t, srv.Client(t, etcdtest.Via(addrs...)), etcdlock.WithTTL(ttl))
	k := mustLock(t, l, "watchdog")
	for i, p := range proxies {
		p.BlackHole()
		kept(t, k, 3*ttl/2, fmt.Sprintf("way %d silent", i))
		p.Heal()
		kept(t, k, time.Second, "healed")
	}
	mustUnlock(t, k)
}

// TestF34WatchdogDeadMember: each member of three goes down in turn, the leader
// among them.
func TestF34WatchdogDeadMember(t *testing.T) {
	t.Parallel()
	m := etcdtest.StartCluster(t, 3)
	m.Member(0).CheckClean(t, soon)
	const ttl = 6 * time.Second
	l := newLocker(t, m.Client(t), etcdlock.WithTTL(ttl))
	k := mustLock(t, l, "watchdog")
	for i := range 3 {
		m.Member(i).Stop()
		kept(t, k, 3*ttl/2, "member down")
		if err := m.Member(i).Restart(); err != nil {
			t.Fatal(err)
		}
		kept(t, k, time.Second, "member back")
	}
	mustUnlock(t, k)
}
