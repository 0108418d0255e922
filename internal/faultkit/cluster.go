package faultkit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/revfence/revfence/internal/etcdtest"
)

// Cluster is an etcd cluster each of whose members is a process of its own, behind a proxy of its own.
type Cluster struct {
	tb      testing.TB
	members []*Member
}

const (
	// startAttempts bounds the retries when another process takes a port between its choice and etcd's bind.
	startAttempts = 5
	statusTimeout = time.Second
	leaderTimeout = 30 * time.Second
)

// StartCluster runs a cluster of n members until the end of the test, and returns when all of them serve. edit, unless
// nil, changes a member's description beforehand. The package's TestMain has to call Main.
func StartCluster(tb testing.TB, n int, edit func(*etcdtest.MemberSpec)) *Cluster {
	tb.Helper()
	root := tb.TempDir()
	var err error
	for attempt := range startAttempts {
		c := &Cluster{tb: tb}
		if err = c.start(filepath.Join(root, fmt.Sprint(attempt)), n, edit); err == nil {
			return c
		}
		for _, m := range c.members {
			m.Kill()
		}
		if !errors.Is(err, errPortTaken) {
			break
		}
	}
	tb.Fatalf("faultkit: cluster: %v", err)
	return nil
}

func (c *Cluster) start(root string, n int, edit func(*etcdtest.MemberSpec)) error {
	c.tb.Helper()
	addrs, err := etcdtest.FreeAddrs(2 * n)
	if err != nil {
		return err
	}
	var initial []string
	for i := range n {
		initial = append(initial, fmt.Sprintf("m%d=http://%s", i, addrs[2*i+1]))
	}
	for i := range n {
		name := fmt.Sprintf("m%d", i)
		spec := etcdtest.MemberSpec{
			Name: name, Dir: filepath.Join(root, name), Client: addrs[2*i], Peer: addrs[2*i+1],
		}
		if n > 1 { // a member that is alone need not wait for an election
			spec.Initial = strings.Join(initial, ",")
		}
		if edit != nil {
			edit(&spec)
		}
		arg, err := json.Marshal(spec)
		if err != nil {
			return err
		}
		m := &Member{spec: spec, Process: &Process{tb: c.tb, role: memberRole, arg: string(arg), abrupt: true}}
		m.start()
		c.members = append(c.members, m)
	}
	for _, m := range c.members {
		err = errors.Join(err, m.up()) // of all: one without its port may leave the others without a quorum
	}
	if err != nil {
		return err
	}
	for _, m := range c.members {
		m.Proxy = NewProxy(c.tb, m.spec.Client)
		m.admin = etcdtest.NewClient(c.tb, []string{m.spec.Client})
		s, err := m.status()
		if err != nil {
			return err
		}
		m.id = s.Header.MemberId
	}
	return nil
}

// Len returns the number of members.
func (c *Cluster) Len() int { return len(c.members) }

// Member returns member i.
func (c *Cluster) Member(i int) *Member { return c.members[i] }

// Proxied returns the addresses of the members' proxies, in order.
func (c *Cluster) Proxied() []string {
	var addrs []string
	for _, m := range c.members {
		addrs = append(addrs, m.Proxy.Addr())
	}
	return addrs
}

// Endpoints returns the members' own addresses, in order.
func (c *Cluster) Endpoints() []string {
	var addrs []string
	for _, m := range c.members {
		addrs = append(addrs, m.spec.Client)
	}
	return addrs
}

// Client returns a new client that goes through the proxies of all members, closed at the end of the test.
func (c *Cluster) Client(tb testing.TB, opts ...etcdtest.ClientOption) *clientv3.Client {
	tb.Helper()
	return etcdtest.NewClient(tb, c.Proxied(), opts...)
}

// Leader returns the index of the leader that a running member knows and that runs itself, waiting for an election to
// end.
func (c *Cluster) Leader(tb testing.TB) int {
	tb.Helper()
	for deadline := time.Now().Add(leaderTimeout); time.Now().Before(deadline); pause(20 * time.Millisecond) {
		for i, m := range c.members {
			if m.Running() && m.leads() {
				return i
			}
		}
	}
	tb.Fatalf("faultkit: no leader within %v", leaderTimeout)
	return -1
}

// Follower returns the index of a running member that does not lead.
func (c *Cluster) Follower(tb testing.TB) int {
	tb.Helper()
	lead := c.Leader(tb)
	for i, m := range c.members {
		if i != lead && m.Running() {
			return i
		}
	}
	tb.Fatalf("faultkit: no follower runs")
	return -1
}

// leads reports whether the member says so. One that has just been resumed may be wrong.
func (m *Member) leads() bool {
	s, err := m.status()
	return err == nil && s.Leader != 0 && s.Leader == s.Header.MemberId
}

func (m *Member) status() (*clientv3.StatusResponse, error) {
	ctx, cancel := context.WithTimeout(context.Background(), statusTimeout)
	defer cancel()
	return m.admin.Status(ctx, m.spec.Client)
}

// CheckClean fails the test when, at its end, the cluster still holds a key or a lease after within has passed, as
// etcdtest.Server.CheckClean does. Call it straight after StartCluster. At the end a quorum has to run.
func (c *Cluster) CheckClean(tb testing.TB, within time.Duration) {
	tb.Helper()
	tb.Cleanup(func() {
		tb.Helper()
		for _, m := range c.members {
			if m.Running() {
				etcdtest.AssertClean(tb, m.admin, "", within)
				return
			}
		}
		tb.Error("faultkit: no member runs at the end")
	})
}
