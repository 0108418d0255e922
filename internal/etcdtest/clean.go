package etcdtest

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
)

// CheckClean fails the test when, at its end, the server still holds a key or a lease after within has passed. Call it
// straight after Start, so that it runs when everything the test registered later is closed. Leases that nobody revokes
// count: within has to cover their TTL (a server expires one up to half a second late) or be short to forbid them.
// The check uses the shared client, so it cannot run on a server with authentication on.
func (s *Server) CheckClean(tb testing.TB, within time.Duration) {
	tb.Helper()
	tb.Cleanup(func() {
		tb.Helper()
		s.AssertClean(tb, "", within)
	})
}

// AssertClean waits up to within until no key under prefix and no lease is left, and fails the test otherwise, naming
// what remained. An empty prefix means every key. Leases carry no prefix, so those of the whole server count.
func (s *Server) AssertClean(tb testing.TB, prefix string, within time.Duration) {
	tb.Helper()
	AssertClean(tb, s.admin, prefix, within)
}

// AssertClean is Server.AssertClean for a cluster that is reached through c alone.
func AssertClean(tb testing.TB, c *clientv3.Client, prefix string, within time.Duration) {
	tb.Helper()
	deadline := time.Now().Add(within)
	for {
		left, err := leftovers(c, prefix)
		if err != nil {
			tb.Errorf("etcdtest: cannot check for leftovers: %v", err)
			return
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			tb.Errorf("etcdtest: left in etcd after %v:\n  %s", within, strings.Join(left, "\n  "))
			return
		}
		pause(10 * time.Millisecond)
	}
}

func leftovers(c *clientv3.Client, prefix string) ([]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	var left []string
	kvs, err := c.Get(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		return nil, err
	}
	for _, kv := range kvs.Kvs {
		left = append(left, fmt.Sprintf("key %q created at revision %d, lease %x", kv.Key, kv.CreateRevision, kv.Lease))
	}
	leases, err := c.Leases(ctx)
	if err != nil {
		return nil, err
	}
	for _, l := range leases.Leases {
		ttl, err := c.TimeToLive(ctx, l.ID, clientv3.WithAttachedKeys())
		if err != nil {
			return nil, err
		}
		if ttl.TTL < 0 {
			continue // went between the two calls
		}
		left = append(left, fmt.Sprintf("lease %x with %d of %d s left, keys %q", l.ID, ttl.TTL, ttl.GrantedTTL, ttl.Keys))
	}
	return left, nil
}

// leakAllowance bounds the wait for goroutines that are about to end: a server notices a closed connection late, and
// gRPC winds its transports down in the background.
const leakAllowance = 8 * time.Second

// LeakCheck fails the test when goroutines that did not exist at the call are still there at its end. Call it first, so
// that it runs after every other cleanup; it does not suit parallel tests, which would see each other's goroutines.
func LeakCheck(tb testing.TB) {
	tb.Helper()
	known := goleak.IgnoreCurrent()
	tb.Cleanup(func() {
		tb.Helper()
		if err := leaked(known, leakAllowance); err != nil {
			tb.Errorf("etcdtest: %v", err)
		}
	})
}

// leaked returns the goroutines beyond the known ones that are left once allowance has passed.
func leaked(known goleak.Option, allowance time.Duration) error {
	deadline := time.Now().Add(allowance)
	for {
		err := goleak.Find(known)
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// Revision returns the server's current revision by a linearizable read.
func (s *Server) Revision(tb testing.TB) int64 {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	r, err := s.admin.Get(ctx, "revision", clientv3.WithCountOnly())
	if err != nil {
		tb.Fatalf("etcdtest: revision: %v", err)
	}
	return r.Header.Revision
}

// WatcherCount returns the number of watches that all etcd servers of this process serve together: etcd keeps one
// gauge per process. A watch that was cancelled may be counted for a moment longer.
func (s *Server) WatcherCount(tb testing.TB) int {
	tb.Helper()
	n, err := s.metric("etcd_debugging_mvcc_watcher_total")
	if err != nil {
		tb.Fatalf("etcdtest: %v", err)
	}
	return int(n)
}

// metric reads one unlabelled value from the server's metrics page.
func (s *Server) metric(name string) (float64, error) {
	tr := &http.Transport{DisableKeepAlives: true}
	defer tr.CloseIdleConnections()
	hc := &http.Client{Transport: tr, Timeout: adminTimeout}
	resp, err := hc.Get("http://" + s.client + "/metrics")
	if err != nil {
		return 0, fmt.Errorf("metrics: %w", err)
	}
	defer resp.Body.Close()
	for sc := bufio.NewScanner(resp.Body); sc.Scan(); {
		if v, ok := strings.CutPrefix(sc.Text(), name+" "); ok {
			return strconv.ParseFloat(v, 64)
		}
	}
	return 0, fmt.Errorf("metrics: no %s", name)
}
