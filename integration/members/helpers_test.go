//go:build unix

package members_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/faultkit"
	"github.com/revfence/revfence/internal/locktest"
)

// cleanWithin is the time in which nothing of a test's locks may be left in etcd: a lease that was lost with its quorum
// lives for its TTL again.
const cleanWithin = 30 * time.Second

// starting lets clusters start one after the other: three servers keep two processors busy for as long as they do.
var starting sync.Mutex

// startCluster runs n members that must be empty again at the end.
func startCluster(t testing.TB, n int) *faultkit.Cluster {
	t.Helper()
	starting.Lock()
	defer starting.Unlock()
	c := faultkit.StartCluster(t, n, nil)
	c.CheckClean(t, cleanWithin)
	return c
}

// result is what a Lock on another goroutine came to.
type result struct {
	lock *etcdlock.Lock
	err  error
	at   time.Time
}

// goLock calls Lock on a goroutine of its own.
func goLock(ctx context.Context, l *etcdlock.Locker, name string) <-chan result {
	out := make(chan result, 1)
	go func() {
		k, err := l.Lock(ctx, name)
		out <- result{k, err, time.Now()}
	}()
	return out
}

// receive waits for a value for no longer than a test should take.
func receive[T any](t testing.TB, what string, c <-chan T) T {
	t.Helper()
	timer := time.NewTimer(locktest.Limit)
	defer timer.Stop()
	select {
	case v := <-c:
		return v
	case <-timer.C:
		t.Fatalf("%s: nothing after %v", what, locktest.Limit)
		panic("unreachable")
	}
}

// granted waits for goLock to succeed.
func granted(t testing.TB, c <-chan result) *etcdlock.Lock {
	t.Helper()
	r := receive(t, "Lock", c)
	if r.err != nil {
		t.Fatalf("Lock: %v", r.err)
	}
	return r.lock
}

// eventually polls until cond holds.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(locktest.Limit)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", locktest.Limit, what)
		}
		<-tick.C
	}
}

// pass lets time go by, where the passing of time is what is tested.
func pass(d time.Duration) { <-time.After(d) }

// wantLost returns what err says about the loss of k.
func wantLost(t testing.TB, what string, k *etcdlock.Lock, err error) *etcdlock.LostError {
	t.Helper()
	var lost *etcdlock.LostError
	if !errors.As(err, &lost) || lost.Token != k.Token() || lost.Reason == 0 {
		t.Fatalf("%s: %v, want the loss of token %v and its reason", what, err, k.Token())
	}
	return lost
}
