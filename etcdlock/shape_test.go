//go:build unix

package etcdlock_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"golang.org/x/sys/unix"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/etcdtest"
)

// What a process pays for the locks it holds, beside etcd's own sessions and mutexes. Only the client counts: the server
// is a process of its own. The default run tries it with 200 locks for a second. The real figures come from
//
//	go test -run TestShape -shape -v -timeout 30m ./etcdlock

var shape = flag.Bool("shape", false, "make TestShape hold 10 000 locks of each kind for a minute instead of 200 for a second")

// A shapeLimit bounds what one hold may cost: above what is measured, also under the race detector, by enough not to
// depend on the run.
type shapeLimit struct {
	goroutines float64
	bytes      float64
}

var (
	ownShape    = shapeLimit{goroutines: 4, bytes: 32 << 10}
	sharedShape = shapeLimit{goroutines: 3, bytes: 24 << 10}
)

func TestShape(t *testing.T) {
	locks, hold := 200, time.Second
	if *shape {
		locks, hold = 10_000, time.Minute
	}
	for _, c := range []struct {
		name string
		take func(testing.TB, *clientv3.Client, int) holds
		most shapeLimit // none if zero
	}{
		{"OwnLeases", takeOurs(), ownShape},
		{"SharedLeases", takeOurs(etcdlock.WithSharedLeases(100)), sharedShape},
		{"Stock", takeStock, shapeLimit{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var calls etcdtest.Counter
			client := remoteClient(t, serverProcess(t), etcdtest.Counted(&calls))
			if _, err := client.Get(testContext(t), "warm"); err != nil {
				t.Fatal(err)
			}
			before, from := footprint(), time.Now()
			h := c.take(t, client, locks)
			taking := time.Since(from)
			<-time.After(1200 * time.Millisecond) // holds older than a second have their watches
			after := footprint()
			if *shape {
				t.Logf("goroutines by origin: %v", origins(locks/2))
			}
			sent, cpu, from := calls.Snapshot(), cpuTime(t), time.Now()
			<-time.After(hold)
			d, used, took := calls.Snapshot().Sub(sent), cpuTime(t)-cpu, time.Since(from)
			lost := h.lost()
			from = time.Now()
			h.release()
			t.Logf("%d locks: %.2f goroutines and %.1f KB (heap %.1f, stacks %.1f) per hold; %.1f renewals and %.1f calls/s; %.1f %% of a processor; "+
				"%d lost in %v; taken in %v, released in %v",
				locks, float64(after.goroutines-before.goroutines)/float64(locks), float64(after.bytes()-before.bytes())/1024/float64(locks),
				float64(after.heap-before.heap)/1024/float64(locks), float64(after.stacks-before.stacks)/1024/float64(locks),
				float64(d.Sent[etcdtest.KeepAlive])/took.Seconds(), float64(d.Calls())/took.Seconds(), 100*used.Seconds()/took.Seconds(),
				lost, took.Round(time.Second), taking.Round(time.Millisecond), time.Since(from).Round(time.Millisecond))
			if lost > 0 {
				t.Errorf("%d of %d locks lost", lost, locks)
			}
			if c.most == (shapeLimit{}) {
				return
			}
			if n := float64(after.goroutines-before.goroutines) / float64(locks); n > c.most.goroutines {
				t.Errorf("%.1f goroutines per hold, at most %.0f are allowed", n, c.most.goroutines)
			}
			if n := float64(after.bytes()-before.bytes()) / float64(locks); n > c.most.bytes {
				t.Errorf("%.0f bytes per hold, at most %.0f are allowed", n, c.most.bytes)
			}
		})
	}
}

// Locks of one kind, all held.
type holds struct {
	lost    func() int
	release func()
}

// shapeWorkers take and release locks at the same time.
const shapeWorkers = 32

// spread calls f for 0 to n-1 on a few goroutines.
func spread(tb testing.TB, n int, f func(i int) error) {
	tb.Helper()
	next := make(chan int)
	var wg sync.WaitGroup
	for range shapeWorkers {
		wg.Go(func() {
			for i := range next {
				if err := f(i); err != nil {
					tb.Errorf("lock %d: %v", i, err)
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
}

// longContext is for locks by the thousand.
func longContext(tb testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	tb.Cleanup(cancel)
	return ctx
}

func takeOurs(opts ...etcdlock.Option) func(testing.TB, *clientv3.Client, int) holds {
	return func(tb testing.TB, c *clientv3.Client, n int) holds {
		ctx := longContext(tb)
		l := newLocker(tb, c, opts...)
		held := make([]*etcdlock.Lock, n)
		spread(tb, n, func(i int) (err error) {
			held[i], err = l.Lock(ctx, fmt.Sprint("shape", i))
			return err
		})
		if tb.Failed() {
			tb.FailNow()
		}
		return holds{
			lost: func() (lost int) {
				for _, k := range held {
					if k.Remaining() == 0 || k.Context().Err() != nil {
						lost++
					}
				}
				return lost
			},
			release: func() {
				spread(tb, n, func(i int) error { return held[i].Unlock(ctx) })
				if err := l.Close(ctx); err != nil {
					tb.Error(err)
				}
			},
		}
	}
}

// takeStock takes locks with a session each, at our default TTL, since two holds of one process must not share one.
func takeStock(tb testing.TB, c *clientv3.Client, n int) holds {
	ctx := longContext(tb)
	sessions := make([]*concurrency.Session, n)
	spread(tb, n, func(i int) error {
		s, err := concurrency.NewSession(c, concurrency.WithTTL(30))
		if err != nil {
			return err
		}
		sessions[i] = s
		return concurrency.NewMutex(s, fmt.Sprint("/stock/shape", i)).Lock(ctx)
	})
	if tb.Failed() {
		tb.FailNow()
	}
	return holds{
		lost: func() (lost int) {
			for _, s := range sessions {
				select {
				case <-s.Done():
					lost++
				default:
				}
			}
			return lost
		},
		release: func() {
			spread(tb, n, func(i int) error {
				if err := sessions[i].Close(); !errors.Is(err, context.Canceled) {
					return err
				}
				return nil
			})
		},
	}
}

// A size is what the process uses at a moment.
type size struct {
	goroutines   int
	heap, stacks int64
}

func (s size) bytes() int64 { return s.heap + s.stacks }

func footprint() size {
	runtime.GC()
	runtime.GC() // the first only begins to empty the pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return size{runtime.NumGoroutine(), int64(m.HeapAlloc), int64(m.StackInuse)}
}

// origins counts goroutines by the function that started them, from a minimum on.
func origins(least int) string {
	buf := make([]byte, 256<<20)
	count := map[string]int{}
	for g := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if _, by, ok := strings.Cut(g, "created by "); ok {
			by, _, _ = strings.Cut(by, "\n")
			by, _, _ = strings.Cut(by, " in goroutine")
			count[by]++
		}
	}
	var out []string
	for _, by := range slices.Sorted(maps.Keys(count)) {
		if count[by] >= least {
			out = append(out, fmt.Sprintf("%d %s", count[by], by))
		}
	}
	return strings.Join(out, "; ")
}

// cpuTime is what the process has used of the processors so far.
func cpuTime(tb testing.TB) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
