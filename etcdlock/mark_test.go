package etcdlock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/revfence/revfence/etcdlock"
)

// marking matches the transaction that writes a mark.
func marking(_ string, req any) bool {
	r, ok := req.(*pb.TxnRequest)
	if !ok || len(r.Success) == 0 || r.Success[0].GetRequestTxn() == nil {
		return false
	}
	inner := r.Success[0].GetRequestTxn()
	return len(inner.Success) == 1 && inner.Success[0].GetRequestPut() != nil
}

// TestOnceMarkReplyLost: the mark whose answer was lost is found to be one's own; one that is never answered is unknown.
func TestOnceMarkReplyLost(t *testing.T) {
	t.Parallel()
	for what, opts := range map[string][]etcdlock.OnceOption{
		"after": nil, "first": {etcdlock.WithMarkFirst()}, "expiring": {etcdlock.WithMarkTTL(time.Hour)},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			srv := startClean(t, soon)
			removeMarks(t, srv)
			l, faults := faulty(t, srv, etcdlock.WithTTL(2*time.Second))
			var r runs
			fault := faults.Lost(marking, 1, errLostReply)
			if err := l.Once(testContext(t), "job", "s", r.job("s", nil), opts...); err != nil {
				t.Error(err)
			}
			if fault.Hits() != 1 {
				t.Errorf("%d replies lost", fault.Hits())
			}
			r.want(t, "s", 1)
			never := faults.Fail(marking, 1000, errLostReply)
			ctx, cancel := context.WithTimeout(testContext(t), time.Second)
			defer cancel()
			err := l.Once(ctx, "job", "never", r.job("never", nil), opts...)
			never.Disarm()
			wantIs(t, "Once", err, etcdlock.ErrUnknown)
			if what == "first" {
				r.want(t, "never", 0)
			} else {
				r.want(t, "never", 1)
			}
		})
	}
}

// TestOnceReleaseUnconfirmed: the slot is marked or not as without it, and the error says that something was not
// confirmed.
func TestOnceReleaseUnconfirmed(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	for what, c := range map[string]struct {
		outcome error
		opts    []etcdlock.OnceOption
		again   int // runs in all, when asked once more
	}{
		"done":          {nil, nil, 1},
		"failed":        {boom, nil, 2},
		"marked first":  {nil, []etcdlock.OnceOption{etcdlock.WithMarkFirst()}, 1},
		"marked, fails": {boom, []etcdlock.OnceOption{etcdlock.WithMarkFirst()}, 1},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			srv := startClean(t, soon)
			removeMarks(t, srv)
			l, faults := faulty(t, srv, etcdlock.WithTTL(2*time.Second))
			var r runs
			ctx, cancel := context.WithCancel(testContext(t))
			fault := faults.Fail(deletes, 1<<30, errLostReply)
			err := l.Once(ctx, "job", "s", func(ctx context.Context, k *etcdlock.Lock) error {
				cancel() // so that the release is soon given up
				return r.job("s", c.outcome)(ctx, k)
			}, c.opts...)
			fault.Disarm()
			wantIs(t, "Once", err, etcdlock.ErrUnknown)
			if c.outcome != nil {
				wantIs(t, "Once", err, boom)
			}
			r.want(t, "s", 1)
			if err := l.Once(testContext(t), "job", "s", r.job("s", nil), c.opts...); err != nil {
				t.Error(err)
			}
			r.want(t, "s", c.again)
		})
	}
}

// TestOnceLostBeforeTheLook: an fn that has not run leaves nothing unknown.
func TestOnceLostBeforeTheLook(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	removeMarks(t, srv)
	l, faults := faulty(t, srv, etcdlock.WithTTL(2*time.Second))
	var r runs
	looks := func(_ string, req any) bool {
		x, ok := req.(*pb.TxnRequest)
		return ok && len(x.Success) == 1 && x.Success[0].GetRequestTxn() != nil && len(x.Success[0].GetRequestTxn().Success) == 2
	}
	// Committed, and answered with a context's error, after which the client sends it again; by then the lock is gone.
	fault := faults.Lost(looks, 1, status.Error(codes.DeadlineExceeded, "too slow"), func() {
		for _, kv := range keys(t, srv, "/revfence/job/").Kvs {
			remove(t, srv, string(kv.Key))
		}
	})
	err := l.Once(testContext(t), "job", "s", r.job("s", nil))
	if fault.Hits() != 1 {
		t.Errorf("%d looks failed", fault.Hits())
	}
	wantIs(t, "Once", err, etcdlock.ErrLost)
	if errors.Is(err, etcdlock.ErrUnknown) {
		t.Errorf("unknown: %v", err)
	}
	r.want(t, "s", 0)
}
