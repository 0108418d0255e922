package view

import (
	"context"
	"errors"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/revfence/revfence/internal/call"
)

// kv is what concurrency.Mutex reads and writes through.
type kv struct {
	clientv3.KV
	v *View
}

// Delete does nothing: only the stock clean-up calls it, which would delete by
// name whatever stands under the key by then.
func (kv) Delete(context.Context, string, ...clientv3.OpOption) (*clientv3.DeleteResponse, error) {
	return &clientv3.DeleteResponse{Header: &pb.ResponseHeader{}}, nil
}

// Get answers the reads of Mutex.Lock: the youngest older key, again and again
// until there is none, then the own key.
func (k kv) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	a := fromContext(ctx)
	if a == nil {
		return k.KV.Get(ctx, key, opts...)
	}
	if key == a.Key && a.own != nil {
		return a.own, nil // read together with the absence of older keys
	}
	older := a.pred
	a.pred, a.opts = nil, opts
	if older == nil {
		var err error
		if older, err = k.older(ctx, a, opts); err != nil {
			return nil, err
		}
	}
	if len(older.Kvs) > 0 {
		if err := Foreign(a.Queue, older.Kvs[0]); err != nil {
			return nil, err
		}
		if a.Behind != nil {
			a.Behind(older.Kvs[0])
		}
	}
	return older, nil
}

// older reads the predecessor and the own key in one linearizable transaction.
func (k kv) older(ctx context.Context, a *Attempt, opts []clientv3.OpOption) (*clientv3.GetResponse, error) {
	var pause call.Backoff
	for {
		older, err := k.v.place(ctx, a, opts)
		if err == nil || errors.Is(err, ErrPlaceLost) {
			return older, err
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if !k.v.Transient(err) {
			return nil, err
		}
		if a.Trouble != nil {
			a.Trouble(err)
		}
		if !pause.Wait(ctx) {
			return nil, err
		}
	}
}

// place reads once what stands before the own key, and that key itself.
func (v *View) place(ctx context.Context, a *Attempt, opts []clientv3.OpOption) (*clientv3.GetResponse, error) {
	resp, err := v.Commit(ctx, nil, []clientv3.Op{clientv3.OpGet(a.Queue, opts...), clientv3.OpGet(a.Key)}, nil)
	if err != nil {
		return nil, err
	}
	older, own := reads(resp, 0), reads(resp, 1)
	if len(own.Kvs) == 0 || own.Kvs[0].CreateRevision != a.Rev {
		return nil, ErrPlaceLost
	}
	a.own = own
	return older, nil
}

// reads returns the i-th response of a transaction as a Get would have.
func reads(resp *clientv3.TxnResponse, i int) *clientv3.GetResponse {
	g := (*clientv3.GetResponse)(resp.Responses[i].GetResponseRange())
	g.Header = resp.Header
	return g
}

// Txn is the create transaction of Mutex.
func (k kv) Txn(ctx context.Context) clientv3.Txn {
	if a := fromContext(ctx); a != nil {
		return &create{ctx: ctx, v: k.v, a: a}
	}
	return k.KV.Txn(ctx)
}

type create struct {
	ctx       context.Context
	v         *View
	a         *Attempt
	cmps      []clientv3.Cmp
	then, els []clientv3.Op
}

func (t *create) If(c ...clientv3.Cmp) clientv3.Txn  { t.cmps = append(t.cmps, c...); return t }
func (t *create) Else(o ...clientv3.Op) clientv3.Txn { t.els = append(t.els, o...); return t }

// Then puts who is asking into the value of the own key, and reads the
// predecessor in place of the holder: whether there is one is all that the
// stock code wants to know.
func (t *create) Then(ops ...clientv3.Op) clientv3.Txn {
	for _, op := range ops {
		switch {
		case op.IsPut() && string(op.KeyBytes()) == t.a.Key:
			op = clientv3.OpPut(t.a.Key, t.a.Holder, clientv3.WithLease(t.a.Lease))
		case op.IsGet() && string(op.KeyBytes()) == t.a.Queue:
			// The two youngest keys right after the put: our own and the one before.
			op = clientv3.OpGet(t.a.Queue, append(clientv3.WithLastCreate(), clientv3.WithLimit(2))...)
		}
		t.then = append(t.then, op)
	}
	return t
}

func (t *create) Commit() (*clientv3.TxnResponse, error) {
	resp, err := t.v.create(t.ctx, t.a, t.cmps, t.then, t.els)
	if resp != nil && resp.Succeeded {
		got := reads(resp, 1)
		t.a.pred = &clientv3.GetResponse{Header: resp.Header, Kvs: got.Kvs[1:]}
		got.Kvs = got.Kvs[len(got.Kvs)-1:]
	}
	return resp, err
}

// CreateIfFree takes the name for a in one transaction if nobody has a key in
// its queue. It returns the key of whoever has it, nil if that is now a.
func (v *View) CreateIfFree(ctx context.Context, a *Attempt) (*mvccpb.KeyValue, error) {
	free := clientv3.Compare(clientv3.CreateRevision(a.Queue), "=", 0).WithPrefix()
	resp, err := v.create(ctx, a, []clientv3.Cmp{free},
		[]clientv3.Op{clientv3.OpPut(a.Key, a.Holder, clientv3.WithLease(a.Lease))},
		[]clientv3.Op{clientv3.OpGet(a.Key), clientv3.OpGet(a.Queue, clientv3.WithFirstCreate()...)})
	if err != nil || resp.Succeeded {
		return nil, err
	}
	first := reads(resp, 1).Kvs[0]
	if string(first.Key) == a.Key {
		return nil, nil
	}
	return first, nil
}

// create runs a transaction that puts a's key in its Then part and reads it as
// the first of its Else part, and notes in a what came of it.
func (v *View) create(ctx context.Context, a *Attempt, cmps []clientv3.Cmp, then, els []clientv3.Op) (*clientv3.TxnResponse, error) {
	before := v.Floor.Load()
	resp, repeated, err := v.Write(ctx, cmps, then, els)
	a.Dirty = a.Dirty || repeated
	if resp == nil {
		a.Dirty = a.Dirty || !call.Definite(err)
		return nil, err
	}
	if resp.Succeeded {
		a.Rev = resp.Header.Revision
		if err == nil && a.Rev <= before { // a write has a revision of its own
			err = &RegressedError{Seen: before, Got: a.Rev}
		}
	} else if own := reads(resp, 0).Kvs; len(own) > 0 {
		// The key was there: clientv3 has sent the transaction more than once.
		a.Dirty, a.Rev = true, own[0].CreateRevision
		if !repeated && err == nil { // or somebody else is on the lease, and believes the key to be theirs
			err = ErrPlaceLost
		}
	}
	return resp, err
}
