//go:build unix

package members_test

import (
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/faultkit"
)

const (
	fillStep = 64 << 20
	fillMost = 512 << 20
)

// fillUntil writes until m takes stall to defragment, or a bound is reached. What it wrote is deleted at the end.
func fillUntil(t testing.TB, m *faultkit.Member, stall time.Duration) {
	t.Helper()
	t.Cleanup(func() {
		if _, err := m.Admin().Delete(testContext(t), "filler/", clientv3.WithPrefix()); err != nil {
			t.Error(err)
		}
	})
	for full := fillStep; ; full += fillStep {
		fill(t, m, full)
		took := defragment(t, m)
		if took >= stall || full >= fillMost {
			t.Logf("%d MB take %v to defragment", full>>20, took.Round(time.Millisecond))
			return
		}
	}
}

func fill(t testing.TB, m *faultkit.Member, at int) {
	t.Helper()
	const size, batch = 16 << 10, 64
	value := string(make([]byte, size))
	for i := range fillStep / size / batch {
		var ops []clientv3.Op
		for j := range batch {
			ops = append(ops, clientv3.OpPut(fmt.Sprintf("filler/%d/%d/%d", at, i, j), value))
		}
		if _, err := m.Admin().Txn(testContext(t)).Then(ops...).Commit(); err != nil {
			t.Fatal(err)
		}
	}
}

func defragment(t testing.TB, m *faultkit.Member) time.Duration {
	t.Helper()
	return receive(t, "defragmentation", goDefragment(t, m))
}

// goDefragment tells how long the member took.
func goDefragment(t testing.TB, m *faultkit.Member) <-chan time.Duration {
	ctx, out := testContext(t), make(chan time.Duration, 1)
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
	fillUntil(t, c.Member(used), ttl)
	h := take(t, c, used, "defragmented", ttl, etcdlock.WithSafetyMargin(margin))
	h.due(t)
	stall := keptUntil(t, h, goDefragment(t, c.Member(used)), "defragmentation")
	t.Logf("it took %v", stall.Round(time.Millisecond))
	h.kept(t, ttl, "after it")
	h.release(t)
}

// TestF36DefragmentedOnlyMember has no other member to turn to: the loss is told in time.
func TestF36DefragmentedOnlyMember(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	c := startCluster(t, 1)
	fillUntil(t, c.Member(0), 2*ttl)
	h := take(t, c, 0, "defragmented", ttl)
	t.Cleanup(func() { _ = h.lock.Unlock(testContext(t)) }) // held or lost
	deleted := h.deletion(t, 0)
	h.due(t)
	stall := receive(t, "defragmentation", goDefragment(t, c.Member(0)))
	t.Logf("it took %v", stall.Round(time.Millisecond))
	if stall < ttl { // a fast disk
		return
	}
	h.toldBefore(t, deleted)
}
