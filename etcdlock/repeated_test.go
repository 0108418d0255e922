package etcdlock_test

import (
	"errors"
	"fmt"
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

var errRepeated = []error{
	status.Error(codes.DeadlineExceeded, "context error of the server"), status.Error(codes.Canceled, "context error of the server"),
}

// repeats calls f for every error that makes clientv3 send again, once and several times.
func repeats(f func(times int, err error)) {
	for _, err := range errRepeated {
		for _, times := range []int{1, 3} {
			f(times, err)
		}
	}
}

// TestF09ReleaseSentTwice: the first deletes the key, the others find none. That
// is a release, not a loss.
func TestF09ReleaseSentTwice(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	l, calls := faulty(t, srv)
	repeats(func(times int, err error) {
		k := mustLock(t, l, "x")
		fault := calls.Lost(deletes, times, err)
		mustUnlock(t, k)
		if fault.Hits() != times {
			t.Errorf("%v: fault applied %d times", err, fault.Hits())
		}
		awaitKeys(t, srv, "/revfence/", 0)
	})
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

// TestF09CreateCommittedTwice: the first has made the key, the others find it.
func TestF09CreateCommittedTwice(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	l, calls := faulty(t, srv)
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
		repeats(func(times int, err error) {
			fault := calls.Lost(creates, times, err, func() { // the revision runs on
				put(t, srv, "unrelated", "")
				remove(t, srv, "unrelated")
			})
			k := lock()
			if fault.Hits() != times {
				t.Errorf("%v: fault applied %d times", err, fault.Hits())
			}
			if kv := keys(t, srv, k.Key()).Kvs[0]; kv.CreateRevision != int64(k.Token()) {
				t.Errorf("token %d of a key created at %d", k.Token(), kv.CreateRevision)
			}
			mustUnlock(t, k)
			eventually(t, "its lease is not used again", func() bool { return leaseCount(t, srv) == 0 })
		})
	}
}

// TestF09CheckSentTwice: all copies say the same, unless the lock was lost in between.
func TestF09CheckSentTwice(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	l, calls := faulty(t, srv)
	repeats(func(times int, err error) {
		k := mustLock(t, l, "x")
		fault := calls.Lost(faultkit.Method("KV/Txn"), times, err)
		if err := k.Check(testContext(t)); err != nil {
			t.Errorf("Check: %v", err)
		}
		if fault.Hits() != times {
			t.Errorf("%v: fault applied %d times", err, fault.Hits())
		}
		live(t, k)
		calls.Lost(faultkit.Method("KV/Txn"), times, err, func() { remove(t, srv, k.Key()) })
		wantIs(t, "Check", k.Check(testContext(t)), etcdlock.ErrLost)
		mustLostUnlock(t, k)
	})
}

// TestF09TxnSentTwiceWhileHeld: the first writes, and the others find what it has written. Their answer is not the
// transaction's.
func TestF09TxnSentTwiceWhileHeld(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	l, calls := faulty(t, srv)
	k := mustLock(t, l, "x")
	write := func() (*clientv3.TxnResponse, error) {
		return k.Txn(testContext(t)).
			If(clientv3.Compare(clientv3.CreateRevision("data"), "=", 0)).
			Then(clientv3.OpPut("data", "written")).Commit()
	}
	repeats(func(times int, err error) {
		fault := calls.Lost(faultkit.Method("KV/Txn"), times, err)
		resp, got := write()
		wantIs(t, "Commit", got, etcdlock.ErrUnknown)
		if resp != nil || errors.Is(got, etcdlock.ErrLost) {
			t.Errorf("Commit: %v, %v", resp, got)
		}
		if fault.Hits() != times || value(t, srv, "data") != "written" {
			t.Errorf("%v: fault applied %d times, data is %q", err, fault.Hits(), value(t, srv, "data"))
		}
		live(t, k)
		if resp, err := write(); err != nil || resp.Succeeded { // sent once
			t.Errorf("Commit that was sent once: %v, %v", resp, err)
		}
		remove(t, srv, "data")
	})
	mustUnlock(t, k)
}

// TestF09MarkSentTwice: the first writes the mark, and the others find it. It is asked again what came of it.
func TestF09MarkSentTwice(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	removeMarks(t, srv)
	l, calls := faulty(t, srv)
	var r runs
	repeats(func(times int, err error) {
		slot := fmt.Sprint(times, status.Code(err))
		fault := calls.Lost(marking, times, err)
		for range 2 {
			if err := l.Once(testContext(t), "job", slot, r.job(slot, nil)); err != nil {
				t.Errorf("Once: %v", err)
			}
		}
		if fault.Hits() != times {
			t.Errorf("%v: fault applied %d times", err, fault.Hits())
		}
		r.want(t, slot, 1)
	})
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
