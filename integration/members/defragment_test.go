//go:build unix

package members_test

import (
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/faultkit"
	"github.com/revfence/revfence/internal/locktest"
)

// filled is how many megabytes a member has to copy.
const filled = 64

// fill makes the members of a cluster large, until the end of the test.
func fill(t testing.TB, m *faultkit.Member) {
	t.Helper()
	t.Cleanup(func() {
		if _, err := m.Admin().Delete(locktest.Context(t), "filler/", clientv3.WithPrefix()); err != nil {
			t.Error(err)
		}
	})
	const size, batch = 16 << 10, 64
	value := string(make([]byte, size))
	for i := range filled {
		var ops []clientv3.Op
		for j := range batch {
			ops = append(ops, clientv3.OpPut(fmt.Sprintf("filler/%d/%d", i, j), value))
		}
		if _, err := m.Admin().Txn(locktest.Context(t)).Then(ops...).Commit(); err != nil {
			t.Fatal(err)
		}
	}
}

// slow leaves the member a fortieth of the time, as if it had much more to copy, or a slow disk. Alone that would delay
// its answers by less than half a second.
func slow(m *faultkit.Member, d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		pass(10 * time.Millisecond)
		m.Stop()
		pass(400 * time.Millisecond)
		m.Cont()
	}
}

// goDefragment tells how long the member took.
func goDefragment(t testing.TB, m *faultkit.Member) <-chan time.Duration {
	ctx, out := locktest.Context(t), make(chan time.Duration, 1)
	go func() {
		from := time.Now()
		if _, err := clientv3.NewMaintenance(m.Admin()).Defragment(ctx, m.Endpoint()); err != nil {
			t.Errorf("defragment: %v", err)
		}
		out <- time.Since(from)
	}()
	return out
}

// TestF36DefragmentedMember defragments the member in use, which answers nothing until it is done.
func TestF36DefragmentedMember(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	const margin = 100 * time.Millisecond // more time for the watchdog, and none of the next holder's is at stake
	c := startCluster(t, 3)
	used := c.Follower(t)
	fill(t, c.Member(used))
	h := take(t, c, used, "defragmented", ttl, etcdlock.WithSafetyMargin(margin))
	h.due(t)
	done := goDefragment(t, c.Member(used))
	slow(c.Member(used), ttl+time.Second)
	stall := receive(t, "defragmentation", done)
	h.kept(t, ttl, fmt.Sprintf("defragmentation of %v", stall.Round(time.Millisecond)))
	h.release(t)
}

// TestF36DefragmentedOnlyMember has no other member to turn to: the loss is told in time.
func TestF36DefragmentedOnlyMember(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	c := startCluster(t, 1)
	fill(t, c.Member(0))
	h := take(t, c, 0, "defragmented", ttl)
	deleted := h.deletion(t, 0)
	h.due(t)
	done := goDefragment(t, c.Member(0))
	slow(c.Member(0), 2*ttl)
	if lost := h.lost(t); lost.Reason != etcdlock.ReasonDeadline {
		t.Errorf("lost by %v", lost.Reason)
	}
	h.toldBefore(t, deleted)
	t.Logf("it took %v", receive(t, "defragmentation", done).Round(time.Millisecond))
}
