// Package locktest has what the integration tests, each a package or a module of its own, do with every lock.
package locktest

import (
	"context"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/revfence/revfence/etcdlock"
)

// Limit bounds every call that a test expects to end by itself.
const Limit = 60 * time.Second

// Context returns a context that ends after Limit, or with the test.
func Context(tb testing.TB) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Limit)
	tb.Cleanup(cancel)
	return ctx
}

// New returns a Locker that is closed at the end of the test.
func New(tb testing.TB, c *clientv3.Client, opts ...etcdlock.Option) *etcdlock.Locker {
	tb.Helper()
	l, err := etcdlock.New(c, opts...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := l.Close(Context(tb)); err != nil {
			tb.Errorf("Close: %v", err)
		}
	})
	return l
}

// Lock takes a name, or ends the test. It belongs on the test's goroutine.
func Lock(tb testing.TB, l *etcdlock.Locker, name string, opts ...etcdlock.LockOption) *etcdlock.Lock {
	tb.Helper()
	k, err := l.Lock(Context(tb), name, opts...)
	if err != nil {
		tb.Fatalf("Lock %q: %v", name, err)
	}
	return k
}

// Unlock releases a lock, and fails the test if that was lost.
func Unlock(tb testing.TB, k *etcdlock.Lock) {
	tb.Helper()
	if err := k.Unlock(Context(tb)); err != nil {
		tb.Errorf("Unlock %q: %v", k.Name(), err)
	}
}
