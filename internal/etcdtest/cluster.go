package etcdtest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Members is a cluster whose members all run inside the test process. The members share one process's fate and clock,
// so it suits tests of what a client does with several endpoints, not tests of how members die.
type Members struct {
	servers []*Server
}

// StartCluster runs a cluster of n members until the end of the test. It returns once every member serves.
func StartCluster(tb testing.TB, n int, opts ...Option) *Members {
	tb.Helper()
	root := tb.TempDir()
	var err error
	for attempt := range bindAttempts {
		var m *Members
		m, err = runCluster(filepath.Join(root, fmt.Sprint(attempt)), n, opts)
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			break
		}
		tb.Cleanup(m.close)
		return m
	}
	tb.Fatalf("etcdtest: cluster: %v", err)
	return nil
}

func runCluster(root string, n int, opts []Option) (*Members, error) {
	addrs, err := FreeAddrs(2 * n)
	if err != nil {
		return nil, err
	}
	var initial []string
	for i := range n {
		initial = append(initial, fmt.Sprintf("m%d=http://%s", i, addrs[2*i+1]))
	}
	m := &Members{}
	for i := range n {
		cfg := memberConfig{name: fmt.Sprintf("m%d", i)}
		for _, o := range opts {
			o(&cfg)
		}
		if cfg.base != "" {
			if cfg.dir, err = os.MkdirTemp(cfg.base, "etcdtest-"); err != nil {
				m.close()
				return nil, err
			}
		} else {
			cfg.dir = filepath.Join(root, cfg.name)
		}
		cfg.initial = strings.Join(initial, ",")
		s := &Server{cfg: cfg, client: addrs[2*i], peer: addrs[2*i+1]}
		m.servers = append(m.servers, s)
		if err := s.boot(); err != nil {
			m.close()
			return nil, err
		}
	}
	for _, s := range m.servers {
		if err := s.ready(); err != nil {
			m.close()
			return nil, err
		}
	}
	return m, nil
}

// close stops the followers first: a leader that stops hands over to a follower, and waits 7 s for one that is stopping too.
func (m *Members) close() {
	var wg sync.WaitGroup
	var lead *Server
	for _, s := range m.servers {
		if s.leads() && lead == nil {
			lead = s
			continue
		}
		wg.Go(s.Close)
	}
	wg.Wait()
	if lead != nil {
		lead.Close()
	}
}

// leads reports whether the server is up and considers itself its cluster's leader.
func (s *Server) leads() bool {
	e := s.running()
	return e != nil && e.Server.Leader() == e.Server.MemberID()
}

// Endpoints returns the host:port of every member, in order.
func (m *Members) Endpoints() []string {
	var eps []string
	for _, s := range m.servers {
		eps = append(eps, s.client)
	}
	return eps
}

// Member returns member i.
func (m *Members) Member(i int) *Server { return m.servers[i] }

// Client returns a new client with the endpoints of all members, closed at the end of the test.
func (m *Members) Client(tb testing.TB, opts ...ClientOption) *clientv3.Client {
	tb.Helper()
	return NewClient(tb, m.Endpoints(), opts...)
}

// Leader returns the index of the leading member, waiting up to 20 s for an election to end.
func (m *Members) Leader(tb testing.TB) int {
	tb.Helper()
	for deadline := time.Now().Add(readyTimeout); time.Now().Before(deadline); pause(5 * time.Millisecond) {
		for i, s := range m.servers {
			if s.leads() {
				return i
			}
		}
	}
	tb.Fatalf("etcdtest: no leader within %v", readyTimeout)
	return -1
}
