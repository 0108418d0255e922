package view

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/revfence/revfence/internal/call"
)

// watcher is what concurrency.Mutex waits through.
type watcher struct {
	clientv3.Watcher
	v *View
}

// reread is how often a waiter looks again, in case no event comes.
const reread = 5 * time.Second

// Watch answers the wait for the predecessor's deletion with one deletion
// event. op's revision is that of the read that saw the predecessor.
func (w watcher) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	a := fromContext(ctx)
	if a == nil {
		return w.Watcher.Watch(ctx, key, opts...)
	}
	if !a.waits {
		a.waits = true
		if a.Waiting != nil {
			a.Waiting()
		}
	}
	op := clientv3.OpGet(key, opts...)
	out := make(chan clientv3.WatchResponse, 1)
	go func() {
		defer close(out)
		// On an error the closed channel ends the stock code's wait: with
		// ctx's error, or else with one that does not say why, so Err does.
		pred := Target{Key: key, Rev: op.Rev(), Queue: a.Queue, Every: reread, First: w.first(a, key), Trouble: a.Trouble}
		if a.Err = w.v.Gone(ctx, pred); a.Err == nil {
			out <- clientv3.WatchResponse{Events: []*clientv3.Event{{Type: mvccpb.Event_DELETE}}}
		}
	}()
	return out
}

// first looks at the whole place, not just the predecessor: if that has gone
// before the watch stood, as it often has when holds are short, the stock
// code's next read is answered already.
func (w watcher) first(a *Attempt, pred string) func(context.Context) (bool, error) {
	return func(ctx context.Context) (bool, error) {
		older, err := w.v.place(ctx, a, a.opts)
		if errors.Is(err, ErrPlaceLost) {
			return false, err
		}
		if err != nil {
			return false, w.v.lasting(ctx, err)
		}
		if len(older.Kvs) > 0 && string(older.Kvs[0].Key) == pred {
			return false, nil // keys younger than ours are not older
		}
		a.pred = older
		return true, nil
	}
}

// A Target is a key as it was seen.
type Target struct {
	Key string
	Rev int64 // a revision at which it existed
	// Lease, unless 0, is what the key must stay attached to: a put that
	// changes it counts as a deletion.
	Lease clientv3.LeaseID
	// Queue, unless "", is the lock's queue that the key is in: that it has
	// become a foreign one there is an error, found by a read.
	Queue string
	// Every is how often to read the key in case an event is lost.
	Every time.Duration
	// First, unless nil, is the first read, once the watch stands.
	First func(ctx context.Context) (gone bool, err error)
	// Trouble, unless nil, is told of failed reads that are going to be repeated.
	Trouble func(error)
}

// Gone waits until the key that was there at t.Rev is there no longer: deleted,
// replaced by a younger one, or put on another lease. It returns nil then, and
// else ctx's error or one that only an operator can mend, such as a missing
// permission.
//
// It does not rest on one event: it reads the key once the watch stands, then
// every t.Every, and again whenever the watch ends for whatever reason
// (compaction, no leader, a closed stream).
func (v *View) Gone(ctx context.Context, t Target) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	tick := time.NewTimer(call.Jitter(t.Every))
	defer tick.Stop()
	var pause call.Backoff
	for {
		gone, err := v.watchOnce(ctx, t, tick, pause.Reset)
		if !gone && err == nil && ctx.Err() == nil {
			gone, err = v.gone(ctx, t)
		}
		var unsure *unsureError
		if gone || err != nil && !errors.As(err, &unsure) {
			return err
		}
		if unsure != nil && t.Trouble != nil && ctx.Err() == nil {
			t.Trouble(unsure.err)
		}
		if !pause.Wait(ctx) {
			return ctx.Err()
		}
	}
}

// watchOnce watches until the key is gone or the watch ends. It calls stands once
// the server has the watch.
func (v *View) watchOnce(ctx context.Context, t Target, tick *time.Timer, stands func()) (bool, error) {
	stream, ctx := v.streams.join(ctx)
	defer v.streams.part(stream)
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	key := func(ctx context.Context) (bool, error) { return v.gone(ctx, t) }
	first := t.First
	if first == nil {
		first = key
	}
	opts := []clientv3.OpOption{clientv3.WithCreatedNotify()}
	if t.Lease == 0 {
		opts = append(opts, clientv3.WithFilterPut())
	}
	// Watch returns when the server has the watch, which may be never.
	slow := time.AfterFunc(t.Every, cancel)
	events := stream.Watch(ctx, t.Key, opts...)
	if !slow.Stop() {
		v.streams.leave(stream) // clientv3 begins no other watch on a stream before this one stands
		return false, nil       // the caller reads the key
	}
	for {
		var look func(context.Context) (bool, error)
		select {
		case resp, ok := <-events:
			if !ok {
				return false, nil
			}
			if resp.Err() != nil {
				if resp.CompactRevision == 0 { // refused, and so would be the next on the same stream
					v.streams.leave(stream)
				}
				return false, nil
			}
			for _, e := range resp.Events {
				// A lagging member may still deliver what happened before Rev.
				if e.Kv.ModRevision > t.Rev && t.ends(e) {
					return true, nil
				}
			}
			if resp.Created {
				stands()
			}
			// A member at or below Rev delivers all that comes after.
			if resp.Created && resp.Header.Revision > t.Rev {
				look = first
			}
		case <-tick.C:
			tick.Reset(call.Jitter(t.Every))
			look = key
		}
		if look == nil {
			continue
		}
		if gone, err := look(ctx); gone || err != nil {
			return gone, err // if unsure, to watch and look again
		}
	}
}

func (t Target) ends(e *clientv3.Event) bool {
	if e.Type == mvccpb.Event_DELETE {
		return true
	}
	return t.Lease != 0 && clientv3.LeaseID(e.Kv.Lease) != t.Lease
}

// gone reads the key.
func (v *View) gone(ctx context.Context, t Target) (bool, error) {
	resp, err := v.Get(ctx, t.Key)
	if resp == nil {
		return false, v.lasting(ctx, err)
	}
	// Also an answer below the floor counts: a restored etcd may lack the key.
	if len(resp.Kvs) == 0 || resp.Kvs[0].CreateRevision > t.Rev ||
		t.Lease != 0 && clientv3.LeaseID(resp.Kvs[0].Lease) != t.Lease {
		return true, nil
	}
	if t.Queue != "" {
		return false, Foreign(t.Queue, resp.Kvs[0])
	}
	return false, nil
}

// An unsureError is that of a failed read that is worth repeating.
type unsureError struct{ err error }

func (e *unsureError) Error() string { return e.err.Error() }

// lasting returns err if it will not pass, and else an unsureError; what the end
// of ctx means, its owner knows.
func (v *View) lasting(ctx context.Context, err error) error {
	if ctx.Err() == nil && !v.Transient(err) {
		return err
	}
	return &unsureError{err}
}
