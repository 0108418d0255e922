package etcdtest

import (
	"context"
	"os"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

func testContext(tb testing.TB) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	tb.Cleanup(cancel)
	return ctx
}

func put(tb testing.TB, c *clientv3.Client, key string, opts ...clientv3.OpOption) int64 {
	tb.Helper()
	r, err := c.Put(testContext(tb), key, "v", opts...)
	if err != nil {
		tb.Fatal(err)
	}
	return r.Header.Revision
}

func TestStart(t *testing.T) {
	LeakCheck(t)
	stalls := Stalls(t)
	var starts []Sample
	for range 10 {
		from := time.Now()
		s := Start(t)
		to := time.Now()
		starts = append(starts, Sample{from, to, to.Sub(from)})
		if rev, got := put(t, s.Client(t), "k"), s.Revision(t); got != rev {
			t.Errorf("Revision() = %d after a put at %d", got, rev)
		}
	}
	// The median: a disk or a processor that others keep busy delays single starts without stalling this process.
	stalls.Judge(t, "start", starts, 0.5, 500*time.Millisecond)
}

func TestMinimumTTLIsProductions(t *testing.T) {
	s := Start(t)
	g, err := s.Admin().Grant(testContext(t), 1)
	if err != nil {
		t.Fatal(err)
	}
	if g.TTL != 2 {
		t.Errorf("a TTL of 1 s was granted as %d s, production etcd grants 2 s", g.TTL)
	}
}

func TestRestartKeepsDataAndAddress(t *testing.T) {
	s := Start(t)
	endpoint := s.Endpoint()
	rev := put(t, s.Admin(), "k")
	if err := s.Restart(); err == nil {
		t.Fatal("restarted a running server")
	}
	s.Stop()
	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
	if got := s.Revision(t); got != rev || s.Endpoint() != endpoint {
		t.Errorf("after a restart: revision %d at %s, want %d at %s", got, s.Endpoint(), rev, endpoint)
	}
}

func TestRunContinuesACopy(t *testing.T) {
	s := Start(t)
	old := put(t, s.Admin(), "k")
	s.Stop()
	backup := t.TempDir()
	if err := os.CopyFS(backup, os.DirFS(s.Dir())); err != nil {
		t.Fatal(err)
	}
	if err := s.Restart(); err != nil {
		t.Fatal(err)
	}
	put(t, s.Admin(), "k")
	restored, err := Run(backup)
	if err != nil {
		t.Fatal(err)
	}
	defer restored.Close()
	if got := restored.Revision(t); got != old {
		t.Errorf("restored server at revision %d, want that of the copy, %d", got, old)
	}
}

func TestFsyncDirectoryIsRemoved(t *testing.T) {
	base := t.TempDir()
	s, err := Run("", WithFsync(base))
	if err != nil {
		t.Fatal(err)
	}
	put(t, s.Admin(), "k")
	if d, err := os.ReadDir(base); err != nil || len(d) != 1 {
		t.Errorf("while running: %v, %v, want one data directory", d, err)
	}
	s.Close()
	if d, err := os.ReadDir(base); err != nil || len(d) != 0 {
		t.Errorf("after Close: %v, %v, want nothing", d, err)
	}
}

func TestCluster(t *testing.T) {
	LeakCheck(t)
	m := StartCluster(t, 3)
	c := m.Client(t)
	rev := put(t, c, "k")
	for i := range m.Endpoints() {
		if got := m.Member(i).Revision(t); got != rev {
			t.Errorf("member %d at revision %d, want %d", i, got, rev)
		}
	}
	lead := m.Leader(t)
	m.Member(lead).Stop()
	if now := m.Leader(t); now == lead {
		t.Errorf("member %d still leads after it stopped", lead)
	}
	if got := put(t, c, "k"); got != rev+1 {
		t.Errorf("put on two members at revision %d, want %d", got, rev+1)
	}
	if err := m.Member(lead).Restart(); err != nil {
		t.Error(err)
	}
}
