package etcdlock_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/etcdtest"
	"github.com/revfence/revfence/internal/faultkit"
)

// tooOld is what is logged about a server.
const tooOld = "etcd server too old for dependable locks"

// claims makes servers say that they are of a version: they answer for real, but an old one cannot be had in this process.
func claims(version string) etcdtest.ClientOption {
	return etcdtest.Unary(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		err := invoke(ctx, method, req, reply, cc, opts...)
		if r, ok := reply.(*pb.StatusResponse); ok && err == nil && version != "" {
			r.Version = version
		}
		return err
	})
}

// asked counts the calls that ask servers for their version.
func asked(calls *etcdtest.Counter) int { return calls.Snapshot().Unary[etcdtest.Status] }

// versionsAsked waits for what a Locker asks once, with its first lock, so that later calls can be counted.
func versionsAsked(t testing.TB, calls *etcdtest.Counter) {
	t.Helper()
	eventually(t, "the servers' versions asked for", func() bool { return asked(calls) > 0 })
}

// TestServerVersion: the first lock of a Locker has every endpoint asked for its version, and one that is too old is
// warned about, once.
func TestServerVersion(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	for _, test := range []struct {
		version string // "" is what the server is
		minimum string // warned about, unless ""
		debug   bool
	}{
		{version: ""},
		{version: "3.5.28"},
		{version: "3.5.30+git"},
		{version: "3.6.9"},
		{version: "3.6.16"},
		{version: "3.7.0-rc.1"},
		{version: "3.10.0"},
		{version: "4.0.0"},
		{version: "3.5.27", minimum: "3.5.28"},
		{version: "3.5.3", minimum: "3.5.28"},
		{version: "3.4.37", minimum: "3.5.28"},
		{version: "2.3.8", minimum: "3.5.28"},
		{version: "3.6.8", minimum: "3.6.9"},
		{version: "3.6.0-rc.1", minimum: "3.6.9"},
		{version: "unknown", debug: true},
	} {
		t.Run(strings.ReplaceAll(test.version, ".", "_"), func(t *testing.T) {
			t.Parallel()
			core, logs := observer.New(zap.DebugLevel)
			var calls etcdtest.Counter
			second := faultkit.NewProxy(t, srv.Endpoint())
			c := srv.Client(t, etcdtest.Via(srv.Endpoint(), second.Addr()), claims(test.version), etcdtest.Counted(&calls))
			l, err := etcdlock.New(c, etcdlock.WithLogger(zap.New(core)))
			if err != nil {
				t.Fatal(err)
			}
			name := t.Name()
			for range 3 {
				mustUnlock(t, mustLock(t, l, name))
			}
			eventually(t, "both endpoints asked", func() bool { return asked(&calls) == 2 })
			said := func(level zapcore.Level, text string) []string {
				var out []string
				for _, e := range logs.FilterLevelExact(level).FilterMessage(text).All() {
					out = append(out, e.ContextMap()["endpoint"].(string))
					if level == zap.WarnLevel && (e.ContextMap()["version"] != test.version || e.ContextMap()["minimum"] != test.minimum || e.ContextMap()["why"] == "") {
						t.Errorf("said: %v", e.ContextMap())
					}
				}
				slices.Sort(out)
				return out
			}
			both := []string{srv.Endpoint(), second.Addr()}
			slices.Sort(both)
			warn := test.minimum != ""
			if warn {
				eventually(t, "a warning for each", func() bool { return slices.Equal(said(zap.WarnLevel, tooOld), both) })
			}
			if test.debug {
				eventually(t, "a word about each", func() bool { return slices.Equal(said(zap.DebugLevel, "server's version not known"), both) })
			}
			mustUnlock(t, mustLock(t, l, name))
			if err := l.Close(testContext(t)); err != nil { // by when nothing is asked any more
				t.Fatal(err)
			}
			if n := asked(&calls); n != 2 {
				t.Errorf("asked %d times", n)
			}
			if n := logs.FilterMessage(tooOld).Len(); warn != (n == 2) || !warn && n > 0 {
				t.Errorf("warned %d times", n)
			}
		})
	}
}

// TestServerVersionUnanswered: an endpoint that does not answer delays no lock, fails none and keeps no Locker from
// closing.
func TestServerVersionUnanswered(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	stalls := etcdtest.Stalls(t)
	core, logs := observer.New(zap.DebugLevel)
	begun := make(chan struct{}, 1)
	c := srv.Client(t, etcdtest.Unary(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if _, ok := req.(*pb.StatusRequest); ok {
			begun <- struct{}{}
			<-ctx.Done() // as when nothing comes back
			return ctx.Err()
		}
		return invoke(ctx, method, req, reply, cc, opts...)
	}))
	l, err := etcdlock.New(c, etcdlock.WithLogger(zap.New(core)))
	if err != nil {
		t.Fatal(err)
	}
	from := time.Now()
	k := mustLock(t, l, "x")
	receive(t, "the question", begun)
	mustUnlock(t, k)
	if err := l.Close(testContext(t)); err != nil {
		t.Fatal(err)
	}
	to := time.Now()
	stalls.Judge(t, "Lock, Unlock and Close", []etcdtest.Sample{{From: from, To: to, Value: to.Sub(from)}}, 1, time.Second)
	if n := logs.FilterMessage("server's version not known").Len(); n != 1 {
		t.Errorf("%d times: server's version not known", n)
	}
}

// TestServerVersionAsUser: authentication does not keep a plain user from asking.
func TestServerVersionAsUser(t *testing.T) {
	t.Parallel()
	srv, _ := secured(t, soon)
	core, logs := observer.New(zap.DebugLevel)
	l := newLocker(t, srv.Client(t, etcdtest.AsUser("svc", "password"), claims("3.4.9")), etcdlock.WithLogger(zap.New(core)))
	mustUnlock(t, mustLock(t, l, "x"))
	eventually(t, "the warning", func() bool { return logs.FilterMessage(tooOld).Len() == 1 })
}
