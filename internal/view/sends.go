package view

import (
	"context"
	"reflect"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/revfence/revfence/internal/call"
)

// clientv3 sends a transaction again, without a word, when a server or a proxy
// answers with a context's error while the caller's own context lives. The
// end of each send is the only sign of it.

type triesKey struct{}

// noting returns a context whose call notes how its sends end.
func noting(ctx context.Context) (context.Context, *call.Tries) {
	t := new(call.Tries)
	return context.WithValue(ctx, triesKey{}, t), t
}

func noted(ctx context.Context, opts []grpc.CallOption) []grpc.CallOption {
	if t, ok := ctx.Value(triesKey{}).(*call.Tries); ok {
		opts = append(opts, t.Option())
	}
	return opts
}

// observed returns base's KV with what notes its tries. A KV that its owner has wrapped, with
// a namespace for example, is left as it is: it must not be bypassed.
func observed(base *clientv3.Client) clientv3.KV {
	if base.ActiveConnection() == nil || reflect.TypeOf(base.KV) != reflect.TypeOf(clientv3.NewKV(base)) {
		return base.KV
	}
	return clientv3.NewKVFromKVClient(observing{clientv3.RetryKVClient(base)}, base)
}

type observing struct{ pb.KVClient }

func (o observing) Range(ctx context.Context, in *pb.RangeRequest, opts ...grpc.CallOption) (*pb.RangeResponse, error) {
	return o.KVClient.Range(ctx, in, noted(ctx, opts)...)
}

func (o observing) Txn(ctx context.Context, in *pb.TxnRequest, opts ...grpc.CallOption) (*pb.TxnResponse, error) {
	return o.KVClient.Txn(ctx, in, noted(ctx, opts)...)
}
