package view

import (
	"context"
	"reflect"
	"sync/atomic"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/revfence/revfence/internal/call"
)

// clientv3 sends a transaction again, without a word, when a server or a proxy
// answers with a context's error while the caller's own context lives. The
// end of each send is the only sign of it.

type sendsKey struct{}

// countUnsure returns a context whose transaction counts the sends that ended
// without saying whether it was applied. A refusal, such as that of an auth token
// to renew, is not one.
func countUnsure(ctx context.Context) (context.Context, *atomic.Int32) {
	n := new(atomic.Int32)
	return context.WithValue(ctx, sendsKey{}, n), n
}

// counted returns base's KV with counting. A KV that its owner has wrapped, with
// a namespace for example, is left as it is: it must not be bypassed.
func counted(base *clientv3.Client) clientv3.KV {
	if base.ActiveConnection() == nil || reflect.TypeOf(base.KV) != reflect.TypeOf(clientv3.NewKV(base)) {
		return base.KV
	}
	return clientv3.NewKVFromKVClient(counting{clientv3.RetryKVClient(base)}, base)
}

type counting struct{ pb.KVClient }

func (c counting) Txn(ctx context.Context, in *pb.TxnRequest, opts ...grpc.CallOption) (*pb.TxnResponse, error) {
	if n, ok := ctx.Value(sendsKey{}).(*atomic.Int32); ok {
		opts = append(opts, grpc.OnFinish(func(err error) {
			if err != nil && !call.Definite(err) {
				n.Add(1)
			}
		}))
	}
	return c.KVClient.Txn(ctx, in, opts...)
}
