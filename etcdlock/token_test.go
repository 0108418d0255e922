package etcdlock_test

import (
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/fencing"
)

// TestF16TokenIsCreateRevision: the token is the create revision of the lock's key, not the revision of some answer, which
// runs ahead when others write; and it rises from holder to holder.
func TestF16TokenIsCreateRevision(t *testing.T) {
	const lockers, rounds = 4, 15
	srv := startClean(t, soon)
	ctx := testContext(t)

	var quiet atomic.Bool
	var writers, wg sync.WaitGroup
	for i := range 2 {
		c := srv.Client(t)
		writers.Go(func() {
			for n := 0; !quiet.Load(); n++ {
				if _, err := c.Put(ctx, "unrelated/"+strconv.Itoa(i), strconv.Itoa(n)); err != nil {
					t.Errorf("Put: %v", err)
					return
				}
			}
		})
	}
	var last fencing.Token // guarded by the lock itself
	var mu sync.Mutex      // for the race detector, which does not know of that
	round := func(l *etcdlock.Locker) bool {
		k, err := l.Lock(ctx, "x")
		if err != nil {
			t.Errorf("Lock: %v", err)
			return false
		}
		defer func() {
			if err := k.Unlock(ctx); err != nil {
				t.Errorf("Unlock: %v", err)
			}
		}()
		token := k.Token()
		mu.Lock()
		if token <= last {
			t.Errorf("token %d after %d", token, last)
		}
		last = token
		mu.Unlock()
		before, err := srv.Admin().Get(ctx, k.Key())
		if err != nil || len(before.Kvs) != 1 {
			t.Errorf("key of the lock: %v, %v", before, err)
			return false
		}
		if err := k.Check(ctx); err != nil {
			t.Errorf("Check: %v", err)
		}
		after, err := srv.Admin().Get(ctx, k.Key())
		if err != nil || len(after.Kvs) != 1 {
			t.Errorf("key of the lock: %v, %v", after, err)
			return false
		}
		b, a := before.Kvs[0], after.Kvs[0]
		if b.CreateRevision != int64(token) || a.CreateRevision != int64(token) || k.Token() != token {
			t.Errorf("create revision %d, then %d after Check; token %d, then %d", b.CreateRevision, a.CreateRevision, token, k.Token())
		}
		if a.ModRevision <= b.ModRevision || string(a.Value) != string(b.Value) || a.Lease != b.Lease {
			t.Errorf("Check must write and change nothing: from %v to %v", b, a)
		}
		return true
	}
	for range lockers {
		l := clientLocker(t, srv)
		wg.Go(func() {
			for range rounds {
				if !round(l) {
					return
				}
			}
		})
	}
	wg.Wait()
	quiet.Store(true)
	writers.Wait()
	remove(t, srv, "unrelated/0")
	remove(t, srv, "unrelated/1")
}

// TestLockString: what a log line that prints a lock shows.
func TestLockString(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	k := mustLock(t, clientLocker(t, srv), "nightly/billing")
	want := fmt.Sprintf(`lock "nightly/billing" (token %d)`, int64(k.Token()))
	if got := k.String(); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	mustUnlock(t, k)
	if got := fmt.Sprint(k); got != want {
		t.Errorf("once released: %s, want %s", got, want)
	}
}
