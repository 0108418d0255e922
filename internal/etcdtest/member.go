package etcdtest

import (
	"errors"
	"syscall"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
)

// MemberSpec describes one member of a cluster whose members are started apart, as processes.
type MemberSpec struct {
	Name    string
	Dir     string // data; one that holds a member's data is continued
	Client  string // host:port for clients
	Peer    string // host:port for the other members
	Initial string // name=http://peer of all members, separated by commas; empty for a member that is alone

	// Heartbeat and Election are etcd's own, 100 ms and 1 s, if zero. Leases have a minimum TTL of 1.5 times Election.
	Heartbeat, Election time.Duration
	Fsync               bool
}

// RunMember starts a member and returns once it serves, for which it needs a quorum of the others. Another process that
// is about to leave the addresses is waited for.
func RunMember(spec MemberSpec) (*Server, error) {
	s := &Server{
		cfg: memberConfig{
			name: spec.Name, dir: spec.Dir, initial: spec.Initial, fsync: spec.Fsync,
			edits: []func(*embed.Config){spec.tune},
		},
		client: spec.Client, peer: spec.Peer,
	}
	err := s.boot()
	for range bindAttempts {
		if !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
		pause(50 * time.Millisecond)
		err = s.boot()
	}
	if err != nil {
		return nil, err
	}
	if err := s.ready(); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (m MemberSpec) tune(c *embed.Config) {
	if m.Heartbeat > 0 {
		c.TickMs = uint(m.Heartbeat / time.Millisecond)
	}
	if m.Election > 0 {
		c.ElectionMs = uint(m.Election / time.Millisecond)
	}
	c.MaxTxnOps = maxTxnOps
}

// maxTxnOps lets tests fill a member fast.
const maxTxnOps = 10_000
