package etcdlock

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// IsOwner returns the comparison that is true while the lock is held, for a
// transaction of your own:
//
//	client.Txn(ctx).If(lock.IsOwner()).Then(write).Commit()
//
// Do not combine it with conditions of your own and an Else: a comparison that
// fails because the lock is lost runs the Else as well, so a former holder
// would write. Lock.Txn keeps the two apart.
func (k *Lock) IsOwner() clientv3.Cmp { return ownerCmp(k.key, k.token) }

// Txn starts a transaction that etcd runs only while the lock is held. Use it
// as the client's: If, Then and Else are yours, and none of them runs once the
// lock is lost. Commit then returns a *LostError. Of a Commit that fails
// otherwise, or with an error that matches ErrUnknown as well, the outcome is
// unknown: ErrUnknown says that etcd's client has sent the transaction more than
// once, and that the answer is to the last copy. Commit takes 5 s at the most,
// whatever ctx allows.
//
// The check and the write are one step of etcd, so for data in the same etcd
// cluster this is the fence.
func (k *Lock) Txn(ctx context.Context) clientv3.Txn { return &txn{ctx: ctx, lock: k} }

type txn struct {
	ctx       context.Context
	lock      *Lock
	cmps      []clientv3.Cmp
	then, els []clientv3.Op
	stage     stage
	misuse    error
}

type stage int

const (
	stageNew stage = iota
	stageIf
	stageThen
	stageElse
	stageDone
)

// next keeps the order If, Then, Else, Commit, each at most once, as clientv3
// has it; a wrong order is Commit's error instead of a panic.
func (t *txn) next(s stage, name string) {
	if s <= t.stage && t.misuse == nil {
		t.misuse = fmt.Errorf("etcdlock: Txn.%s called twice or too late: the order is If, Then, Else, Commit", name)
	}
	t.stage = s
}

func (t *txn) If(c ...clientv3.Cmp) clientv3.Txn {
	t.next(stageIf, "If")
	t.cmps = append(t.cmps, c...)
	return t
}

func (t *txn) Then(o ...clientv3.Op) clientv3.Txn {
	t.next(stageThen, "Then")
	t.then = append(t.then, o...)
	return t
}

func (t *txn) Else(o ...clientv3.Op) clientv3.Txn {
	t.next(stageElse, "Else")
	t.els = append(t.els, o...)
	return t
}

// Commit nests the caller's transaction in one that is guarded by the lock.
func (t *txn) Commit() (*clientv3.TxnResponse, error) {
	t.next(stageDone, "Commit")
	k := t.lock
	if t.misuse != nil {
		return nil, t.misuse
	}
	if t.ctx == nil {
		return nil, errNoContext
	}
	if err := k.err(); err != nil {
		return nil, err
	}
	inner := clientv3.OpTxn(t.cmps, t.then, t.els)
	resp, repeated, err := k.locker.view.Write(t.ctx, []clientv3.Cmp{k.IsOwner()}, []clientv3.Op{inner}, nil)
	if resp == nil {
		return nil, err
	}
	if !resp.Succeeded {
		k.lose(ReasonKeyGone, nil)
		if repeated { // the first copy may have been applied while the lock was held
			return nil, fmt.Errorf("etcdlock: transaction of %q: %w: %w", k.name, ErrUnknown, k.err())
		}
		return nil, k.err()
	}
	if repeated { // the first copy may have been applied, and changed what this one found
		return nil, fmt.Errorf("etcdlock: transaction of %q was sent more than once: %w", k.name, ErrUnknown)
	}
	out := (*clientv3.TxnResponse)(resp.Responses[0].GetResponseTxn())
	out.Header = resp.Header
	return out, err
}
