//go:build unix

package members_test

import (
	"context"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/revfence/revfence/internal/faultkit"
)

// onFollower returns a lock that is renewed through a follower, and the leader that follower forwards to.
func onFollower(t *testing.T, name string, ttl time.Duration) (*hold, *faultkit.Member) {
	t.Helper()
	c := startCluster(t, 3)
	h := take(t, c, c.Follower(t), name, ttl)
	return h, c.Member(c.Leader(t))
}

// TestF35StuckLeader stops the leader for good: a follower holds on for 7 s to a renewal that it has forwarded.
func TestF35StuckLeader(t *testing.T) {
	t.Parallel()
	h, leader := onFollower(t, "stuck", ttl)
	h.due(t)
	leader.Stop()
	h.kept(t, 3*ttl/2, "leader stopped")
	leader.Kill()
	h.release(t)
}

// TestLeaderStoppedForSeconds resumes the leader while, to it, the lease is still alive.
func TestLeaderStoppedForSeconds(t *testing.T) {
	t.Parallel()
	const ttl = 15 * time.Second
	h, leader := onFollower(t, "seconds", ttl)
	h.due(t)
	leader.Stop()
	h.kept(t, 7*time.Second, "leader stopped")
	leader.Cont()
	h.kept(t, ttl, "resumed")
	h.release(t)
}

// TestF13StuckLeaderResumed stops the leader for more than two TTLs, so that to it every lease has expired when it goes
// on. It may revoke leases then that are alive: the lock stays, or its holder is told at once.
func TestF13StuckLeaderResumed(t *testing.T) {
	t.Parallel()
	h, leader := onFollower(t, "resumed", ttl)
	healthy := h.cluster.Follower(t)
	h.due(t)
	leader.Stop()
	h.kept(t, 20*time.Second, "leader stopped")
	deleted := h.deletion(t, healthy)
	leader.Cont()
	select {
	case <-time.After(3 * ttl / 2):
		t.Log("resumed: kept")
		h.release(t)
	case at := <-deleted:
		lost := h.lost(t)
		eventually(t, "note of the loss", func() bool { return !h.toldAt().IsZero() })
		late := h.toldAt().Sub(at)
		t.Logf("resumed: revoked, told %v after the key was seen deleted: %v", late.Round(time.Millisecond), lost)
		if late > time.Second {
			t.Errorf("told only %v after the key was seen deleted: %v", late, lost)
		}
	}
}

// TestLeaderStoppedInUse stops the leader while renewals go to it directly.
func TestLeaderStoppedInUse(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3)
	leader := c.Leader(t)
	h := take(t, c, leader, "in use", ttl)
	h.due(t)
	c.Member(leader).Stop()
	h.kept(t, 3*ttl/2, "leader stopped")
	c.Member(leader).Kill()
	h.release(t)
}

func TestLeaderKilled(t *testing.T) {
	t.Parallel()
	h, leader := onFollower(t, "killed", ttl)
	h.due(t)
	leader.Kill()
	h.kept(t, 3*ttl/2, "leader killed")
	h.release(t)
}

// TestLeaderMovedOften moves the lead to the next member every 500 ms.
func TestLeaderMovedOften(t *testing.T) {
	t.Parallel()
	h, _ := onFollower(t, "moved", ttl)
	c := h.cluster
	moved := 0
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		from := c.Leader(t)
		if err := move(c.Member(from), c.Member((from+1)%c.Len())); err == nil {
			moved++ // it fails when the lead moved by itself just now
		}
		h.kept(t, 500*time.Millisecond, "leader moved")
	}
	if moved < 20 {
		t.Errorf("the lead moved only %d times", moved)
	}
	h.release(t)
}

func move(from, to *faultkit.Member) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err := clientv3.NewMaintenance(from.Admin()).MoveLeader(ctx, to.ID())
	return err
}
