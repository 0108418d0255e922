package versions_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/etcdtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	testLimit = 30 * time.Second
	soon      = 3 * time.Second // what is done in the background takes no longer while etcd is well
	// startTries bounds the starts of a server whose ports another process may take first.
	startTries = 5
)

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testLimit)
	t.Cleanup(cancel)
	return ctx
}

// build makes the server program that a module below this one names.
func build(t testing.TB, module string) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "etcd")
	cmd := exec.Command("go", "-C", module, "build", "-o", bin, "go.etcd.io/etcd/server/v3")
	cmd.Env = append(os.Environ(), "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build of %s: %v\n%s", module, err, out)
	}
	return bin
}

// A server is an etcd process.
type server struct {
	bin, dir     string
	client, peer string // host:port
	cmd          *exec.Cmd
	exited       chan struct{}
	admin        *clientv3.Client
}

// start runs a server until the end of the test, by when it must hold nothing any more.
func start(t testing.TB, bin string) *server {
	t.Helper()
	s := &server{bin: bin, dir: filepath.Join(t.TempDir(), "data")}
	t.Cleanup(s.stop)
	for range startTries {
		s.client, s.peer = freeAddr(t), freeAddr(t)
		if err := s.run(); err != nil {
			t.Fatal(err)
		}
		s.admin = s.connect(t)
		if s.ready() {
			t.Cleanup(func() { s.clean(t) })
			return s
		}
		s.stop()
	}
	t.Fatalf("%s does not start", bin)
	return nil
}

func freeAddr(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func (s *server) run() error {
	client, peer := "http://"+s.client, "http://"+s.peer
	s.cmd = exec.Command(s.bin, "--name", "solo", "--data-dir", s.dir, "--unsafe-no-fsync", "--log-level", "panic",
		"--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "solo="+peer)
	s.cmd.Stderr = os.Stderr
	if err := s.cmd.Start(); err != nil {
		return err
	}
	exited := make(chan struct{})
	s.exited = exited
	go func(cmd *exec.Cmd) {
		_ = cmd.Wait() // it is killed
		close(exited)
	}(s.cmd)
	return nil
}

// stop kills the server. Its data stays.
func (s *server) stop() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill() // an error says that it has ended
	<-s.exited
	s.cmd = nil
}

// ready waits until the server answers, or has ended.
func (s *server) ready() bool {
	ctx, cancel := context.WithTimeout(context.Background(), testLimit)
	defer cancel()
	go func() {
		select {
		case <-s.exited:
			cancel()
		case <-ctx.Done():
		}
	}()
	_, err := s.admin.Get(ctx, "ready", clientv3.WithCountOnly()) // clientv3 tries again and again
	return err == nil
}

// connect returns a client that is closed at the end of the test.
func (s *server) connect(t testing.TB, opts ...etcdtest.ClientOption) *clientv3.Client {
	t.Helper()
	cfg := clientv3.Config{Endpoints: []string{s.client}, DialTimeout: 5 * time.Second, Logger: zap.NewNop()}
	for _, o := range opts {
		o(&cfg)
	}
	c, err := clientv3.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// locker returns a Locker on a client, closed at the end of the test.
func locker(t testing.TB, c *clientv3.Client, opts ...etcdlock.Option) *etcdlock.Locker {
	t.Helper()
	l, err := etcdlock.New(c, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(testContext(t)); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return l
}

// clean fails the test if a key or a lease is left.
func (s *server) clean(t testing.TB) {
	t.Helper()
	var left string
	for deadline := time.Now().Add(soon); time.Now().Before(deadline); {
		left = s.leftovers()
		if left == "" {
			return
		}
		pass(10 * time.Millisecond)
	}
	t.Errorf("left in etcd: %s", left)
}

func (s *server) leftovers() string {
	ctx, cancel := context.WithTimeout(context.Background(), testLimit)
	defer cancel()
	keys, err := s.admin.Get(ctx, "", clientv3.WithPrefix())
	if err != nil {
		return err.Error()
	}
	leases, err := s.admin.Leases(ctx)
	if err != nil {
		return err.Error()
	}
	if len(keys.Kvs) == 0 && len(leases.Leases) == 0 {
		return ""
	}
	return fmt.Sprintf("keys %v, leases %v", keys.Kvs, leases.Leases)
}

// pass lets time go by, between looks at a condition, or where the passing of time is what is tested.
func pass(d time.Duration) { <-time.After(d) }
