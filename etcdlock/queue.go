package etcdlock

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/revfence/revfence/fencing"
	"github.com/revfence/revfence/internal/view"
)

// A Contender is one place in a lock's queue.
type Contender struct {
	Key      string
	Identity string        // as given WithIdentity; "" for etcdctl and stock mutexes
	Token    fencing.Token // what its hold has, or will have, as token
	Lease    clientv3.LeaseID
	// Foreign marks a key that no lock made, or one that was written over
	// without its lease: it blocks the name until somebody deletes it.
	Foreign bool
}

// Queue returns who holds name, first, and who waits for it, in the order in
// which they will be served; nothing if the name is free. Goroutines that wait
// behind another of their own process are not in etcd and not shown. It is one
// linearizable read, of 5 s at the most, and what it says may have changed on
// return.
func (l *Locker) Queue(ctx context.Context, name string) ([]Contender, error) {
	if ctx == nil {
		return nil, errNoContext
	}
	if err := checkName(name); err != nil {
		return nil, err
	}
	if l.open.Err() != nil {
		return nil, ErrClosed
	}
	queue := l.queue(name)
	resp, err := l.view.Get(ctx, queue, clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
	if err != nil {
		return nil, fmt.Errorf("etcdlock: queue of %q: %w", name, err)
	}
	out := make([]Contender, len(resp.Kvs))
	for i, kv := range resp.Kvs {
		out[i] = Contender{
			Key: string(kv.Key), Identity: string(kv.Value), Token: fencing.Token(kv.CreateRevision),
			Lease: clientv3.LeaseID(kv.Lease), Foreign: view.Foreign(queue, kv) != nil,
		}
	}
	return out, nil
}
