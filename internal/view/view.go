package view

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/revfence/revfence/internal/call"
)

// A View reads and writes the queue of locks through the user's client.
type View struct {
	// Client is the composed client for concurrency.NewSession.
	Client *clientv3.Client
	// Floor has the highest revision seen.
	Floor *Floor

	kv      clientv3.KV
	streams *streams // for watches
	static  bool     // the auth token was given, and cannot be fetched again
}

// New returns a view of base. ctx ends everything that runs on it; the user's
// client is never closed.
func New(ctx context.Context, base *clientv3.Client, lease clientv3.Lease) *View {
	v := &View{Client: clientv3.NewCtxClient(ctx), Floor: new(Floor), kv: observed(base), streams: newStreams(ctx, base), static: base.Token != ""}
	v.Client.KV = kv{v.kv, v}
	v.Client.Watcher = watcher{base.Watcher, v}
	v.Client.Lease = lease
	return v
}

// Transient is call.Transient for the user's client.
func (v *View) Transient(err error) bool {
	return call.Transient(err) && !(v.static && call.TokenRefused(err))
}

// Get is a linearizable read under call.Limit, checked against the floor.
func (v *View) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	before := v.Floor.Load()
	c, cancel := context.WithTimeout(ctx, call.Limit)
	defer cancel()
	c, tries := noting(c)
	resp, err := v.kv.Get(c, key, opts...)
	if err != nil {
		return nil, call.Explain(ctx, c, tries.Explain(err))
	}
	return resp, v.Floor.observe(before, resp.Header)
}

// Commit runs one transaction under call.Limit, checked against the floor. An
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
	c, cancel := context.WithTimeout(ctx, call.Limit)
	defer cancel()
	c, tries := noting(c)
	resp, err = v.kv.Txn(c).If(cmps...).Then(then...).Else(els...).Commit()
	repeated = tries.Unsure()
	if err != nil {
		return nil, repeated, call.Explain(ctx, c, tries.Explain(err))
	}
	return resp, repeated, v.Floor.observe(before, resp.Header)
}
