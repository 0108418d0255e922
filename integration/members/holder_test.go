//go:build unix

package members_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/faultkit"
	"github.com/revfence/revfence/internal/locktest"
)

const (
	pausedTTL  = 3 * time.Second
	pausedName = "paused"
	pausedData = "data" // what the lock protects
)

// What a test tells a holder to do.
const (
	doWork  = "work"  // one unit: see that the lock is held, then write
	doPause = "pause" // wait in the next unit between the two
	doGoOn  = "go on"
)

// holder is the program of a process that holds a lock and writes under it. arg is etcd's endpoint.
func holder(arg string, talk *faultkit.Talk) error {
	var pause atomic.Bool
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{arg}, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(
			func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				if strings.HasSuffix(method, "KV/Txn") && pause.Swap(false) {
					talk.Say("checked")
					talk.Hear()
					ctx = context.WithoutCancel(ctx) // however long that took, the request is on its way now
				}
				return invoke(ctx, method, req, reply, cc, opts...)
			})},
	})
	if err != nil {
		return err
	}
	defer client.Close()
	ctx := context.Background()
	l, err := etcdlock.New(client, etcdlock.WithTTL(pausedTTL))
	if err != nil {
		return err
	}
	defer l.Close(ctx)
	k, err := l.Lock(ctx, pausedName)
	if err != nil {
		return err
	}
	defer k.Unlock(ctx) // lost by now
	talk.Say("token %d", k.Token())
	for {
		line, ok := talk.Hear()
		switch {
		case !ok:
			return nil
		case line == doPause:
			pause.Store(true)
		case k.Remaining() == 0:
			talk.Say("begins no work: %v", k.Check(ctx))
		default:
			_, err := k.Txn(ctx).Then(clientv3.OpPut(pausedData, fmt.Sprint(k.Token()))).Commit()
			talk.Say("written: %v", err)
		}
	}
}

// TestF10StoppedHolder stops a process that holds a lock between its last look at the lock and the write after it, until
// another has the lock and has written. The write of the first, sent when it goes on, must be refused, and it must not
// begin another.
func TestF10StoppedHolder(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	srv := c.Member(0)
	first := faultkit.Start(t, "holder", srv.Endpoint())
	token := first.Hear("token ")
	first.Say(doWork)
	if err := first.Hear("written: "); err != "<nil>" {
		t.Fatalf("write of the holder: %v", err)
	}
	data(t, srv, token)

	first.Say(doPause)
	first.Say(doWork)
	first.Hear("checked")
	first.Stop()
	k := locktest.Lock(t, locktest.New(t, srv.Admin(), etcdlock.WithTTL(pausedTTL)), pausedName)
	if _, err := k.Txn(locktest.Context(t)).Then(clientv3.OpPut(pausedData, fmt.Sprint(k.Token()))).Commit(); err != nil {
		t.Fatalf("write of the next holder: %v", err)
	}
	first.Say(doGoOn) // both are there to be read as soon as it runs
	first.Say(doWork)
	first.Cont()
	if err := first.Hear("written: "); !strings.Contains(err, "lost") {
		t.Errorf("late write: %v, want a loss", err)
	}
	t.Logf("begins no work: %v", first.Hear("begins no work: "))
	data(t, srv, fmt.Sprint(k.Token()))
	locktest.Unlock(t, k)
	if _, err := srv.Admin().Delete(locktest.Context(t), pausedData); err != nil {
		t.Error(err)
	}
}

func data(t *testing.T, srv *faultkit.Member, want string) {
	t.Helper()
	r, err := srv.Admin().Get(locktest.Context(t), pausedData)
	if err != nil || len(r.Kvs) != 1 || string(r.Kvs[0].Value) != want {
		t.Errorf("written in the end: %v, %v, want %q", r, err, want)
	}
}
