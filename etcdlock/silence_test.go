package etcdlock_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/etcdtest"
	"github.com/revfence/revfence/internal/faultkit"
)

// silence keeps the answers to renewals from a client, until it is disarmed.
func silence(s *faultkit.Streams) *faultkit.StreamFault {
	return s.Drop(faultkit.Method(etcdtest.KeepAlive), 1<<30)
}

// TestF04FirstDeadline: until the first renewal is answered the deadline is the TTL, counted from when the lease was
// asked for. The time a client may take to connect has nothing to do with it.
func TestF04FirstDeadline(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	srv := startClean(t, soon)
	stalls := etcdtest.Stalls(t)
	slow := func(c *clientv3.Config) { c.DialTimeout = 12 * time.Second }
	var mu sync.Mutex
	var samples []etcdtest.Sample
	var wg sync.WaitGroup
	for i := range 12 {
		var answers faultkit.Streams
		silence(&answers)
		var faults faultkit.Calls
		if i%2 == 0 { // the lease is granted, and its answer takes this long
			faults.Lost(faultkit.Method("LeaseGrant"), 1, nil, func() { pass(500 * time.Millisecond) })
		}
		c := srv.Client(t, slow, etcdtest.Stream(answers.Stream), etcdtest.Unary(faults.Unary))
		l := newLocker(t, c, etcdlock.WithTTL(ttl))
		wg.Go(func() {
			pass(time.Duration(i) * 20 * time.Millisecond)
			asked := time.Now()
			k, err := l.Lock(testContext(t), fmt.Sprint(i))
			if err != nil {
				t.Errorf("Lock: %v", err)
				return
			}
			<-k.Context().Done()
			told := time.Now()
			mu.Lock()
			samples = append(samples, etcdtest.Sample{From: asked, To: told, Value: told.Sub(asked)})
			mu.Unlock()
			wantLost(t, k, etcdlock.ReasonDeadline)
		})
	}
	wg.Wait()
	stalls.Judge(t, "told after the request for the lease", samples, 1, ttl)
}
