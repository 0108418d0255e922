package etcdlock_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/fencing"
)

// TestF01Contention: 100 goroutines of each of three Lockers count with a read, a pause and a write, which loses counts
// unless one at a time is inside. Meanwhile nobody else gets the lock by trying, of the same Locker least of all.
func TestF01Contention(t *testing.T) {
	const lockers, goroutines = 3, 100
	srv := startClean(t, soon)
	ctx := testContext(t)

	var inside, count, tried atomic.Int32
	var mu sync.Mutex
	var tokens []fencing.Token
	work := func(l *etcdlock.Locker) {
		k, err := l.Lock(ctx, "count")
		if err != nil {
			t.Errorf("Lock: %v", err)
			return
		}
		if n := inside.Add(1); n != 1 {
			t.Errorf("%d are inside", n)
		}
		mu.Lock()
		tokens = append(tokens, k.Token())
		mu.Unlock()
		before := count.Load()
		if before%10 == 0 {
			tried.Add(1)
			if k, err := l.TryLock(ctx, "count"); k != nil || !errors.Is(err, etcdlock.ErrLocked) {
				t.Errorf("TryLock beside the holder: %v, %v", k, err)
			}
		}
		pass(100 * time.Microsecond)
		count.Store(before + 1)
		inside.Add(-1)
		if err := k.Unlock(ctx); err != nil {
			t.Errorf("Unlock: %v", err)
		}
	}
	var wg sync.WaitGroup
	for range lockers {
		l := clientLocker(t, srv)
		for range goroutines {
			wg.Go(func() { work(l) })
		}
	}
	wg.Wait()

	if got := count.Load(); got != lockers*goroutines {
		t.Errorf("counted to %d, want %d", got, lockers*goroutines)
	}
	if tried.Load() == 0 {
		t.Error("nobody tried")
	}
	if len(tokens) != lockers*goroutines {
		t.Errorf("%d grants, want %d", len(tokens), lockers*goroutines)
	}
	for i := 1; i < len(tokens); i++ {
		if tokens[i] <= tokens[i-1] {
			t.Fatalf("token %d was granted after %d", tokens[i], tokens[i-1])
		}
	}
}

// TestManyNamesAtOnce: names do not wait for each other.
func TestManyNamesAtOnce(t *testing.T) {
	srv := startClean(t, soon)
	l := clientLocker(t, srv)
	var locks []*etcdlock.Lock
	for i := range 50 {
		locks = append(locks, mustLock(t, l, fmt.Sprint(i)))
	}
	for _, k := range locks {
		live(t, k)
		mustUnlock(t, k)
	}
}
