package view

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// CallLimit bounds every call. It is below the 7 s that an etcd server gives a
// request by default, so that the caller's context always ends first: clientv3
// silently repeats a write whose *server* ran out of time.
const CallLimit = 5 * time.Second

// A View reads and writes the queue of locks through the user's client.
type View struct {
	// Client is the composed client for concurrency.NewSession.
	Client *clientv3.Client
	// Floor has the highest revision seen.
	Floor *Floor

	kv      clientv3.KV
	watcher clientv3.Watcher
	streams atomic.Int64 // of watches, so far given up
}

// New returns a view of base. ctx ends everything that runs on it; the user's
// client is never closed.
func New(ctx context.Context, base *clientv3.Client, lease clientv3.Lease, log *zap.Logger) *View {
	v := &View{Client: clientv3.NewCtxClient(ctx, clientv3.WithZapLogger(log)), Floor: new(Floor), kv: counted(base), watcher: base.Watcher}
	v.Client.KV = kv{v.kv, v}
	v.Client.Watcher = watcher{base.Watcher, v}
	v.Client.Lease = lease
	return v
}

// Get is a linearizable read under CallLimit, checked against the floor.
func (v *View) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	before := v.Floor.Load()
	c, cancel := context.WithTimeout(ctx, CallLimit)
	defer cancel()
	resp, err := v.kv.Get(c, key, opts...)
	if err != nil {
		return nil, err
	}
	return resp, v.Floor.observe(before, resp.Header)
}

// Commit runs one transaction under CallLimit, checked against the floor. An
// answer below the floor is returned beside its error.
func (v *View) Commit(ctx context.Context, cmps []clientv3.Cmp, then, els []clientv3.Op) (*clientv3.TxnResponse, error) {
	resp, _, err := v.Write(ctx, cmps, then, els)
	return resp, err
}

// Write is Commit for those who must know whether clientv3 has sent the
// transaction before, with an outcome that is not known: then the answer may be
// to a copy of one that was applied, and the other may still be under way.
func (v *View) Write(ctx context.Context, cmps []clientv3.Cmp, then, els []clientv3.Op) (resp *clientv3.TxnResponse, repeated bool, err error) {
	before := v.Floor.Load()
	c, cancel := context.WithTimeout(ctx, CallLimit)
	defer cancel()
	c, unsure := countUnsure(c)
	resp, err = v.kv.Txn(c).If(cmps...).Then(then...).Else(els...).Commit()
	repeated = unsure.Load() > 0
	if err != nil {
		return nil, repeated, err
	}
	return resp, repeated, v.Floor.observe(before, resp.Header)
}

// Transient reports whether a failed call of etcd is worth repeating: nothing
// but time stands between it and success. Errors that are not etcd's, such as
// ErrForeignKey, are not.
func Transient(err error) bool {
	switch rpctypes.Error(err) {
	case rpctypes.ErrTooManyRequests:
		return true
	case rpctypes.ErrInvalidAuthToken, rpctypes.ErrAuthOldRevision:
		return true // clientv3 fetches a new token; with a static one the lease says so
	}
	switch code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Unknown, codes.Aborted, codes.Internal:
		return true
	}
	return false
}

// Definite reports whether err is etcd's own refusal, so that the write was
// not and will not be applied.
func Definite(err error) bool {
	switch code(err) {
	case codes.InvalidArgument, codes.NotFound, codes.FailedPrecondition, codes.PermissionDenied,
		codes.Unauthenticated, codes.ResourceExhausted, codes.OutOfRange, codes.AlreadyExists:
		return true
	}
	return false
}

func code(err error) codes.Code {
	if e, ok := rpctypes.Error(err).(rpctypes.EtcdError); ok {
		return e.Code()
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return codes.DeadlineExceeded
	}
	if s, ok := status.FromError(err); ok {
		return s.Code()
	}
	return codes.OK // not an answer of etcd: neither worth repeating nor a refusal
}

// A Backoff spaces repeated calls: jittered, since a lost leader hits all
// waiters at the same moment.
type Backoff struct{ last time.Duration }

// Wait pauses before the next try; false if ctx ended first.
func (b *Backoff) Wait(ctx context.Context) bool {
	b.last = min(max(2*b.last, 50*time.Millisecond), time.Second)
	t := time.NewTimer(Jitter(b.last))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Jitter returns between half of d and one and a half.
func Jitter(d time.Duration) time.Duration { return d/2 + rand.N(d) }
