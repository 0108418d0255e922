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

// counted returns base's KV with counting. A KV that its owner has wrapped, with
// a namespace for example, is left as it is: it must not be bypassed.
func counted(base *clientv3.Client) clientv3.KV {
	if base.ActiveConnection() == nil || reflect.TypeOf(base.KV) != reflect.TypeOf(clientv3.NewKV(base)) {
		return base.KV
	}
	return clientv3.NewKVFromKVClient(counting{clientv3.RetryKVClient(base)}, base)
}

type counting struct{ pb.KVClient }

func (c counting) Range(ctx context.Context, in *pb.RangeRequest, opts ...grpc.CallOption) (*pb.RangeResponse, error) {
	return c.KVClient.Range(ctx, in, noted(ctx, opts)...)
}

func (c counting) Txn(ctx context.Context, in *pb.TxnRequest, opts ...grpc.CallOption) (*pb.TxnResponse, error) {
	return c.KVClient.Txn(ctx, in, noted(ctx, opts)...)
}
