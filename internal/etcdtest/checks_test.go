package etcdtest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
)

// recorder stands in for the test that a check is to fail.
type recorder struct {
	testing.TB
	errors   []string
	cleanups []func()
}

func (r *recorder) Helper()          {}
func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Logf(string, ...any) {
}
func (r *recorder) Errorf(f string, a ...any) { r.errors = append(r.errors, fmt.Sprintf(f, a...)) }

func (r *recorder) finish() string {
	for i := len(r.cleanups) - 1; i >= 0; i-- {
		r.cleanups[i]()
	}
	return strings.Join(r.errors, "\n")
}

func TestCheckClean(t *testing.T) {
	s := Start(t)
	s.CheckClean(t, 0)
	c := s.Admin()

	r := &recorder{TB: t}
	s.CheckClean(r, 0)
	lease, err := c.Grant(testContext(t), 60)
	if err != nil {
		t.Fatal(err)
	}
	put(t, c, "left/behind", clientv3.WithLease(lease.ID))
	got := r.finish()
	for _, want := range []string{`key "left/behind"`, fmt.Sprintf("lease %x", lease.ID), `keys ["left/behind"]`} {
		if !strings.Contains(got, want) {
			t.Errorf("report %q lacks %q", got, want)
		}
	}

	r = &recorder{TB: t}
	ctx, revoked := testContext(t), make(chan error, 1)
	time.AfterFunc(100*time.Millisecond, func() { // in the background, within the allowance
		_, err := c.Revoke(ctx, lease.ID)
		revoked <- err
	})
	if s.AssertClean(r, "", 10*time.Second); len(r.errors) > 0 {
		t.Errorf("did not wait: %v", r.errors)
	}
	if err := <-revoked; err != nil {
		t.Error(err)
	}

	put(t, c, "a/1")
	if s.AssertClean(r, "b/", 0); len(r.errors) > 0 {
		t.Errorf("a key under a/ counted for b/: %v", r.errors)
	}
	if s.AssertClean(r, "a/", 0); len(r.errors) != 1 {
		t.Errorf("the key under a/ was not reported: %v", r.errors)
	}
	if _, err := c.Delete(testContext(t), "a/1"); err != nil {
		t.Fatal(err)
	}
}

func TestLeaked(t *testing.T) {
	known := goleak.IgnoreCurrent()
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		<-stop
	}()
	if err := leaked(known, 0); err == nil {
		t.Error("a blocked goroutine was not reported")
	}
	close(stop)
	<-done
	if err := leaked(known, 5*time.Second); err != nil {
		t.Errorf("an ended goroutine was reported: %v", err)
	}
}

// TestLeakCheckBesideServer covers the arrangement of packages that start one server for all their tests: what the
// server does for a client that is closed must not be taken for a leak.
func TestLeakCheckBesideServer(t *testing.T) {
	s := Start(t)
	r := &recorder{TB: t}
	LeakCheck(r)
	t.Run("client", func(t *testing.T) {
		c := s.Client(t)
		put(t, c, "k")
		ch := c.Watch(t.Context(), "k")
		put(t, c, "k")
		<-ch
	})
	put(t, s.Admin(), "k")
	if got := r.finish(); got != "" {
		t.Error(got)
	}
}

func TestCounter(t *testing.T) {
	s := Start(t)
	var n Counter
	c := s.Client(t, Counted(&n))
	put(t, c, "k")
	before := n.Snapshot()
	put(t, c, "k")
	if _, err := c.Get(testContext(t), "k"); err != nil {
		t.Fatal(err)
	}
	lease, err := c.Grant(testContext(t), 60)
	if err != nil {
		t.Fatal(err)
	}
	ka, err := c.KeepAlive(t.Context(), lease.ID)
	if err != nil {
		t.Fatal(err)
	}
	<-ka
	got := n.Snapshot().Sub(before)
	want := "KV/Put=1 KV/Range=1 Lease/LeaseGrant=1 open Lease/LeaseKeepAlive=1 send Lease/LeaseKeepAlive=1"
	if got.String() != want || got.Calls() != 3 {
		t.Errorf("counted %q, %d calls, want %q, 3 calls", got, got.Calls(), want)
	}
	if got := before.String(); got != "KV/Put=1" {
		t.Errorf("an earlier snapshot changed to %q", got)
	}
}

func TestWatcherCount(t *testing.T) {
	s := Start(t)
	c := s.Client(t)
	before := s.WatcherCount(t)
	w := c.Watch(t.Context(), "k", clientv3.WithCreatedNotify())
	<-w
	if got := s.WatcherCount(t); got != before+1 {
		t.Errorf("%d watches after one was created, %d before", got, before)
	}
}

func TestAuthentication(t *testing.T) {
	s := Start(t)
	c, ctx := s.Admin(), testContext(t)
	for _, step := range []func() error{
		func() error { _, err := c.UserAdd(ctx, "root", "secret"); return err },
		func() error { _, err := c.RoleAdd(ctx, "root"); return err },
		func() error { _, err := c.UserGrantRole(ctx, "root", "root"); return err },
		func() error { _, err := c.AuthEnable(ctx); return err },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	put(t, s.Client(t, AsUser("root", "secret")), "k")
	if _, err := s.Client(t).Put(ctx, "k", "v"); err == nil {
		t.Error("a client without a user wrote")
	}
}
