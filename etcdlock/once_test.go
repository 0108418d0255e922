package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/etcdtest"
)

// removeMarks deletes, before the server is looked through for leftovers, the marks that are meant to stay.
func removeMarks(t *testing.T, srv *etcdtest.Server) {
	t.Cleanup(func() {
		for _, kv := range keys(t, srv, "/revfence/%done/").Kvs {
			remove(t, srv, string(kv.Key))
			if kv.Lease != 0 {
				if _, err := srv.Admin().Revoke(testContext(t), clientv3.LeaseID(kv.Lease)); err != nil {
					t.Error(err)
				}
			}
		}
	})
}

// runs counts how often each slot's function ran.
type runs struct {
	mu sync.Mutex
	n  map[string]int
}

func (r *runs) job(slot string, err error) func(context.Context, *etcdlock.Lock) error {
	return func(context.Context, *etcdlock.Lock) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.n == nil {
			r.n = map[string]int{}
		}
		r.n[slot]++
		return err
	}
}

func (r *runs) want(t *testing.T, slot string, n int) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.n[slot] != n {
		t.Errorf("slot %q ran %d times, want %d", slot, r.n[slot], n)
	}
}

// TestF17OncePerSlot: processes whose ticks are skewed by many times what the job takes, so that each finds the lock free.
func TestF17OncePerSlot(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	removeMarks(t, srv)
	var r runs
	var wg sync.WaitGroup
	for i, skew := range []time.Duration{0, 0, 60 * time.Millisecond, 120 * time.Millisecond} {
		l := clientLocker(t, srv, etcdlock.WithIdentity(fmt.Sprintf("node-%d", i)))
		wg.Go(func() {
			pass(skew)
			for tick := range 5 {
				slot := fmt.Sprintf("tick/%d", tick)
				if err := l.Once(testContext(t), "job", slot, r.job(slot, nil)); err != nil {
					t.Errorf("node %d, %s: %v", i, slot, err)
				}
				pass(30 * time.Millisecond)
			}
		})
	}
	wg.Wait()
	for tick := range 5 {
		r.want(t, fmt.Sprintf("tick/%d", tick), 1)
	}
	marks := keys(t, srv, "/revfence/%done/job/").Kvs
	if len(marks) != 5 {
		t.Errorf("%d marks for 5 slots", len(marks))
	}
	for _, kv := range marks {
		token, rest, _ := strings.Cut(string(kv.Value), " ")
		when, by, _ := strings.Cut(rest, " ")
		if _, err := time.Parse(time.RFC3339, when); err != nil || token == "" || !strings.HasPrefix(by, "node-") || kv.Lease != 0 {
			t.Errorf("mark %s has value %q and lease %x", kv.Key, kv.Value, kv.Lease)
		}
	}
	// What is done costs one read.
	var counter etcdtest.Counter
	l := newLocker(t, srv.Client(t, etcdtest.Counted(&counter)))
	if err := l.Once(testContext(t), "job", "tick/0", r.job("tick/0", nil)); err != nil {
		t.Error(err)
	}
	if c := counter.Snapshot(); c.Calls() != 1 {
		t.Errorf("a slot that is done costs %v", c)
	}
	// An operator has one run again.
	if key := l.MarkKey("job", "tick/0"); key != "/revfence/%done/job/tick%2F0" {
		t.Errorf("mark at %q", key)
	}
	remove(t, srv, l.MarkKey("job", "tick/0"))
	if err := l.Once(testContext(t), "job", "tick/0", r.job("tick/0", nil)); err != nil {
		t.Error(err)
	}
	r.want(t, "tick/0", 2)
}

// TestOnceWaits: who comes while the function runs waits for its outcome, and makes up for a failure.
func TestOnceWaits(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	removeMarks(t, srv)
	first, second := clientLocker(t, srv), clientLocker(t, srv)
	for slot, outcome := range map[string]error{"well": nil, "ill": errors.New("no paper")} {
		var r runs
		running, finish, done := make(chan struct{}), make(chan struct{}), make(chan error, 2)
		go func() {
			done <- first.Once(testContext(t), "job", slot, func(context.Context, *etcdlock.Lock) error {
				close(running)
				<-finish
				return outcome
			})
		}()
		<-running
		late := make(chan error, 1)
		go func() { late <- second.Once(testContext(t), "job", slot, r.job(slot, nil)) }()
		awaitKeys(t, srv, "/revfence/job/", 2)
		close(finish)
		if err := receive(t, "first", done); !errors.Is(err, outcome) {
			t.Errorf("%s: first: %v", slot, err)
		}
		if err := receive(t, "second", late); err != nil {
			t.Errorf("%s: second: %v", slot, err)
		}
		if outcome == nil {
			r.want(t, slot, 0)
		} else {
			r.want(t, slot, 1)
		}
	}
}

// TestOnceAfterPanic: a slot whose function panicked is open.
func TestOnceAfterPanic(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	removeMarks(t, srv)
	l := clientLocker(t, srv)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		l.Once(testContext(t), "job", "s", func(context.Context, *etcdlock.Lock) error { panic("job") })
	}()
	var r runs
	if err := l.Once(testContext(t), "job", "s", r.job("s", nil)); err != nil {
		t.Error(err)
	}
	r.want(t, "s", 1)
}

// TestOnceLost: a holder that has lost the lock marks nothing, and the next one starts again.
func TestOnceLost(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	removeMarks(t, srv)
	l := clientLocker(t, srv)
	err := l.Once(testContext(t), "job", "s", func(_ context.Context, k *etcdlock.Lock) error {
		remove(t, srv, k.Key())
		return nil
	})
	wantIs(t, "Once", err, etcdlock.ErrLost)
	if errors.Is(err, etcdlock.ErrUnknown) {
		t.Errorf("unknown: %v", err)
	}
	if n := len(keys(t, srv, "/revfence/%done/").Kvs); n != 0 {
		t.Errorf("%d marks after the loss", n)
	}
	var r runs
	if err := clientLocker(t, srv).Once(testContext(t), "job", "s", r.job("s", nil)); err != nil {
		t.Error(err)
	}
	r.want(t, "s", 1)
}

// TestOnceAfterCancel: a function that has finished its work all the same gets its mark.
func TestOnceAfterCancel(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	removeMarks(t, srv)
	l := clientLocker(t, srv)
	ctx, cancel := context.WithCancel(testContext(t))
	if err := l.Once(ctx, "job", "s", func(context.Context, *etcdlock.Lock) error { cancel(); return nil }); err != nil {
		t.Error(err)
	}
	var r runs
	if err := l.Once(testContext(t), "job", "s", r.job("s", nil)); err != nil {
		t.Error(err)
	}
	r.want(t, "s", 0)
	wantIs(t, "Once under a dead context", l.Once(ctx, "job", "other", r.job("other", nil)), context.Canceled)
	r.want(t, "other", 0)
}

// TestOnceMarkFirst: a function that failed is not run again.
func TestOnceMarkFirst(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	removeMarks(t, srv)
	l := clientLocker(t, srv)
	var r runs
	boom := errors.New("boom")
	wantIs(t, "first", l.Once(testContext(t), "job", "s", r.job("s", boom), etcdlock.WithMarkFirst()), boom)
	for range 2 {
		if err := l.Once(testContext(t), "job", "s", r.job("s", nil), etcdlock.WithMarkFirst()); err != nil {
			t.Error(err)
		}
	}
	r.want(t, "s", 1)
}

// TestOnceMarkTTL: the mark goes after its time, and no lease of it is left when the slot was done by another.
func TestOnceMarkTTL(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	l := clientLocker(t, srv)
	var r runs
	once := func() {
		t.Helper()
		if err := l.Once(testContext(t), "job", "s", r.job("s", nil), etcdlock.WithMarkTTL(1500*time.Millisecond)); err != nil {
			t.Error(err)
		}
	}
	once()
	once()
	r.want(t, "s", 1)
	awaitKeys(t, srv, "/revfence/%done/", 0)
	once()
	r.want(t, "s", 2)
	awaitKeys(t, srv, "/revfence/%done/", 0)

	// Somebody else's mark comes in between: the lease that was to carry ours is revoked.
	err := l.Once(testContext(t), "job", "other", func(context.Context, *etcdlock.Lock) error {
		put(t, srv, "/revfence/%done/job/other", "1 somebody")
		return nil
	}, etcdlock.WithMarkTTL(time.Hour))
	if err != nil {
		t.Error(err)
	}
	remove(t, srv, "/revfence/%done/job/other")
}

func TestOnceBadCalls(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	removeMarks(t, srv)
	l := clientLocker(t, srv)
	ctx := testContext(t)
	var r runs
	fn := r.job("s", nil)
	wantText(t, "nil function", l.Once(ctx, "job", "s", nil), "nil function")
	wantText(t, "no name", l.Once(ctx, "", "s", fn), "empty lock name")
	wantText(t, "no slot", l.Once(ctx, "job", "", fn), "1 to 1024")
	wantText(t, "long slot", l.Once(ctx, "job", strings.Repeat("s", 1025), fn), "1 to 1024")
	wantText(t, "nil option", l.Once(ctx, "job", "s", fn, nil), "nil OnceOption")
	wantText(t, "nil fence", l.Once(ctx, "job", "s", fn, etcdlock.WithFences(nil)), "nil Fence")
	for _, d := range []time.Duration{0, -time.Second, 101 * 365 * 24 * time.Hour} {
		wantText(t, d.String(), l.Once(ctx, "job", "s", fn, etcdlock.WithMarkTTL(d)), "must be above 0")
	}
	r.want(t, "s", 0)
	// The longest time that is allowed, etcd allows as well.
	if err := l.Once(ctx, "job", "s", fn, etcdlock.WithMarkTTL(100*365*24*time.Hour)); err != nil {
		t.Error(err)
	}
	if err := l.Close(ctx); err != nil {
		t.Fatal(err)
	}
	wantIs(t, "after Close", l.Once(ctx, "job", "s", fn), etcdlock.ErrClosed)
}
