package faultkit

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/revfence/revfence/internal/etcdtest"
)

// TestMemberDoesNotStart: what keeps a member from starting is reported as it is, and only a taken port is worth another try.
func TestMemberDoesNotStart(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, test := range []struct {
		what      string
		edit      func(*etcdtest.MemberSpec)
		portTaken bool
		says      string
	}{
		{"port taken", func(m *etcdtest.MemberSpec) { m.Client = taken.Addr().String() }, true, "m0: "},
		{"bad timing", func(m *etcdtest.MemberSpec) { m.Heartbeat, m.Election = time.Second, time.Second }, false, "election"},
	} {
		c := &Cluster{tb: t}
		err := c.start(t.TempDir(), 1, test.edit)
		if err == nil || errors.Is(err, errPortTaken) != test.portTaken || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v", test.what, err)
		}
	}
}
