package etcdlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/revfence/revfence/etcdlock"
)

// TestF11RenewalOutlivesContext: the context given to Lock bounds the wait for the lock and nothing else, and neither
// does that of another Locker's end on the same client.
func TestF11RenewalOutlivesContext(t *testing.T) {
	t.Parallel()
	const ttl, limitedTo = 4 * time.Second, 2 * time.Second
	srv := startClean(t, soon)
	for name, take := range map[string]func(t *testing.T, l *etcdlock.Locker, ctx context.Context, name string) *etcdlock.Lock{
		"lock": func(t *testing.T, l *etcdlock.Locker, ctx context.Context, name string) *etcdlock.Lock {
			k, err := l.Lock(ctx, name)
			if err != nil {
				t.Fatal(err)
			}
			return k
		},
		"trylock": func(t *testing.T, l *etcdlock.Locker, ctx context.Context, name string) *etcdlock.Lock {
			k, err := l.TryLock(ctx, name)
			if err != nil {
				t.Fatal(err)
			}
			return k
		},
		"idle-lease": func(t *testing.T, l *etcdlock.Locker, ctx context.Context, name string) *etcdlock.Lock {
			first, err := l.Lock(ctx, name)
			if err != nil {
				t.Fatal(err)
			}
			mustUnlock(t, first)
			k, err := l.Lock(ctx, name)
			if err != nil {
				t.Fatal(err)
			}
			if k.Key() != first.Key() {
				t.Errorf("keys %s and %s: the lease was not used again", first.Key(), k.Key())
			}
			return k
		},
		"waited": func(t *testing.T, l *etcdlock.Locker, ctx context.Context, name string) *etcdlock.Lock {
			before := mustLock(t, clientLocker(t, srv), name)
			defer func() { _ = before.Unlock(testContext(t)) }()
			next := goLock(ctx, l, name)
			awaitKeys(t, srv, "/revfence/"+name+"/", 2)
			mustUnlock(t, before)
			return granted(t, next)
		},
	} {
		for ends, limit := range map[string]func(context.Context) (context.Context, context.CancelFunc){
			"-deadline": func(ctx context.Context) (context.Context, context.CancelFunc) {
				return context.WithTimeout(ctx, limitedTo)
			},
			"-cancel": func(ctx context.Context) (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancel(ctx)
				time.AfterFunc(limitedTo, cancel)
				return ctx, cancel
			},
		} {
			t.Run(name+ends, func(t *testing.T) {
				t.Parallel()
				c := srv.Client(t)
				l := newLocker(t, c, etcdlock.WithTTL(ttl))
				other, err := etcdlock.New(c, etcdlock.WithTTL(ttl))
				if err != nil {
					t.Fatal(err)
				}
				mustUnlock(t, mustLock(t, other, "other"+ends+name))

				ctx, cancel := limit(testContext(t))
				defer cancel()
				k := take(t, l, ctx, name+ends)
				defer func() { _ = k.Unlock(testContext(t)) }() // so that a failure does not keep Close waiting
				lease := leaseOf(t, srv, k)
				receive(t, "end of the context given to Lock", ctx.Done())
				_ = other.Close(ctx) // may say that it was not given the time to revoke its lease
				pass(2*ttl + 500*time.Millisecond)

				live(t, k)
				if left := k.Remaining(); left <= 0 {
					t.Errorf("%v remaining", left)
				}
				kvs := keys(t, srv, k.Key()).Kvs
				if len(kvs) != 1 || kvs[0].CreateRevision != int64(k.Token()) || kvs[0].Lease != int64(lease) {
					t.Errorf("keys %v, want the one of token %d on lease %x", kvs, k.Token(), lease)
				}
				if err := k.Check(testContext(t)); err != nil {
					t.Errorf("Check: %v", err)
				}
				mustUnlock(t, k)
			})
		}
	}
}
