package faultkit

import (
	"context"
	"errors"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/revfence/revfence/internal/etcdtest"
)

// errUnavailable is one that etcd's client does not retry for a write.
var errUnavailable = status.Error(codes.Unavailable, "answer lost")

func client(t *testing.T) (context.Context, *Calls, *clientv3.Client) {
	t.Helper()
	etcdtest.LeakCheck(t)
	var calls Calls
	c := etcdtest.Start(t).Client(t, etcdtest.Unary(calls.Unary))
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	t.Cleanup(cancel)
	return ctx, &calls, c
}

func count(t *testing.T, ctx context.Context, c *clientv3.Client, key string) int64 {
	t.Helper()
	r, err := c.Get(ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	return r.Count
}

func TestFail(t *testing.T) {
	ctx, calls, c := client(t)
	f := calls.Fail(Method("KV/Put"), 1, errUnavailable)
	if _, err := c.Put(ctx, "k", "v"); status.Code(err) != codes.Unavailable {
		t.Errorf("Put: %v", err)
	}
	if n := count(t, ctx, c, "k"); n != 0 {
		t.Error("the failed write reached etcd")
	}
	<-f.Spent()
	if _, err := c.Put(ctx, "k", "v"); err != nil || f.Hits() != 1 {
		t.Errorf("second Put: %v, %d hits", err, f.Hits())
	}
}

func TestLost(t *testing.T) {
	ctx, calls, c := client(t)
	only := func(method string, req any) bool {
		r, ok := req.(*pb.PutRequest)
		return ok && string(r.Key) == "k"
	}
	put, cancel := context.WithCancel(ctx)
	calls.Lost(only, 1, errUnavailable, cancel)
	if _, err := c.Put(ctx, "other", "v"); err != nil {
		t.Errorf("a call that does not match: %v", err)
	}
	if _, err := c.Put(put, "k", "v"); status.Code(err) != codes.Unavailable {
		t.Errorf("Put: %v", err)
	}
	if put.Err() == nil {
		t.Error("the function to run in between was not called")
	}
	if n := count(t, ctx, c, "k"); n != 1 {
		t.Error("the write did not reach etcd")
	}
}

func TestLostKeepsARealFailure(t *testing.T) {
	ctx, calls, c := client(t)
	calls.Lost(Method("LeaseRevoke"), 1, errUnavailable)
	if _, err := c.Revoke(ctx, 1); err == nil || errors.Is(err, errUnavailable) {
		t.Errorf("revoking no lease: %v, want etcd's own error", err)
	}
}

func TestLate(t *testing.T) {
	ctx, calls, c := client(t)
	const delay = 300 * time.Millisecond
	caller, cancel := context.WithCancel(ctx)
	from := time.Now()
	calls.Late(Method("KV/Put"), 1, delay, errUnavailable)
	if _, err := c.Put(caller, "k", "v"); status.Code(err) != codes.Unavailable {
		t.Errorf("Put: %v", err)
	}
	cancel() // does not stop what is on its way
	n := count(t, ctx, c, "k")
	if took := time.Since(from); n != 0 && took < delay {
		t.Errorf("committed within %v", took)
	}
	calls.Wait()
	if took := time.Since(from); took < delay {
		t.Errorf("sent after %v, want %v at least", took, delay)
	}
	if n := count(t, ctx, c, "k"); n != 1 {
		t.Error("the late write did not reach etcd")
	}
}

func TestHang(t *testing.T) {
	ctx, calls, c := client(t)
	for key, sent := range map[string]bool{"sent": true, "kept": false} {
		caller, cancel := context.WithTimeout(ctx, quiet)
		calls.Hang(Method("KV/Put"), 1, sent)
		_, err := c.Put(caller, key, "v")
		if !errors.Is(err, context.DeadlineExceeded) || caller.Err() == nil {
			t.Errorf("Put: %v, and its context: %v", err, caller.Err())
		}
		cancel()
		if n := count(t, ctx, c, key); (n == 1) != sent {
			t.Errorf("%s: %d keys written", key, n)
		}
	}
}

func TestDisarm(t *testing.T) {
	ctx, calls, c := client(t)
	f := calls.Fail(Method("KV/Put"), 1<<30, errUnavailable)
	if _, err := c.Put(ctx, "k", "v"); err == nil {
		t.Error("the armed fault was not applied")
	}
	f.Disarm()
	if _, err := c.Put(ctx, "k", "v"); err != nil {
		t.Errorf("after Disarm: %v", err)
	}
}

// TestBehindProxy shows both halves of the package at once on a real client: a held answer, delivered after the wait.
func TestBehindProxy(t *testing.T) {
	etcdtest.LeakCheck(t)
	s := etcdtest.Start(t)
	p := NewProxy(t, s.Endpoint())
	c := s.Client(t, etcdtest.Via(p.Addr()))
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	if _, err := c.Put(ctx, "k", "1"); err != nil {
		t.Fatal(err)
	}
	p.Hold(Down)
	done := make(chan error, 1)
	go func() {
		_, err := c.Put(ctx, "k", "2")
		done <- err
	}()
	for s.Revision(t) != 3 { // committed
		if ctx.Err() != nil {
			t.Fatal("the write did not get through")
		}
	}
	select {
	case err := <-done:
		t.Fatalf("answered (%v) while the answer was held", err)
	case <-time.After(quiet):
	}
	p.Heal()
	if err := <-done; err != nil {
		t.Errorf("after the answer was released: %v", err)
	}
}
