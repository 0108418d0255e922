package view

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	"github.com/revfence/revfence/internal/etcdtest"
	"github.com/revfence/revfence/internal/faultkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// soon bounds what should take milliseconds.
const soon = 3 * time.Second

func start(t *testing.T) (*etcdtest.Server, *clientv3.Client, *View) {
	srv := etcdtest.Start(t)
	srv.CheckClean(t, 5*time.Second)
	c := srv.Client(t)
	return srv, c, New(t.Context(), c, c.Lease)
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// waiting runs Gone and returns its result's channel once its watch stands.
func waiting(t *testing.T, srv *etcdtest.Server, v *View, target Target) chan error {
	t.Helper()
	before := srv.WatcherCount(t)
	done := make(chan error, 1)
	go func() { done <- v.Gone(t.Context(), target) }()
	for end := time.Now().Add(soon); srv.WatcherCount(t) == before; {
		if time.Now().After(end) {
			t.Fatal("no watch")
		}
	}
	return done
}

func TestGone(t *testing.T) {
	srv, _, v := start(t)
	admin := srv.Admin()
	ctx := t.Context()
	for _, c := range []struct {
		name  string
		lease bool // watch the lease as well
		f     func(lease, other clientv3.LeaseID) error
		gone  bool
	}{
		{"deleted", false, func(clientv3.LeaseID, clientv3.LeaseID) error {
			_, err := admin.Delete(ctx, "k")
			return err
		}, true},
		{"lease revoked", false, func(lease, _ clientv3.LeaseID) error {
			_, err := admin.Revoke(ctx, lease)
			return err
		}, true},
		{"deleted and made again", false, func(lease, _ clientv3.LeaseID) error {
			if _, err := admin.Delete(ctx, "k"); err != nil {
				return err
			}
			_, err := admin.Put(ctx, "k", "", clientv3.WithLease(lease))
			return err
		}, true},
		{"put on the same lease", true, func(lease, _ clientv3.LeaseID) error {
			_, err := admin.Put(ctx, "k", "x", clientv3.WithLease(lease))
			return err
		}, false},
		{"touched as Check does", true, func(clientv3.LeaseID, clientv3.LeaseID) error {
			_, err := admin.Put(ctx, "k", "", clientv3.WithIgnoreLease(), clientv3.WithIgnoreValue())
			return err
		}, false},
		{"put without a lease", true, func(clientv3.LeaseID, clientv3.LeaseID) error {
			_, err := admin.Put(ctx, "k", "x")
			return err
		}, true},
		{"put on another lease", true, func(_, other clientv3.LeaseID) error {
			_, err := admin.Put(ctx, "k", "x", clientv3.WithLease(other))
			return err
		}, true},
		{"a neighbour deleted", true, func(clientv3.LeaseID, clientv3.LeaseID) error {
			if _, err := admin.Put(ctx, "kk", "x"); err != nil {
				return err
			}
			_, err := admin.Delete(ctx, "kk")
			return err
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			lease, other := must[*clientv3.LeaseGrantResponse](t)(admin.Grant(ctx, 60)), must[*clientv3.LeaseGrantResponse](t)(admin.Grant(ctx, 60))
			put := must[*clientv3.PutResponse](t)(admin.Put(ctx, "k", "", clientv3.WithLease(lease.ID)))
			target := Target{Key: "k", Rev: put.Header.Revision, Every: time.Hour}
			if c.lease {
				target.Lease = lease.ID
			}
			done := waiting(t, srv, v, target)
			if err := c.f(lease.ID, other.ID); err != nil {
				t.Fatal(err)
			}
			if !c.gone {
				select {
				case err := <-done:
					t.Errorf("counts as gone (%v)", err)
				case <-time.After(200 * time.Millisecond):
				}
				must[*clientv3.DeleteResponse](t)(admin.Delete(ctx, "k"))
			}
			select {
			case err := <-done:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(soon):
				t.Error("not noticed")
			}
			must[*clientv3.DeleteResponse](t)(admin.Delete(ctx, "k"))
			for _, id := range []clientv3.LeaseID{lease.ID, other.ID} {
				if _, err := admin.Revoke(ctx, id); err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
					t.Error(err)
				}
			}
		})
	}
}

// TestGoneBeforeTheWatch: what happened between the read that saw the key and
// the watch is not missed.
func TestGoneBeforeTheWatch(t *testing.T) {
	srv, _, v := start(t)
	put := must[*clientv3.PutResponse](t)(srv.Admin().Put(t.Context(), "k", ""))
	must[*clientv3.DeleteResponse](t)(srv.Admin().Delete(t.Context(), "k"))
	must[*clientv3.PutResponse](t)(srv.Admin().Put(t.Context(), "k", ""))
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	if err := v.Gone(ctx, Target{Key: "k", Rev: put.Header.Revision, Every: time.Hour}); err != nil {
		t.Errorf("a key that was made again since: %v", err)
	}
	must[*clientv3.DeleteResponse](t)(srv.Admin().Delete(t.Context(), "k"))
}

// TestGoneIgnoresThePast: a lagging member may deliver a deletion from before
// the key was seen, that of an earlier key of the same name.
func TestGoneIgnoresThePast(t *testing.T) {
	for _, c := range []struct {
		mod  int64
		gone bool
	}{{9, false}, {10, false}, {11, true}} {
		e := &clientv3.Event{Type: mvccpb.Event_DELETE, Kv: &mvccpb.KeyValue{Key: []byte("k"), ModRevision: c.mod}}
		ctx, cancel := context.WithCancel(t.Context())
		events := make(chan clientv3.WatchResponse, 1)
		events <- clientv3.WatchResponse{Events: []*clientv3.Event{e}}
		v := &View{Floor: new(Floor), streams: &streams{now: &stream{Watcher: fixedWatcher{events: events}}}}
		done := make(chan bool, 1)
		go func() {
			gone, _ := v.watchOnce(ctx, Target{Key: "k", Rev: 10, Every: time.Hour}, time.NewTimer(time.Hour), func() {})
			done <- gone
		}()
		select {
		case gone := <-done:
			if !c.gone || !gone {
				t.Errorf("event at %d: returned %v", c.mod, gone)
			}
		case <-time.After(100 * time.Millisecond):
			if c.gone {
				t.Errorf("event at %d not taken", c.mod)
			}
			close(events)
			<-done
		}
		cancel()
	}
}

// fixedWatcher delivers what it was given.
type fixedWatcher struct {
	clientv3.Watcher
	events chan clientv3.WatchResponse
}

func (f fixedWatcher) Watch(context.Context, string, ...clientv3.OpOption) clientv3.WatchChan {
	return f.events
}

// deafWatcher watches but delivers no event, and in the second mode is never
// even created.
type deafWatcher struct {
	clientv3.Watcher
	never bool
}

func (d deafWatcher) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	if d.never {
		<-ctx.Done()
		ch := make(chan clientv3.WatchResponse)
		close(ch)
		return ch
	}
	out := make(chan clientv3.WatchResponse)
	in := d.Watcher.Watch(ctx, key, opts...)
	go func() {
		defer close(out)
		for r := range in {
			r.Events = nil
			select {
			case out <- r:
			case <-ctx.Done():
			}
		}
	}()
	return out
}

func TestGoneWithoutEvents(t *testing.T) {
	for _, never := range []bool{false, true} {
		srv, c, _ := start(t)
		c.Watcher = deafWatcher{c.Watcher, never}
		v := New(t.Context(), c, c.Lease)
		put := must[*clientv3.PutResponse](t)(srv.Admin().Put(t.Context(), "k", ""))
		done := make(chan error, 1)
		go func() {
			done <- v.Gone(t.Context(), Target{Key: "k", Rev: put.Header.Revision, Every: 300 * time.Millisecond})
		}()
		select {
		case <-done:
			t.Error("gone while it is there")
		case <-time.After(time.Second):
		}
		must[*clientv3.DeleteResponse](t)(srv.Admin().Delete(t.Context(), "k"))
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(soon):
			t.Errorf("not found by reading (never created: %v)", never)
		}
	}
}

// TestGoneAcrossCompaction: the watch's stream is cut, revisions go on and are
// compacted, and the key is deleted before the watch can resume.
func TestGoneAcrossCompaction(t *testing.T) {
	srv := etcdtest.Start(t)
	srv.CheckClean(t, 5*time.Second)
	p := faultkit.NewProxy(t, strings.TrimPrefix(srv.Endpoint(), "http://"))
	c := srv.Client(t, etcdtest.Via(p.Addr()))
	v := New(t.Context(), c, c.Lease)
	admin := srv.Admin()
	put := must[*clientv3.PutResponse](t)(admin.Put(t.Context(), "k", ""))
	done := waiting(t, srv, v, Target{Key: "k", Rev: put.Header.Revision, Every: time.Hour})
	p.Cut()
	for i := range 20 {
		must[*clientv3.PutResponse](t)(admin.Put(t.Context(), "other", fmt.Sprint(i)))
	}
	last := must[*clientv3.DeleteResponse](t)(admin.Delete(t.Context(), "k"))
	must[*clientv3.DeleteResponse](t)(admin.Delete(t.Context(), "other"))
	must[*clientv3.CompactResponse](t)(admin.Compact(t.Context(), last.Header.Revision+1))
	p.Heal()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("deletion swallowed by the compaction")
	}
}

func TestGoneEndsWithItsContext(t *testing.T) {
	srv, _, _ := start(t)
	var calls etcdtest.Counter
	c := srv.Client(t, etcdtest.Counted(&calls))
	v := New(t.Context(), c, c.Lease)
	put := must[*clientv3.PutResponse](t)(srv.Admin().Put(t.Context(), "k", ""))
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	before := calls.Snapshot()
	if err := v.Gone(ctx, Target{Key: "k", Rev: put.Header.Revision, Every: time.Hour}); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	// The watch told that nothing had changed, and etcd's client warns its log of a read that is cut off.
	if n := calls.Snapshot().Sub(before).Unary[etcdtest.Range]; n != 0 {
		t.Errorf("%d reads", n)
	}
	must[*clientv3.DeleteResponse](t)(srv.Admin().Delete(t.Context(), "k"))
}

func TestFloor(t *testing.T) {
	f := new(Floor)
	for _, c := range []struct {
		before, got, want int64
		regressed         bool
	}{
		{0, 10, 10, false},
		{10, 10, 10, false},
		{10, 30, 30, false},
		{10, 20, 30, false}, // asked before 30 was known
		{30, 29, 30, true},
		{30, 31, 31, false},
	} {
		err := f.observe(c.before, &pb.ResponseHeader{Revision: c.got, ClusterId: 7})
		if (err != nil) != c.regressed || err != nil && !errors.Is(err, ErrRegressed) {
			t.Errorf("observe(%d, %d): %v", c.before, c.got, err)
		}
		if f.Load() != c.want {
			t.Errorf("floor %d, want %d", f.Load(), c.want)
		}
	}
	if f.Cluster() != 7 {
		t.Errorf("cluster %d", f.Cluster())
	}
	err := &RegressedError{Seen: 5_000_000_000, Got: 10}
	if !strings.Contains(err.Error(), "--bump-revision 4999999990 ") {
		t.Errorf("the message does not name a bump that is enough: %v", err)
	}
}
