package etcdlock_test

import (
	"context"
	"flag"
	"os"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/etcdtest"
)

// TestMain lets more tests run at the same time than there are processors: most of them wait for a TTL to pass.
func TestMain(m *testing.M) {
	given := false
	flag.Parse()
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		if err := flag.Set("test.parallel", "8"); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}

var _ = os.Exit

// testLimit bounds every call that a test expects to end by itself.
const testLimit = 30 * time.Second

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testLimit)
	t.Cleanup(cancel)
	return ctx
}

// startClean starts a server that must be empty again, within a short time, when the test and its clients are through.
func startClean(t testing.TB, within time.Duration) *etcdtest.Server {
	t.Helper()
	srv := etcdtest.Start(t)
	srv.CheckClean(t, within)
	return srv
}

// newLocker returns a Locker that is closed at the end of the test, when it must hold nothing any more.
func newLocker(t testing.TB, c *clientv3.Client, opts ...etcdlock.Option) *etcdlock.Locker {
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
func TestTmp(t *testing.T) {
	t0 := time.Now()
	t.Cleanup(func() { t.Log("all", time.Since(t0)) })
	s := startClean(t, time.Second)
	t.Log("start", time.Since(t0))
	l := newLocker(t, s.Client(t))
	k, err := l.Lock(testContext(t), "x")
	if err != nil {
		t.Fatal(err)
	}
	k.Unlock(testContext(t))
	t.Log("done", time.Since(t0))
}
