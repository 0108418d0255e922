package restore_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/etcdutl"
	"go.uber.org/goleak"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/etcdtest"
	"github.com/revfence/revfence/internal/faultkit"
	"github.com/revfence/revfence/internal/locktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const soon = 3 * time.Second // what is done in the background takes no longer while etcd is well

// An etcd is a server that can be set back. Its clients come through a proxy, which gives them up when it stops.
type etcd struct {
	*etcdtest.Server
	proxy *faultkit.Proxy
}

func start(t testing.TB, clean time.Duration) *etcd {
	t.Helper()
	srv := etcdtest.Start(t)
	srv.CheckClean(t, clean)
	return &etcd{srv, faultkit.NewProxy(t, srv.Endpoint())}
}

// locker returns a Locker as another process would have it: with a client of its own.
func (e *etcd) locker(t testing.TB, opts ...etcdlock.Option) *etcdlock.Locker {
	t.Helper()
	return locktest.New(t, e.Client(t, etcdtest.Via(e.proxy.Addr())), opts...)
}

// backup takes a snapshot, as etcdctl snapshot save does, and returns its path.
func (e *etcd) backup(t testing.TB) string {
	t.Helper()
	snapshot, err := e.Admin().SnapshotWithVersion(locktest.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	defer snapshot.Snapshot.Close()
	path := filepath.Join(t.TempDir(), "backup.db")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(f, snapshot.Snapshot); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// etcdutl's flags are variables of its package.
var commandLine sync.Mutex

// restore stops etcd, and starts it again with what etcdutl snapshot restore, with the given flags, makes of a backup.
func (e *etcd) restore(t testing.TB, backup string, flags ...string) {
	t.Helper()
	members, err := e.Admin().MemberList(locktest.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	self := members.Members[0]
	e.proxy.Cut()
	e.Stop()
	if err := os.RemoveAll(e.Dir()); err != nil {
		t.Fatal(err)
	}
	commandLine.Lock()
	defer commandLine.Unlock()
	cmd := etcdutl.NewSnapshotCommand()
	cmd.SetArgs(append([]string{"restore", backup,
		"--data-dir", e.Dir(), "--name", self.Name, "--initial-advertise-peer-urls", self.PeerURLs[0],
		"--initial-cluster", self.Name + "=" + self.PeerURLs[0]}, flags...))
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	if err := e.Restart(); err != nil {
		t.Fatal(err)
	}
	e.proxy.Heal()
}

// advance writes until etcd's revision is rev.
func (e *etcd) advance(t testing.TB, rev int64) {
	t.Helper()
	now := e.Revision(t)
	if now >= rev {
		t.Fatalf("revision is %d already, want %d", now, rev)
	}
	for ; now < rev-1; now++ {
		if _, err := e.Admin().Put(locktest.Context(t), "unrelated", fmt.Sprint(now)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := e.Admin().Delete(locktest.Context(t), "unrelated"); err != nil {
		t.Fatal(err)
	}
	if got := e.Revision(t); got != rev {
		t.Fatalf("revision %d, want %d", got, rev)
	}
}

// has reports whether a key is there.
func (e *etcd) has(t testing.TB, key string) bool {
	t.Helper()
	resp, err := e.Admin().Get(locktest.Context(t), key, clientv3.WithCountOnly())
	if err != nil {
		t.Fatal(err)
	}
	return resp.Count > 0
}

// cycles locks and unlocks a name n times, and returns the last token.
func cycles(t testing.TB, l *etcdlock.Locker, name string, n int) *etcdlock.Lock {
	t.Helper()
	var last *etcdlock.Lock
	for range n {
		last = locktest.Lock(t, l, name)
		locktest.Unlock(t, last)
	}
	return last
}

// lostSoon fails unless the lock is lost because its key or its lease is not there any more.
func lostSoon(t testing.TB, k *etcdlock.Lock) {
	t.Helper()
	select {
	case <-k.Context().Done():
	case <-time.After(locktest.Limit):
		t.Fatalf("%v: still held", k)
	}
	var lost *etcdlock.LostError
	if !errors.As(context.Cause(k.Context()), &lost) || lost.Reason != etcdlock.ReasonKeyGone && lost.Reason != etcdlock.ReasonLeaseGone {
		t.Errorf("%v: ended with %v", k, context.Cause(k.Context()))
	}
	if err := k.Unlock(locktest.Context(t)); !errors.Is(err, etcdlock.ErrLost) {
		t.Errorf("Unlock of a lost lock: %v", err)
	}
}

// told fails unless err is ErrRevisionRegressed, and returns the flags of the command that it tells an operator to use.
func told(t testing.TB, what string, err error) (flags []string) {
	t.Helper()
	if !errors.Is(err, etcdlock.ErrRevisionRegressed) {
		t.Fatalf("%s: %v", what, err)
	}
	_, command, ok := strings.Cut(err.Error(), "etcdutl snapshot restore ")
	if !ok {
		t.Fatalf("%s names no command: %v", what, err)
	}
	command, _, _ = strings.Cut(command, ":") // of the error that follows
	return strings.Fields(command)
}
