//go:build unix

package members_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/etcdtest"
	"github.com/revfence/revfence/internal/faultkit"
	"github.com/revfence/revfence/internal/locktest"
)

// withoutQuorum stops the members other than one. The function it returns resumes them.
func withoutQuorum(c *faultkit.Cluster, left int) (resume func()) {
	var others []*faultkit.Member
	for i := range c.Len() {
		if i != left {
			others = append(others, c.Member(i))
		}
	}
	for _, m := range others {
		m.Stop()
	}
	return func() {
		for _, m := range others {
			m.Cont()
		}
	}
}

// TestQuorumLostBriefly stops two of three members for less than the time a renewal may take.
func TestQuorumLostBriefly(t *testing.T) {
	t.Parallel()
	const ttl = 15 * time.Second
	c := startCluster(t, 3)
	used := c.Follower(t)
	h := take(t, c, used, "briefly", ttl)
	h.due(t)
	resume := withoutQuorum(c, used)
	h.kept(t, 4*time.Second, "no quorum")
	resume()
	h.kept(t, ttl, "quorum again")
	h.release(t)
}

// TestQuorumLostTooLong stops two of three members until the lock has to be given up. Nobody gets it meanwhile.
func TestQuorumLostTooLong(t *testing.T) {
	t.Parallel()
	const ttl = 5 * time.Second
	c := startCluster(t, 3)
	used := c.Follower(t)
	h := take(t, c, used, "too long", ttl)
	deleted := h.deletion(t, used)
	next := locktest.New(t, c.Member(used).Admin(), etcdlock.WithTTL(ttl))
	resume := withoutQuorum(c, used)

	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	r := receive(t, "Lock", goLock(ctx, next, h.lock.Name()))
	if late := r.at.Sub(deadline(ctx)); !errors.Is(r.err, context.DeadlineExceeded) || late > time.Second {
		t.Errorf("Lock without a quorum: %v, %v after its context ended", r.err, late)
	}
	if lost := h.lost(t); lost.Reason != etcdlock.ReasonDeadline {
		t.Errorf("lost by %v", lost.Reason)
	}
	if err := h.lock.Check(locktest.Context(t)); !errors.Is(err, etcdlock.ErrLost) {
		t.Errorf("Check of a lost lock: %v", err)
	}
	waiting := goLock(locktest.Context(t), next, h.lock.Name())
	pass(time.Second)
	resume()
	h.toldBefore(t, deleted)
	k := granted(t, waiting)
	if k.Token() <= h.lock.Token() {
		t.Errorf("token %v after %v", k.Token(), h.lock.Token())
	}
	locktest.Unlock(t, k)
}

func deadline(ctx context.Context) time.Time {
	d, _ := ctx.Deadline()
	return d
}

// TestF25WaiterWithoutQuorum has waiters whose only member loses the others. One's context ends meanwhile; the other
// keeps its place.
func TestF25WaiterWithoutQuorum(t *testing.T) {
	t.Parallel()
	const outage = 12 * time.Second // enough for its watch to end, and for the read after it to fail
	c := startCluster(t, 3)
	used := c.Follower(t)
	only := etcdtest.Via(c.Member(used).Proxy.Addr())
	k := locktest.Lock(t, locktest.New(t, c.Client(t)), "minority")
	patient := goLock(locktest.Context(t), locktest.New(t, c.Client(t, only)), k.Name())
	eventually(t, "the first waiter's place", func() bool { return len(queue(t, c, k.Name())) == 2 })
	place := queue(t, c, k.Name())[1].Token

	ctx, cancel := context.WithCancel(locktest.Context(t))
	defer cancel()
	hasty := goLock(ctx, locktest.New(t, c.Client(t, only)), k.Name())
	eventually(t, "the second waiter's place", func() bool { return len(queue(t, c, k.Name())) == 3 })
	resume := withoutQuorum(c, used)
	from := time.Now()
	pass(2 * time.Second)
	cancelled := time.Now()
	cancel()
	r := receive(t, "Lock", hasty)
	if late := r.at.Sub(cancelled); !errors.Is(r.err, context.Canceled) || late > time.Second {
		t.Errorf("Lock without a quorum: %v, %v after its context ended", r.err, late)
	}
	pass(time.Until(from.Add(outage)))
	resume()
	locktest.Unlock(t, k)
	k = granted(t, patient)
	if k.Token() != place {
		t.Errorf("the waiter's token is %v, its place was %v: it has lost that", k.Token(), place)
	}
	locktest.Unlock(t, k)
}

// queue lists the name's holder and waiters as a healthy cluster sees them.
func queue(t *testing.T, c *faultkit.Cluster, name string) []etcdlock.Contender {
	t.Helper()
	q, err := locktest.New(t, c.Member(0).Admin()).Queue(locktest.Context(t), name)
	if err != nil {
		t.Fatal(err)
	}
	return q
}
