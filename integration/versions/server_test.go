package versions_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	"github.com/revfence/revfence/internal/etcdtest"
	"github.com/revfence/revfence/internal/faultkit"
	"github.com/revfence/revfence/internal/locktest"
)

// The kernel ends a child with its parent by an order that is the child's first thread's. Only if that becomes etcd does the
// order stand, so the main goroutine, which does it, stays on that thread.
func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) {
	faultkit.Main(map[string]faultkit.Role{"etcd": etcd})
	goleak.VerifyTestMain(m)
}

const (
	soon = 3 * time.Second // what is done in the background takes no longer while etcd is well
	// startTries bounds the starts of a server whose ports another process may take first.
	startTries = 5
)

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

// etcd is the role of a child that becomes the server program whose command line its argument holds. So it ends with the
// test, as every child does, even if that is killed.
func etcd(arg string, _ *faultkit.Talk) error {
	var args []string
	if err := json.Unmarshal([]byte(arg), &args); err != nil {
		return err
	}
	return syscall.Exec(args[0], args, os.Environ())
}

// A server is an etcd process.
type server struct {
	*faultkit.Process
	client string // host:port
	admin  *clientv3.Client
}

// start runs a server until the end of the test, by when it must hold nothing any more.
func start(t testing.TB, bin string) *server {
	t.Helper()
	for range startTries {
		addrs, err := etcdtest.FreeAddrs(2)
		if err != nil {
			t.Fatal(err)
		}
		client, peer := "http://"+addrs[0], "http://"+addrs[1]
		args, err := json.Marshal([]string{
			bin, "--name", "solo", "--data-dir", filepath.Join(t.TempDir(), "data"), "--unsafe-no-fsync", "--log-level", "panic",
			"--listen-client-urls", client, "--advertise-client-urls", client,
			"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "solo=" + peer,
		})
		if err != nil {
			t.Fatal(err)
		}
		s := &server{faultkit.Start(t, "etcd", string(args)), addrs[0], etcdtest.NewClient(t, addrs[:1])}
		t.Cleanup(s.Kill) // the end of its input tells it nothing
		if s.ready() {
			t.Cleanup(func() { etcdtest.AssertClean(t, s.admin, "", soon) })
			return s
		}
		s.Kill()
	}
	t.Fatalf("%s does not start", bin)
	return nil
}

// ready waits until the server answers, or has ended.
func (s *server) ready() bool {
	for deadline := time.Now().Add(locktest.Limit); s.Running() && time.Now().Before(deadline); pass(10 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		_, err := s.admin.Get(ctx, "ready", clientv3.WithCountOnly())
		cancel()
		if err == nil {
			return true
		}
	}
	return false
}

// connect returns a client that is closed at the end of the test.
func (s *server) connect(t testing.TB, opts ...etcdtest.ClientOption) *clientv3.Client {
	t.Helper()
	return etcdtest.NewClient(t, []string{s.client}, opts...)
}

// pass lets time go by, between looks at a condition, or where the passing of time is what is tested.
func pass(d time.Duration) { <-time.After(d) }
