package faultkit

import (
	"context"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/revfence/revfence/internal/etcdtest"
)

func streamClient(t *testing.T) (context.Context, *Streams, *clientv3.Client) {
	t.Helper()
	etcdtest.LeakCheck(t)
	var streams Streams
	c := etcdtest.Start(t).Client(t, etcdtest.Stream(streams.Stream))
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	t.Cleanup(cancel)
	return ctx, &streams, c
}

// events returns the next n events of a watch.
func events(t *testing.T, ctx context.Context, w clientv3.WatchChan, n int) (seen []*clientv3.Event) {
	t.Helper()
	for len(seen) < n {
		select {
		case r, ok := <-w:
			if !ok || r.Err() != nil {
				t.Fatalf("watch: %v", r.Err())
			}
			seen = append(seen, r.Events...)
		case <-ctx.Done():
			t.Fatalf("%d events of %d", len(seen), n)
		}
	}
	return seen
}

func TestStreamDrop(t *testing.T) {
	ctx, streams, c := streamClient(t)
	f := streams.Drop(func(_ string, answer any) bool {
		r, ok := answer.(*pb.WatchResponse)
		return ok && len(r.Events) > 0 && r.Events[0].Type == mvccpb.Event_DELETE
	}, 1)
	w := c.Watch(ctx, "k")
	for range 2 {
		if _, err := c.Put(ctx, "k", "v"); err != nil {
			t.Fatal(err)
		}
		events(t, ctx, w, 1) // the two deletions must not share an answer
		if _, err := c.Delete(ctx, "k"); err != nil {
			t.Fatal(err)
		}
		deadline := time.Now().Add(soon)
		for f.Hits() == 0 && time.Now().Before(deadline) {
			<-time.After(5 * time.Millisecond)
		}
	}
	if e := events(t, ctx, w, 1)[0]; e.Type != mvccpb.Event_DELETE || e.Kv.ModRevision != 5 || f.Hits() != 1 {
		t.Errorf("%v, %d hits; want the second deletion", e, f.Hits())
	}
}

func TestStreamBreak(t *testing.T) {
	ctx, streams, c := streamClient(t)
	lease, err := c.Grant(ctx, 60)
	if err != nil {
		t.Fatal(err)
	}
	f := streams.Break(Method("Lease/LeaseKeepAlive"), 2, rpctypes.ErrGRPCNoLeader)
	for range 2 {
		st, err := pb.NewLeaseClient(c.ActiveConnection()).LeaseKeepAlive(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := st.Send(&pb.LeaseKeepAliveRequest{ID: int64(lease.ID)}); err != nil {
			t.Fatal(err)
		}
		for range 2 { // it stays broken
			if _, err := st.Recv(); rpctypes.Error(err) != rpctypes.ErrNoLeader {
				t.Errorf("answer: %v", err)
			}
		}
	}
	if _, err := c.KeepAliveOnce(ctx, lease.ID); err != nil || f.Hits() != 2 {
		t.Errorf("afterwards: %v, %d hits", err, f.Hits())
	}
}

func TestStreamChange(t *testing.T) {
	ctx, streams, c := streamClient(t)
	lease, err := c.Grant(ctx, 60)
	if err != nil {
		t.Fatal(err)
	}
	f := streams.Change(Method("Lease/LeaseKeepAlive"), 1<<30, func(answer any) { answer.(*pb.LeaseKeepAliveResponse).TTL = 7 })
	for _, want := range []int64{7, 60} {
		if r, err := c.KeepAliveOnce(ctx, lease.ID); err != nil || r.TTL != want {
			t.Errorf("answer: %+v, %v; want a TTL of %d", r, err, want)
		}
		f.Disarm()
	}
}
