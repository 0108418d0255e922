package faultkit

import (
	"encoding/json"
	"errors"
	"fmt"
	"syscall"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/revfence/revfence/internal/etcdtest"
)

// memberRole is the role of an etcd member.
const memberRole = "etcd member"

// Member is one member of a Cluster: a process, which Stop, Cont, Kill and Restart are for. Restart keeps its data and its
// addresses and returns at once; Await waits for it.
type Member struct {
	*Process
	// Proxy is the way that clients of the cluster take to this member.
	Proxy *Proxy

	spec  etcdtest.MemberSpec
	id    uint64
	admin *clientv3.Client // straight to this member
}

// Endpoint returns the member's own host:port, past its proxy.
func (m *Member) Endpoint() string { return m.spec.Client }

// Admin returns a client of this member alone, past its proxy, that all callers share.
func (m *Member) Admin() *clientv3.Client { return m.admin }

// ID returns the member's id in etcd.
func (m *Member) ID() uint64 { return m.id }

// Await waits until a member that was started, or restarted, serves. It needs a quorum of the others for it.
func (m *Member) Await() {
	m.tb.Helper()
	m.Hear(saysReady)
}

const (
	saysReady     = "ready"
	saysPortTaken = "port taken"
	saysFailed    = "failed: "
)

// runMember is the program of a member's process.
func runMember(arg string, talk *Talk) error {
	var spec etcdtest.MemberSpec
	if err := json.Unmarshal([]byte(arg), &spec); err != nil {
		return err
	}
	switch _, err := etcdtest.RunMember(spec); {
	case errors.Is(err, syscall.EADDRINUSE):
		talk.Say(saysPortTaken)
		return err
	case err != nil:
		talk.Say("%s%q", saysFailed, err.Error()) // on one line
		return err
	}
	talk.Say(saysReady)
	for {
		if _, ok := talk.Hear(); !ok {
			return nil // without closing the server: its data is thrown away
		}
	}
}

// errPortTaken says that a member did not get its addresses.
var errPortTaken = errors.New("address taken by another process")

// up waits for a member's first words.
func (m *Member) up() error {
	line, err := m.run.next("", hearTimeout)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", m.spec.Name, err)
	case line == saysPortTaken:
		return fmt.Errorf("%s: %w", m.spec.Name, errPortTaken)
	case line != saysReady:
		return fmt.Errorf("%s: %s", m.spec.Name, line)
	}
	return nil
}
