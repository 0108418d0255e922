package etcdlock_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/etcdtest"
	"github.com/revfence/revfence/internal/faultkit"
)

// warned returns an option and how often a trouble of the lock has been logged since.
func warned(t testing.TB, lock string) (etcdlock.Option, func() int) {
	t.Helper()
	core, logs := observer.New(zapcore.WarnLevel)
	return etcdlock.WithLogger(zap.New(core)), func() int {
		return logs.FilterMessage("lock not acquired yet, trouble with etcd").FilterField(zap.String("lock", lock)).Len()
	}
}

// TestUnreachableIsLogged: a Lock that does not get through says so, and its error has the reason.
func TestUnreachableIsLogged(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	log, warnings := warned(t, "x")
	l := newLocker(t, srv.Client(t, etcdtest.Via("127.0.0.1:1")), log)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	next := goLock(ctx, l, "x")
	eventually(t, "a warning", func() bool { return warnings() > 0 }) // etcd's client tries for 3 s or so before it tells
	cancel()
	r := receive(t, "Lock", next)
	wantIs(t, "Lock", r.err, context.Canceled)
	wantText(t, "Lock", r.err, `"x"`)
	wantText(t, "Lock", r.err, "etcd had not answered, the last error was")
	wantText(t, "Lock", r.err, "connection refused")
	if n := warnings(); n != 1 {
		t.Errorf("warned %d times", n)
	}
}

// TestTroubleIsLoggedOnce: not with every try, and the error says what Lock was waiting for.
func TestTroubleIsLoggedOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fails faultkit.Match
		step  string
	}{
		"grant": {faultkit.Method(etcdtest.Grant), "etcd had not answered"},
		"place in the queue": {func(method string, req any) bool {
			r, ok := req.(*pb.TxnRequest)
			return ok && len(r.Success) > 0 && r.Success[0].GetRequestRange() != nil || strings.HasSuffix(method, etcdtest.Range)
		}, "waiting for earlier places in the queue"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := startClean(t, soon)
			k := mustLock(t, clientLocker(t, srv), "x")
			log, warnings := warned(t, "x")
			l, faults := faulty(t, srv, log)
			fault := faults.Fail(c.fails, 1000, status.Error(codes.Unknown, "nothing works")) // etcd's client does not repeat this one
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			next := goLock(ctx, l, "x")
			eventually(t, "several failures", func() bool { return fault.Hits() >= 4 })
			if n := warnings(); n != 1 {
				t.Errorf("warned %d times", n)
			}
			cancel()
			r := receive(t, "Lock", next)
			fault.Disarm()
			wantIs(t, "Lock", r.err, context.Canceled)
			wantText(t, "Lock", r.err, c.step)
			wantText(t, "Lock", r.err, ", the last error was")
			wantText(t, "Lock", r.err, "nothing works")
			mustUnlock(t, k)
		})
	}
}

// TestErrorSaysWhatItWaitedFor: without trouble too, of which there is none to log.
func TestErrorSaysWhatItWaitedFor(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	log, warnings := warned(t, "x")
	var calls etcdtest.Counter
	l := newLocker(t, srv.Client(t, etcdtest.Counted(&calls)), log)
	wait := func(step string, reached func() bool) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		next := goLock(ctx, l, "x")
		eventually(t, step, reached)
		cancel()
		r := receive(t, "Lock", next)
		wantIs(t, "Lock", r.err, context.Canceled)
		wantText(t, "Lock", r.err, `"x"`)
		wantText(t, "Lock", r.err, step)
		if r.err != nil && strings.Contains(r.err.Error(), "last error") {
			t.Errorf("an error without trouble: %v", r.err)
		}
	}
	k := mustLock(t, clientLocker(t, srv, etcdlock.WithIdentity("holder")), "x")
	wait(fmt.Sprintf("waiting for earlier places in the queue, the next is of \"holder\" (key %q)", k.Key()),
		func() bool { return calls.Snapshot().Sent[etcdtest.Watch] > 0 })
	mustUnlock(t, k)
	k = mustLock(t, l, "x")
	wait("behind others of this process", func() bool { return l.TurnsWaiting("x") == 1 })
	mustUnlock(t, k)
	if n := warnings(); n != 0 {
		t.Errorf("warned %d times of nothing", n)
	}
}
