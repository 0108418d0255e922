package restore_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/fencing"
	"github.com/revfence/revfence/internal/locktest"
)

// TestF08RestoreWithBump: everything goes on. What was held is held on, or lost if the backup does not know it, and tokens
// rise, past all that were handed out.
func TestF08RestoreWithBump(t *testing.T) {
	t.Parallel()
	e := start(t, soon)
	l := e.locker(t, etcdlock.WithTTL(4*time.Second))
	gate := new(fencing.Gate)
	locktest.Unlock(t, locktest.Lock(t, l, "x", etcdlock.WithFences(gate)))
	inBackup := locktest.Lock(t, l, "held through it")
	backup := e.backup(t)
	last := cycles(t, l, "x", 20)
	afterBackup := locktest.Lock(t, l, "taken after it", etcdlock.WithFences(gate))

	e.restore(t, backup, "--bump-revision", "1000000000", "--mark-compacted")

	k := locktest.Lock(t, l, "x", etcdlock.WithFences(gate))
	if k.Token() <= last.Token() || k.Token() <= afterBackup.Token() {
		t.Errorf("token %d after %d and %d", k.Token(), last.Token(), afterBackup.Token())
	}
	fresh := locktest.Lock(t, e.locker(t), "y", etcdlock.WithFences(gate))
	if fresh.Token() <= k.Token() {
		t.Errorf("token %d after %d", fresh.Token(), k.Token())
	}
	lostSoon(t, afterBackup)
	if err := inBackup.Check(locktest.Context(t)); err != nil {
		t.Errorf("Check of a lock that the backup knows: %v", err)
	}
	select {
	case <-inBackup.Context().Done():
		t.Errorf("%v: a lock that the backup knows was lost", inBackup)
	case <-time.After(6 * time.Second): // it is renewed as before
	}
	locktest.Unlock(t, inBackup)
	locktest.Unlock(t, k)
	locktest.Unlock(t, fresh)
}

// TestF08RestoreWithoutBump: a process that has seen higher revisions hands out no lock, nor does one whose fence has. Each
// says what to do, and by what number; done that way, everything goes on.
func TestF08RestoreWithoutBump(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second
	e := start(t, ttl+soon) // the second restore brings a lease back that nobody knows any more
	l := e.locker(t, etcdlock.WithTTL(ttl))
	locktest.Unlock(t, locktest.Lock(t, l, "x"))
	backup := e.backup(t)
	before := e.Revision(t)
	gate := new(fencing.Gate)
	last := cycles(t, l, "x", 20)
	highest := locktest.Lock(t, l, "x", etcdlock.WithFences(gate))
	locktest.Unlock(t, highest)

	e.restore(t, backup)
	_, err := l.Lock(locktest.Context(t), "x")
	flags := told(t, "Lock", err)
	_, err = l.TryLock(locktest.Context(t), "x")
	told(t, "TryLock", err)
	_, err = e.locker(t).Lock(locktest.Context(t), "x", etcdlock.WithFences(gate))
	told(t, "Lock of a fresh process with a fence", err)
	e.AssertClean(t, "", soon) // neither what was refused nor what waited for use

	if len(flags) < 2 || flags[0] != "--bump-revision" {
		t.Fatalf("told to use %q", flags)
	}
	bump, err := strconv.ParseInt(flags[1], 10, 64)
	if err != nil || before+bump <= int64(highest.Token()) {
		t.Errorf("told to bump by %d, from %d, after token %d: %v", bump, before, highest.Token(), err)
	}
	e.restore(t, backup, flags...)
	k := locktest.Lock(t, l, "x", etcdlock.WithFences(gate))
	if k.Token() <= last.Token() || k.Token() <= highest.Token() {
		t.Errorf("token %d after %d", k.Token(), highest.Token())
	}
	locktest.Unlock(t, k)
}

// TestF08RestoreUpToTheSame: a token that is just the highest revision that the process has seen is refused as well, the
// next one is not.
func TestF08RestoreUpToTheSame(t *testing.T) {
	t.Parallel()
	e := start(t, soon)
	backup := e.backup(t)
	l := e.locker(t)
	for i := range 10 { // nothing is written after this by the one whose token is the highest
		if k := cycles(t, e.locker(t), "other", 1); i == 9 {
			e.advance(t, int64(k.Token())+5)
		}
	}
	seen := locktest.Lock(t, l, "x")
	highest := int64(seen.Token())

	e.restore(t, backup)
	lostSoon(t, seen)
	e.AssertClean(t, "", soon)
	e.advance(t, highest-1)
	k, err := l.Lock(locktest.Context(t), "y")
	if k != nil {
		t.Errorf("token %d, as before", k.Token())
	}
	told(t, "Lock", err)
	e.AssertClean(t, "", soon)
	k = locktest.Lock(t, l, "y")
	if int64(k.Token()) <= highest {
		t.Errorf("token %d after %d", k.Token(), highest)
	}
	locktest.Unlock(t, k)
}

// TestF08RestoredKeyBlocksForATTL: a key that its process had released comes back with the backup, on a lease that the process
// renews for later use. It blocks nobody for longer than a TTL, whether that process rests, works, or notices nothing.
func TestF08RestoredKeyBlocksForATTL(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second
	for _, test := range []struct {
		what  string
		flags []string
		busy  bool
	}{
		{"idle", nil, false},
		{"idle after a bump", []string{"--bump-revision", "1000000000", "--mark-compacted"}, false},
		{"busy after a bump", []string{"--bump-revision", "1000000000", "--mark-compacted"}, true},
	} {
		t.Run(test.what, func(t *testing.T) {
			t.Parallel()
			e := start(t, soon)
			l := e.locker(t, etcdlock.WithTTL(ttl))
			k := locktest.Lock(t, l, "x")
			<-time.After(ttl / 2) // it has been renewed by now
			backup := e.backup(t)
			locktest.Unlock(t, k)
			e.restore(t, backup, test.flags...)
			back := time.Now()
			if !e.has(t, k.Key()) {
				t.Error("the released key did not come back")
			}
			ctx := locktest.Context(t)
			stop, stopped := make(chan struct{}), make(chan error, 1)
			go func() {
				for test.busy {
					select {
					case <-stop:
						stopped <- nil
						return
					default:
					}
					if err := l.Do(ctx, "another", func(context.Context, *etcdlock.Lock) error { return nil }); err != nil {
						stopped <- err
						return
					}
				}
				stopped <- nil
			}()
			defer func() {
				close(stop)
				if err := <-stopped; err != nil {
					t.Errorf("the busy one: %v", err)
				}
			}()
			next := locktest.Lock(t, e.locker(t), "x")
			took := time.Since(back)
			t.Logf("free %v after the restore", took)
			if took > ttl+500*time.Millisecond { // etcd looks for expired leases every 500 ms
				t.Errorf("blocked for %v", took)
			}
			locktest.Unlock(t, next)
		})
	}
}

// TestF08RestoreUnseen shows what nobody can know: to a process that has seen nothing, without a fence, an etcd that was
// set back is as any other, and hands out tokens that are not above those of earlier holders.
func TestF08RestoreUnseen(t *testing.T) {
	t.Parallel()
	e := start(t, soon)
	backup := e.backup(t)
	last := cycles(t, e.locker(t), "x", 10)
	e.restore(t, backup)
	k := locktest.Lock(t, e.locker(t), "x")
	if k.Token() > last.Token() {
		t.Errorf("token %d after %d: this was meant to show that it is not above", k.Token(), last.Token())
	}
	locktest.Unlock(t, k)
}

// TestF08RestoreUpToTheMark shows the other limit: when a restored etcd, without a bump, has reached a fence's mark again,
// the next holder's token is the mark itself, which its owner may use again. The fence lets both in.
func TestF08RestoreUpToTheMark(t *testing.T) {
	t.Parallel()
	e := start(t, soon)
	backup := e.backup(t)
	gate := new(fencing.Gate)
	cycles(t, e.locker(t), "x", 10)
	former := locktest.Lock(t, e.locker(t), "x", etcdlock.WithFences(gate))
	locktest.Unlock(t, former)

	e.restore(t, backup)
	e.advance(t, int64(former.Token())-1)
	k := locktest.Lock(t, e.locker(t), "x", etcdlock.WithFences(gate))
	if k.Token() != former.Token() {
		t.Errorf("token %d, want %d once more", k.Token(), former.Token())
	}
	if err := gate.Advance(locktest.Context(t), former.Token()); err != nil {
		t.Errorf("the former holder: %v", err)
	}
	locktest.Unlock(t, k)
}
