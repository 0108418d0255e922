package etcdlock

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/revfence/revfence/fencing"
)

// holds is the chain of locks that a context carries, youngest first.
type holds struct {
	lock  *Lock
	outer *holds
}

type holdsKey struct{}

func holdsOf(ctx context.Context) *holds {
	h, _ := ctx.Value(holdsKey{}).(*holds)
	return h
}

// WithoutHold returns ctx without the holds, and the token, that it carries.
// It is for handing work to another goroutine that should wait its turn for a
// lock instead of getting ErrReentrant.
func WithoutHold(ctx context.Context) context.Context {
	return fencing.NewContext(context.WithValue(ctx, holdsKey{}, (*holds)(nil)), "", 0)
}

// reentrant returns ErrReentrant if ctx carries a live hold of name.
func (l *Locker) reentrant(ctx context.Context, name string) error {
	for h := holdsOf(ctx); h != nil; h = h.outer {
		k := h.lock
		if k.locker.queue(k.name) != l.queue(name) || k.Remaining() == 0 {
			continue
		}
		same, err := l.sameCluster(ctx, k.locker, name)
		if err != nil {
			return err
		}
		if same {
			return ErrReentrant
		}
	}
	return nil
}

// sameCluster asks etcd only for a Locker that has had no answer yet.
func (l *Locker) sameCluster(ctx context.Context, other *Locker, name string) (bool, error) {
	if l == other || l.client == other.client {
		return true, nil
	}
	if l.view.Floor.Cluster() == 0 {
		if _, err := l.view.Get(ctx, l.queue(name), clientv3.WithFirstCreate()...); err != nil {
			return false, err
		}
	}
	return l.view.Floor.Cluster() == other.view.Floor.Cluster(), nil
}
