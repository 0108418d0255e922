package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/etcdtest"
)

// TestF44EverythingAtOnce: every method of a Lock and of its Locker is called by several goroutines while the lock ends,
// in every way in which it can. Nothing panics, and all agree on how it ended.
func TestF44EverythingAtOnce(t *testing.T) {
	const ttl = 2 * time.Second
	for what, end := range map[string]func(t *testing.T, srv *etcdtest.Server, l *etcdlock.Locker, k *etcdlock.Lock){
		"unlocked": func(*testing.T, *etcdtest.Server, *etcdlock.Locker, *etcdlock.Lock) {},
		"key deleted": func(t *testing.T, srv *etcdtest.Server, _ *etcdlock.Locker, k *etcdlock.Lock) {
			remove(t, srv, k.Key())
		},
		"lease revoked": func(t *testing.T, srv *etcdtest.Server, _ *etcdlock.Locker, k *etcdlock.Lock) {
			for _, kv := range keys(t, srv, k.Key()).Kvs { // none if it is unlocked already
				_, _ = srv.Admin().Revoke(testContext(t), clientv3.LeaseID(kv.Lease))
			}
		},
		"closed": func(t *testing.T, _ *etcdtest.Server, l *etcdlock.Locker, _ *etcdlock.Lock) {
			ended, cancel := context.WithCancel(testContext(t))
			cancel()
			_ = l.Close(ended)
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			srv := startClean(t, ttl+soon)
			client := srv.Client(t)
			for round := range 5 {
				l, err := etcdlock.New(client, etcdlock.WithTTL(ttl))
				if err != nil {
					t.Fatal(err)
				}
				callEverything(t, l, fmt.Sprint(round), func(k *etcdlock.Lock) { end(t, srv, l, k) })
				_ = l.Close(testContext(t)) // for the second time, or with locks left by then: no panic
			}
		})
	}
}

// callEverything calls everything on a lock of l before, while and after end runs.
func callEverything(t *testing.T, l *etcdlock.Locker, name string, end func(*etcdlock.Lock)) {
	t.Helper()
	ctx := testContext(t)
	k := mustLock(t, l, name)
	var wg sync.WaitGroup
	stop, ending := make(chan struct{}), make(chan struct{})
	until := func(f func()) {
		for range 2 {
			wg.Go(func() {
				defer func() {
					if r := recover(); r != nil {
						t.Errorf("panic: %v", r)
					}
				}()
				for {
					f()
					select {
					case <-stop:
						return
					case <-time.After(time.Millisecond): // or etcd would get no turn
					}
				}
			})
		}
	}
	var mu sync.Mutex
	outcomes := map[error]bool{}
	for _, f := range []func(){
		func() { _ = k.Check(ctx) },
		func() { _ = k.Require(time.Second) },
		func() { _, _ = k.Remaining(), context.Cause(k.Context()) },
		func() { _, _ = k.Txn(ctx).If(k.IsOwner()).Then(clientv3.OpGet(k.Key())).Commit() },
		func() { _ = fmt.Sprint(k, k.Name(), k.Key(), k.Token()) },
		func() { _, _ = l.Queue(ctx, name) },
		func() { _, _ = l.TryLock(k.Context(), name) }, // of its own hold
		func() { _ = l.Do(ctx, "y", func(context.Context, *etcdlock.Lock) error { return nil }) },
		func() {
			<-ending
			err := k.Unlock(ctx)
			mu.Lock()
			defer mu.Unlock()
			outcomes[err] = true
		},
	} {
		until(f)
	}
	pass(20 * time.Millisecond)
	close(ending)
	end(k)
	pass(20 * time.Millisecond)
	close(stop)
	wg.Wait()
	if len(outcomes) != 1 {
		t.Errorf("Unlock said %v", outcomes)
	}
	if k.Remaining() != 0 || k.Context().Err() == nil {
		t.Errorf("%v remaining, context: %v", k.Remaining(), k.Context().Err())
	}
	if err := k.Check(ctx); !errors.Is(err, etcdlock.ErrLost) && !errors.Is(err, etcdlock.ErrReleased) {
		t.Errorf("Check: %v", err)
	}
}

// TestF44NilContext: an error, not a panic, which could end a call in the middle; and Unlock releases all the same.
func TestF44NilContext(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	l := clientLocker(t, srv)
	k := mustLock(t, l, "x")
	var none context.Context
	for what, call := range map[string]func() error{
		"Lock":    func() error { _, err := l.Lock(none, "y"); return err },
		"TryLock": func() error { _, err := l.TryLock(none, "y"); return err },
		"Do": func() error {
			return l.Do(none, "y", func(context.Context, *etcdlock.Lock) error { t.Error("ran"); return nil })
		},
		"Queue": func() error { _, err := l.Queue(none, "y"); return err },
		"Close": func() error { return l.Close(none) },
		"Check": func() error { return k.Check(none) },
		"Txn":   func() error { _, err := k.Txn(none).Then(clientv3.OpPut("z", "")).Commit(); return err },
	} {
		wantText(t, what, call(), "nil context")
	}
	if err := k.Check(testContext(t)); err != nil {
		t.Errorf("Check: %v", err)
	}
	if err := k.Unlock(none); err != nil {
		t.Errorf("Unlock: %v", err)
	}
	mustUnlock(t, mustLock(t, clientLocker(t, srv), "x"))
}
