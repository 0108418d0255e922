package etcdlock_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/etcdtest"
	"github.com/revfence/revfence/internal/faultkit"
)

// A silence keeps the answers to renewals from a client while it lasts: they are read and thrown away.
type silence struct{ lasts atomic.Bool }

func (q *silence) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := open(ctx, desc, cc, method, opts...)
	if err != nil || method != "/etcdserverpb."+etcdtest.KeepAlive {
		return s, err
	}
	return silentStream{s, q}, nil
}

type silentStream struct {
	grpc.ClientStream
	silence *silence
}

func (s silentStream) RecvMsg(m any) error {
	for {
		if err := s.ClientStream.RecvMsg(m); err != nil || !s.silence.lasts.Load() {
			return err
		}
	}
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
		var mute silence
		mute.lasts.Store(true)
		var faults faultkit.Calls
		if i%2 == 0 { // the lease is granted, and its answer takes this long
			faults.Lost(faultkit.Method("LeaseGrant"), 1, nil, func() { pass(500 * time.Millisecond) })
		}
		c := srv.Client(t, slow, etcdtest.Stream(mute.stream), etcdtest.Unary(faults.Unary))
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
