package etcdlock_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/etcdtest"
)

// TestF18RevokedWhileRenewing: etcd deletes the keys of a revoked lease before the lease, and answers a renewal in
// between as if nothing were wrong. With any number of renewals under way the holder is told when the key is deleted,
// and nothing says "held" after that.
func TestF18RevokedWhileRenewing(t *testing.T) {
	const locks, every = 20, 40 * time.Millisecond
	srv := startClean(t, soon)
	stalls := etcdtest.Stalls(t)
	deleted := deletions(t, srv)
	ctx := testContext(t)
	var calls etcdtest.Counter
	l := newLocker(t, srv.Client(t, etcdtest.Counted(&calls)))
	renewer := srv.Client(t)
	held := lockAll(t, l, locks)

	var renewers sync.WaitGroup
	stop := make(chan struct{})
	defer func() {
		close(stop)
		renewers.Wait()
	}()
	renewed := make([]atomic.Int32, locks)
	ids := make([]clientv3.LeaseID, locks)
	for i, k := range held {
		ids[i] = leaseOf(t, srv, k)
		renewers.Go(func() {
			tick := time.NewTicker(every)
			defer tick.Stop()
			for {
				if _, err := renewer.KeepAliveOnce(ctx, ids[i]); err == nil {
					renewed[i].Add(1)
				}
				select {
				case <-tick.C:
				case <-stop:
					return
				}
			}
		})
	}
	eventuallyWithin(t, "all keys watched", watchedFrom+soon, func() bool {
		return calls.Snapshot().Sent[etcdtest.Watch] >= locks
	})

	var samples []etcdtest.Sample
	for i, k := range held {
		live(t, k)
		if i%5 == 0 {
			calm(stalls)
		}
		if _, err := srv.Admin().Revoke(ctx, ids[i]); err != nil {
			t.Fatal(err)
		}
		seen := receive(t, "deletion of the key", deleted(k.Key()))
		told := toldSoon(t, k)
		samples = append(samples, etcdtest.Sample{From: seen, To: told, Value: told.Sub(seen)})
		wantLost(t, k, etcdlock.ReasonKeyGone, etcdlock.ReasonLeaseGone)
	}
	// The renewals go on meanwhile, and the lost locks stay lost.
	for end := time.Now().Add(10 * every); time.Now().Before(end); pass(time.Millisecond) {
		for _, k := range held {
			if err := k.Require(0); k.Remaining() != 0 || !errors.Is(err, etcdlock.ErrLost) {
				t.Fatalf("%q is held again: %v remaining, Require: %v", k.Name(), k.Remaining(), err)
			}
		}
	}
	for _, k := range held {
		wantLost(t, k, etcdlock.ReasonKeyGone, etcdlock.ReasonLeaseGone)
	}
	for i, k := range held {
		if n := renewed[i].Load(); n < int32(watchedFrom/every/2) {
			t.Errorf("%q: renewed %d times beside its Locker: too few to show anything", k.Name(), n)
		}
	}
	stalls.Judge(t, "told after the deletion", samples, 1, 50*time.Millisecond)
}
