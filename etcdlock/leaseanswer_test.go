package etcdlock_test

import (
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/etcdtest"
	"github.com/revfence/revfence/internal/faultkit"
)

var renewal = faultkit.Method(etcdtest.KeepAlive)

// notFound turns the answer to a renewal into that for a lease which etcd does not know.
func notFound(answer any) { answer.(*pb.LeaseKeepAliveResponse).TTL = 0 }

// awaitRevoked waits until etcd has a lease no longer, and fails if that is not at once.
func awaitRevoked(t testing.TB, srv *etcdtest.Server, id clientv3.LeaseID) {
	t.Helper()
	eventuallyWithin(t, "the lease is revoked", 2*time.Second, func() bool {
		ttl, err := srv.Admin().TimeToLive(testContext(t), id)
		return err == nil && ttl.TTL < 0
	})
}

// TestF37FirstAnswerZero: the first renewal is answered with a TTL of 0. Some servers say so of a lease that was granted a
// moment ago, which is why none is asked for in that moment; later it is believed, and the lease revoked, not left to rot.
func TestF37FirstAnswerZero(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second
	for _, share := range []int{1, 4} {
		t.Run(map[int]string{1: "own lease", 4: "shared lease"}[share], func(t *testing.T) {
			t.Parallel()
			srv := startClean(t, soon)
			var streams faultkit.Streams
			var calls etcdtest.Counter
			wrong := streams.Change(renewal, 1, notFound)
			l := newLocker(t, srv.Client(t, etcdtest.Stream(streams.Stream), etcdtest.Counted(&calls)),
				etcdlock.WithTTL(ttl), etcdlock.WithSharedLeases(share))
			k := mustLock(t, l, "x")
			lease := leaseOf(t, srv, k)
			next := goLock(testContext(t), clientLocker(t, srv), "x")
			pass(time.Second)
			if n := calls.Snapshot().Sent[etcdtest.KeepAlive]; n != 0 {
				t.Errorf("%d renewals in the first second", n)
			}
			wantLost(t, k, etcdlock.ReasonLeaseGone)
			told := time.Now()
			awaitRevoked(t, srv, lease)
			got := granted(t, next)
			if took := time.Since(told); took > ttl/3 {
				t.Errorf("the name was free %v after the loss", took)
			}
			if wrong.Hits() != 1 {
				t.Errorf("%d answers changed", wrong.Hits())
			}
			mustUnlock(t, got)
			mustUnlock(t, mustLock(t, l, "x"))
		})
	}
	t.Run("waiter", func(t *testing.T) {
		t.Parallel()
		srv := startClean(t, soon)
		var streams faultkit.Streams
		streams.Change(renewal, 1, notFound)
		k := mustLock(t, clientLocker(t, srv), "x")
		l := newLocker(t, srv.Client(t, etcdtest.Stream(streams.Stream)), etcdlock.WithTTL(ttl))
		next := goLock(testContext(t), l, "x")
		awaitKeys(t, srv, "/revfence/x/", 2)
		_, revision, lease := place(t, srv, "x")
		eventually(t, "another place", func() bool {
			kvs := keys(t, srv, "/revfence/x/").Kvs
			return kvs[len(kvs)-1].CreateRevision > revision && kvs[len(kvs)-1].Lease != int64(lease)
		})
		awaitRevoked(t, srv, lease)
		mustUnlock(t, k)
		mustUnlock(t, granted(t, next))
	})
}

// TestF38NoLeader: renewals that fail for want of a leader, once and over and over, cost no lock, and nothing goes on
// renewing when there is nothing to renew any more.
func TestF38NoLeader(t *testing.T) {
	t.Parallel()
	const ttl = 5 * time.Second
	srv := startClean(t, soon)
	var streams faultkit.Streams
	var calls etcdtest.Counter
	l, err := etcdlock.New(srv.Client(t, etcdtest.Stream(streams.Stream), etcdtest.Counted(&calls)), etcdlock.WithTTL(ttl))
	if err != nil {
		t.Fatal(err)
	}
	a, b := mustLock(t, l, "a"), mustLock(t, l, "b")
	for _, times := range []int{1, 3} {
		f := streams.Break(renewal, times, rpctypes.ErrGRPCNoLeader)
		eventually(t, "the stream was broken", func() bool { return f.Hits() == times })
	}
	kept(t, a, ttl, "after a leader was lost")
	for _, k := range []*etcdlock.Lock{a, b} {
		if err := k.Check(testContext(t)); err != nil {
			t.Errorf("Check: %v", err)
		}
	}
	mustUnlock(t, a)
	f := streams.Break(renewal, 1<<30, rpctypes.ErrGRPCNoLeader)
	eventually(t, "the stream was broken", func() bool { return f.Hits() > 1 })
	mustUnlock(t, b)
	if err := l.Close(testContext(t)); err != nil {
		t.Errorf("Close: %v", err)
	}
	if n := leaseCount(t, srv); n != 0 {
		t.Errorf("%d leases after Close", n)
	}
	before := calls.Snapshot()
	pass(ttl/3 + time.Second)
	if n := calls.Snapshot().Sub(before); len(n.Opened) != 0 || len(n.Sent) != 0 {
		t.Errorf("after Close: %v", n)
	}
}
