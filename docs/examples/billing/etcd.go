package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

// startEtcd runs a single etcd member in this process, silently, on free ports of the loopback interface.
func startEtcd(ctx context.Context, dir string) (*embed.Etcd, string, error) {
	cfg := embed.NewConfig()
	cfg.Dir = dir
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	free := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}} // the kernel picks: nobody can take the port in between
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = free, free
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = free, free
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return nil, "", fmt.Errorf("embedded etcd: %w", err)
	}
	select {
	case <-e.Server.ReadyNotify():
		return e, e.Clients[0].Addr().String(), nil
	case err = <-e.Err():
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-time.After(30 * time.Second):
		err = errors.New("not ready after 30 s")
	}
	e.Close()
	return nil, "", fmt.Errorf("embedded etcd: %w", err)
}

func newClient(endpoints []string, opts ...grpc.DialOption) (*clientv3.Client, error) {
	cfg := clientv3.Config{Endpoints: endpoints, DialTimeout: 5 * time.Second, Logger: zap.NewNop(), DialOptions: opts}
	if strings.HasPrefix(endpoints[0], "https://") {
		cfg.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	return clientv3.New(cfg)
}

// reachTime is how long etcd may take to answer for the first time.
const reachTime = 5 * time.Second

// reach asks etcd for something, so that a wrong address is found before anything starts.
func reach(ctx context.Context, endpoints []string, prefix string) error {
	// The client waits for a connection until the time is up, and then says only that. gRPC knows why.
	var cause string
	c, err := newClient(endpoints, grpc.WithChainUnaryInterceptor(
		func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			err := invoke(ctx, method, req, reply, cc, opts...)
			if err != nil {
				cause = strings.TrimPrefix(status.Convert(err).Message(), "latest balancer error: ")
			}
			return err
		}))
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, reachTime)
	defer cancel()
	_, err = c.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("no answer within %v: %s", reachTime, cause)
	}
	if err != nil {
		return fmt.Errorf("etcd at %s: %w", strings.Join(endpoints, ","), err)
	}
	return nil
}

// deletion tells that the key of a hold is gone from etcd.
type deletion struct {
	key   string
	token int64
}

// watchDeletions sends what is deleted under prefix from now on, until ctx ends. It returns once etcd watches.
func watchDeletions(ctx context.Context, c *clientv3.Client, prefix string, to chan<- deletion) (done <-chan struct{}, err error) {
	w := c.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithPrevKV(), clientv3.WithFilterPut(), clientv3.WithCreatedNotify())
	select {
	case r := <-w:
		if err := r.Err(); err != nil {
			return nil, fmt.Errorf("etcd watch: %w", err)
		}
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-time.After(10 * time.Second):
		return nil, errors.New("etcd watch: no answer after 10 s")
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for r := range w {
			for _, e := range r.Events {
				if e.PrevKv == nil {
					continue
				}
				select {
				case to <- deletion{string(e.Kv.Key), e.PrevKv.CreateRevision}:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return ended, nil
}

// marks is what the marks of nights that are done start with, below the prefix (see Once).
const marks = "%done/"

// sweep makes sure that nothing is left under prefix. It is called when every worker has ended, so a lease
// that is still there belongs to nobody, and is revoked rather than waited for. A night's mark is meant to
// outlive the workers, so found counts the other keys: of locks that were not released.
func sweep(ctx context.Context, c *clientv3.Client, prefix string) (found int, err error) {
	for {
		r, err := c.Get(ctx, prefix, clientv3.WithPrefix())
		if err != nil {
			return found, fmt.Errorf("cannot tell what is left under %s: %w", prefix, err)
		}
		if len(r.Kvs) == 0 {
			return found, nil
		}
		locks := 0
		for _, kv := range r.Kvs {
			if !strings.HasPrefix(string(kv.Key), prefix+marks) {
				locks++
			}
			// Its error does not matter: the next read tells.
			_, _ = c.Revoke(ctx, clientv3.LeaseID(kv.Lease))
		}
		found = max(found, locks)
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return found, fmt.Errorf("%s %s left under %s, until the lease ends: %w", count(len(r.Kvs), "key"), are(len(r.Kvs)), prefix, ctx.Err())
		}
	}
}
