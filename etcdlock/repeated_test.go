package etcdlock_test

import (
	"errors"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/etcdtest"
	"github.com/revfence/revfence/internal/faultkit"
)

// clientv3 sends a transaction again when a server answers with a context's
// error while the caller's context lives: the lock must not take the answer
// to the second for the whole story.

// TestF09ReleaseSentTwice: the first deletes the key, the second finds none. That
// is a release, not a loss.
func TestF09ReleaseSentTwice(t *testing.T) {
	t.Parallel()
	for _, code := range []codes.Code{codes.DeadlineExceeded, codes.Canceled} {
		srv := startClean(t, soon)
		var calls faultkit.Calls
		l := newLocker(t, srv.Client(t, etcdtest.Unary(calls.Unary)))
		k := mustLock(t, l, "x")
		fault := calls.Lost(deletes, 1, status.Error(code, "context error of the server"))
		mustUnlock(t, k)
		if fault.Hits() != 1 {
			t.Errorf("%v: fault applied %d times", code, fault.Hits())
		}
		awaitKeys(t, srv, "/revfence/", 0)
	}
}

// TestF09CreateSentTwice: the first is still under way when the second has made the
// key. It must find no lease to put the released key on again.
func TestF09CreateSentTwice(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	var calls faultkit.Calls
	l := newLocker(t, srv.Client(t, etcdtest.Unary(calls.Unary)))
	calls.Late(creates, 1, 500*time.Millisecond, status.Error(codes.Canceled, "context error of the server"))
	mustUnlock(t, mustLock(t, l, "x"))
	calls.Wait()
	eventuallyWithin(t, "no key, long before an idle lease is revoked", soon, func() bool { return len(keys(t, srv, "/revfence/").Kvs) == 0 })
	mustUnlock(t, mustLock(t, clientLocker(t, srv), "x"))
}

// TestF09CreateCommittedTwice: the first has made the key, the second finds it.
func TestF09CreateCommittedTwice(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	var calls faultkit.Calls
	l := newLocker(t, srv.Client(t, etcdtest.Unary(calls.Unary)))
	for _, lock := range []func() *etcdlock.Lock{
		func() *etcdlock.Lock { return mustLock(t, l, "x") },
		func() *etcdlock.Lock {
			k, err := l.TryLock(testContext(t), "x")
			if err != nil {
				t.Fatal(err)
			}
			return k
		},
	} {
		calls.Lost(creates, 1, status.Error(codes.DeadlineExceeded, "context error of the server"))
		k := lock()
		if kv := keys(t, srv, k.Key()).Kvs[0]; kv.CreateRevision != int64(k.Token()) {
			t.Errorf("token %d of a key created at %d", k.Token(), kv.CreateRevision)
		}
		mustUnlock(t, k)
		eventually(t, "its lease is not used again", func() bool { return leaseCount(t, srv) == 0 })
	}
}

// TestF09TxnSentTwice: the first was applied, then the lock was lost, and that is all the second finds. Neither "written" nor
// "not written" would be right.
func TestF09TxnSentTwice(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	var calls faultkit.Calls
	l := newLocker(t, srv.Client(t, etcdtest.Unary(calls.Unary)))
	write := func(k *etcdlock.Lock) error {
		_, err := k.Txn(testContext(t)).Then(clientv3.OpPut("data", "written")).Commit()
		return err
	}
	for _, code := range []codes.Code{codes.DeadlineExceeded, codes.Canceled} {
		k := mustLock(t, l, "x")
		fault := calls.Lost(faultkit.Method("KV/Txn"), 1, status.Error(code, "context error of the server"), func() { remove(t, srv, k.Key()) })
		wantIs(t, "Commit that was sent twice", write(k), etcdlock.ErrUnknown, etcdlock.ErrLost)
		if fault.Hits() != 1 || value(t, srv, "data") != "written" {
			t.Errorf("%v: fault applied %d times, data is %q", code, fault.Hits(), value(t, srv, "data"))
		}
		remove(t, srv, "data")
		mustLostUnlock(t, k)
	}

	// Sent once, nothing is open.
	k := mustLock(t, l, "x")
	remove(t, srv, k.Key())
	err := write(k)
	wantIs(t, "Commit that was sent once", err, etcdlock.ErrLost)
	if errors.Is(err, etcdlock.ErrUnknown) {
		t.Errorf("Commit that was sent once: %v", err)
	}
	if got := value(t, srv, "data"); got != "" {
		t.Errorf("data is %q", got)
	}
	mustLostUnlock(t, k)
}
