package etcdtest

import (
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// ClientOption changes the configuration of a client before it is made.
type ClientOption func(*clientv3.Config)

// Via makes the client connect to addrs instead of the server itself: the addresses of proxies, say.
func Via(addrs ...string) ClientOption {
	return func(c *clientv3.Config) { c.Endpoints = addrs }
}

// AsUser makes the client authenticate with a name and a password.
func AsUser(name, password string) ClientOption {
	return func(c *clientv3.Config) { c.Username, c.Password = name, password }
}

// Unary adds interceptors around each attempt of a unary call, inside etcd's own retries.
func Unary(in ...grpc.UnaryClientInterceptor) ClientOption {
	return func(c *clientv3.Config) { c.DialOptions = append(c.DialOptions, grpc.WithChainUnaryInterceptor(in...)) }
}

// Stream adds interceptors around the opening of streams: watches and kept-alive leases.
func Stream(in ...grpc.StreamClientInterceptor) ClientOption {
	return func(c *clientv3.Config) {
		c.DialOptions = append(c.DialOptions, grpc.WithChainStreamInterceptor(in...))
	}
}

// Counted makes c count the calls of the client. Several clients may share a Counter.
func Counted(c *Counter) ClientOption {
	return func(cfg *clientv3.Config) {
		Unary(c.unary)(cfg)
		Stream(c.stream)(cfg)
	}
}

// Client returns a new client of the server, closed at the end of the test.
func (s *Server) Client(tb testing.TB, opts ...ClientOption) *clientv3.Client {
	tb.Helper()
	return NewClient(tb, []string{s.client}, opts...)
}

// NewClient returns a new client with the given endpoints, closed at the end of the test.
func NewClient(tb testing.TB, endpoints []string, opts ...ClientOption) *clientv3.Client {
	tb.Helper()
	cfg := clientConfig(endpoints)
	for _, o := range opts {
		o(&cfg)
	}
	c, err := clientv3.New(cfg)
	if err != nil {
		tb.Fatalf("etcdtest: client: %v", err)
	}
	tb.Cleanup(func() { c.Close() }) // an error here only says that the test closed it first
	return c
}

func clientConfig(endpoints []string) clientv3.Config {
	return clientv3.Config{Endpoints: endpoints, DialTimeout: 5 * time.Second, Logger: zap.NewNop()}
}
