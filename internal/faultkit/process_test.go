//go:build unix

package faultkit

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/revfence/revfence/internal/etcdtest"
)

func TestProcessTalks(t *testing.T) {
	p := Start(t, "echo", "world")
	if s := p.Hear("hello "); s != "world" {
		t.Errorf("the child's argument was %q", s)
	}
	p.Say("skipped")
	p.Say("two")
	if s := p.Hear("echo t"); s != "wo" {
		t.Errorf("heard %q", s)
	}
}

func TestProcessStops(t *testing.T) {
	p := Start(t, "echo", "")
	p.Hear("hello")
	for i := range 20 {
		p.Stop()
		if p.Running() {
			t.Error("stopped, and said to run")
		}
		p.Say(fmt.Sprint("first ", i))
		if s, err := p.run.next("echo", 5*time.Millisecond); err == nil {
			t.Fatalf("a stopped child said %q", s)
		}
		p.Cont()
		p.Hear(fmt.Sprint("echo first ", i))
	}
	p.Stop() // the end of the test has to cope
}

func TestProcessRestarts(t *testing.T) {
	p := Start(t, "echo", "again")
	for range 3 {
		p.Hear("hello again")
		before := p.Pid()
		p.Stop()
		p.Restart()
		if p.Pid() == before || !p.Running() {
			t.Errorf("process %d before, %d now", before, p.Pid())
		}
	}
	p.Kill()
	if p.Running() {
		t.Error("killed, and said to run")
	}
	if s, err := p.run.next("never", soon); err == nil || !strings.Contains(err.Error(), "ended") {
		t.Errorf("heard %q, %v of a killed child", s, err)
	}
}

func TestProcessFails(t *testing.T) {
	for _, role := range []string{"failing", "unheard of"} {
		r, err := newRun(role, "")
		if err != nil {
			t.Fatal(err)
		}
		if !r.ends(soon) || r.cmd.ProcessState.ExitCode() != 1 {
			t.Errorf("%s: %v", role, r.cmd.ProcessState)
		}
		r.in.Close()
	}
}

// TestCluster stops, kills and restarts the members of a cluster one by one and has the data there all the time.
func TestCluster(t *testing.T) {
	etcdtest.LeakCheck(t)
	c := StartCluster(t, 3, nil)
	c.CheckClean(t, soon)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := c.Member(0).Admin().Put(ctx, "k", "v"); err != nil {
		t.Fatal(err)
	}
	if f := c.Follower(t); f == c.Leader(t) {
		t.Errorf("member %d leads and follows", f)
	}
	old := c.Leader(t)
	c.Member(old).Stop()
	if now := c.Leader(t); now == old {
		t.Errorf("member %d leads while it is stopped", now)
	}
	c.Member(old).Cont()
	for i := range c.Len() {
		m := c.Member(i)
		m.Restart()
		m.Await()
		r, err := m.Admin().Get(ctx, "k", clientv3.WithSerializable())
		if err != nil || len(r.Kvs) != 1 {
			t.Errorf("member %d after its restart: %v, %v", i, r, err)
		}
	}
	through := c.Client(t)
	for i := range c.Len() {
		c.Member(i).Proxy.Cut()
		if _, err := through.Get(ctx, "k"); err != nil {
			t.Errorf("member %d cut off: %v", i, err)
		}
		c.Member(i).Proxy.Heal()
	}
	if _, err := through.Delete(ctx, "k"); err != nil {
		t.Error(err)
	}
}
