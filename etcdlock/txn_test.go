package etcdlock_test

import (
	"errors"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/etcdtest"
)

func value(t testing.TB, srv *etcdtest.Server, key string) string {
	t.Helper()
	resp, err := srv.Admin().Get(testContext(t), key)
	if err != nil {
		t.Fatal(err)
	}
	if len(resp.Kvs) == 0 {
		return ""
	}
	return string(resp.Kvs[0].Value)
}

// TestTxn: the caller's own If, Then and Else, and their response as if there were no lock around them.
func TestTxn(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	ctx := testContext(t)
	k := mustLock(t, clientLocker(t, srv), "x")
	defer mustUnlock(t, k)

	put(t, srv, "data", "1")
	txn := func(want string) clientv3.Txn {
		return k.Txn(ctx).
			If(clientv3.Compare(clientv3.Value("data"), "=", want)).
			Then(clientv3.OpPut("data", "then"), clientv3.OpGet("data")).
			Else(clientv3.OpPut("data", "else"))
	}
	resp, err := txn("1").Commit()
	if err != nil || !resp.Succeeded || len(resp.Responses) != 2 {
		t.Fatalf("Commit: %v, %v", resp, err)
	}
	if got := resp.Responses[1].GetResponseRange().Kvs[0]; string(got.Value) != "then" {
		t.Errorf("the second response is %v", got)
	}
	if resp.Header == nil || resp.Header.Revision != srv.Revision(t) {
		t.Errorf("header %v, revision %d", resp.Header, srv.Revision(t))
	}
	resp, err = txn("1").Commit() // no longer
	if err != nil || resp.Succeeded || len(resp.Responses) != 1 || value(t, srv, "data") != "else" {
		t.Errorf("Commit whose If fails: %v, %v; data is %q", resp, err, value(t, srv, "data"))
	}
	resp, err = k.Txn(ctx).Then(clientv3.OpPut("data", "plain")).Commit()
	if err != nil || !resp.Succeeded || value(t, srv, "data") != "plain" {
		t.Errorf("Commit without If: %v, %v; data is %q", resp, err, value(t, srv, "data"))
	}
	resp, err = k.Txn(ctx).Commit()
	if err != nil || !resp.Succeeded || len(resp.Responses) != 0 {
		t.Errorf("empty transaction: %v, %v", resp, err)
	}
	remove(t, srv, "data")
}

// TestTxnOfFormerHolder: nothing of the caller's runs once the lock is lost, the Else least of all.
func TestTxnOfFormerHolder(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	ctx := testContext(t)
	l := clientLocker(t, srv)
	put(t, srv, "data", "1")
	for what, cmp := range map[string]clientv3.Cmp{
		"If holds": clientv3.Compare(clientv3.Value("data"), "=", "1"),
		"If fails": clientv3.Compare(clientv3.Value("data"), "=", "2"),
	} {
		k := mustLock(t, l, "x")
		remove(t, srv, k.Key()) // the holder does not know yet
		resp, err := k.Txn(ctx).If(cmp).Then(clientv3.OpPut("data", "then")).Else(clientv3.OpPut("data", "else")).Commit()
		var lost *etcdlock.LostError
		if resp != nil || !errors.As(err, &lost) || lost.Reason != etcdlock.ReasonKeyGone || lost.Token != k.Token() {
			t.Errorf("%s: Commit = %v, %v; want a *LostError", what, resp, err)
		}
		if got := value(t, srv, "data"); got != "1" {
			t.Errorf("%s: a former holder wrote %q", what, got)
		}
		// It has learnt of the loss by that.
		if got := lostTo(t, k); got != lost {
			t.Errorf("%s: the context's cause is %v", what, got)
		}
		resp, err = k.Txn(ctx).Then(clientv3.OpPut("data", "again")).Commit()
		if resp != nil || !errors.Is(err, etcdlock.ErrLost) || value(t, srv, "data") != "1" {
			t.Errorf("%s: Commit after the loss = %v, %v", what, resp, err)
		}
	}
	remove(t, srv, "data")
}

// TestIsOwner: the comparison alone, for a transaction of one's own.
func TestIsOwner(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	ctx := testContext(t)
	l := clientLocker(t, srv)
	k := mustLock(t, l, "x")
	write := func() bool {
		resp, err := srv.Admin().Txn(ctx).If(k.IsOwner()).Then(clientv3.OpPut("data", "1")).Commit()
		if err != nil {
			t.Fatal(err)
		}
		return resp.Succeeded
	}
	if !write() {
		t.Error("the holder is not the owner")
	}
	mustUnlock(t, k)
	if write() {
		t.Error("a former holder is the owner")
	}
	if next := mustLock(t, l, "x"); next.Key() == k.Key() { // same session, same key
		if write() {
			t.Error("a former holder is the owner under its successor's key")
		}
		mustUnlock(t, next)
	} else {
		t.Errorf("the session was not used again: %s after %s", next.Key(), k.Key())
	}
	remove(t, srv, "data")
}

// TestTxnMisuse: a wrong order is an error of Commit, not a panic, and nothing runs.
func TestTxnMisuse(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	ctx := testContext(t)
	k := mustLock(t, clientLocker(t, srv), "x")
	write := clientv3.OpPut("data", "1")
	for what, txn := range map[string]clientv3.Txn{
		"If after Then":   k.Txn(ctx).Then(write).If(k.IsOwner()),
		"If twice":        k.Txn(ctx).If(k.IsOwner()).If(k.IsOwner()).Then(write),
		"Then twice":      k.Txn(ctx).Then(write).Then(write),
		"Then after Else": k.Txn(ctx).Else(write).Then(write),
		"Else twice":      k.Txn(ctx).Then(write).Else(write).Else(write),
	} {
		if resp, err := txn.Commit(); resp != nil || err == nil {
			t.Errorf("%s: %v, %v", what, resp, err)
		} else {
			wantText(t, what, err, "If, Then, Else, Commit")
		}
	}
	if got := value(t, srv, "data"); got != "" {
		t.Errorf("wrote %q", got)
	}
	twice := k.Txn(ctx).Then(clientv3.OpGet("data"))
	if _, err := twice.Commit(); err != nil {
		t.Errorf("Commit: %v", err)
	}
	if _, err := twice.Commit(); err == nil {
		t.Error("second Commit: no error")
	}
	mustUnlock(t, k)
	if resp, err := k.Txn(ctx).Then(write).Commit(); resp != nil || !errors.Is(err, etcdlock.ErrReleased) {
		t.Errorf("Commit after Unlock: %v, %v", resp, err)
	}
	if got := value(t, srv, "data"); got != "" {
		t.Errorf("wrote %q after Unlock", got)
	}
}
