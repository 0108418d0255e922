package etcdtest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"
)

// Names of the calls that lock tests count, as Counts lists them.
const (
	Range     = "KV/Range"
	Put       = "KV/Put"
	Txn       = "KV/Txn"
	Delete    = "KV/DeleteRange"
	Grant     = "Lease/LeaseGrant"
	Revoke    = "Lease/LeaseRevoke"
	KeepAlive = "Lease/LeaseKeepAlive"
	Watch     = "Watch/Watch"
	Status    = "Maintenance/Status"
)

// Counter counts what the clients made with Counted send. The zero value is ready; it is safe for concurrent use.
type Counter struct {
	mu     sync.Mutex
	counts Counts
}

// Counts holds numbers by method, as "Service/Method" without etcd's package name.
type Counts struct {
	Unary  map[string]int // attempts of unary calls, etcd's retries included
	Opened map[string]int // streams opened
	Sent   map[string]int // messages sent on streams: renewals, watch requests
}

// Snapshot returns a copy of the counts so far.
func (c *Counter) Snapshot() Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Counts{maps.Clone(c.counts.Unary), maps.Clone(c.counts.Opened), maps.Clone(c.counts.Sent)}
}

// Sub returns what was counted since earlier, without the methods that were not called.
func (n Counts) Sub(earlier Counts) Counts {
	return Counts{
		subtract(n.Unary, earlier.Unary),
		subtract(n.Opened, earlier.Opened),
		subtract(n.Sent, earlier.Sent),
	}
}

// Calls returns the number of unary calls of all methods.
func (n Counts) Calls() int {
	sum := 0
	for _, v := range n.Unary {
		sum += v
	}
	return sum
}

// String lists the counts in a stable order.
func (n Counts) String() string {
	var parts []string
	for _, g := range []struct {
		kind string
		m    map[string]int
	}{{"", n.Unary}, {"open ", n.Opened}, {"send ", n.Sent}} {
		for _, k := range slices.Sorted(maps.Keys(g.m)) {
			parts = append(parts, fmt.Sprintf("%s%s=%d", g.kind, k, g.m[k]))
		}
	}
	return strings.Join(parts, " ")
}

func subtract(a, b map[string]int) map[string]int {
	out := map[string]int{}
	for k, v := range a {
		if d := v - b[k]; d != 0 {
			out[k] = d
		}
	}
	return out
}

func (c *Counter) add(m *map[string]int, method string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if *m == nil {
		*m = map[string]int{}
	}
	(*m)[strings.TrimPrefix(method, "/etcdserverpb.")]++
}

func (c *Counter) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	c.add(&c.counts.Unary, method)
	return invoke(ctx, method, req, reply, cc, opts...)
}

func (c *Counter) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	c.add(&c.counts.Opened, method)
	s, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		return nil, err
	}
	return countedStream{s, c, method}, nil
}

type countedStream struct {
	grpc.ClientStream
	counter *Counter
	method  string
}

func (s countedStream) SendMsg(m any) error {
	s.counter.add(&s.counter.counts.Sent, s.method)
	return s.ClientStream.SendMsg(m)
}
