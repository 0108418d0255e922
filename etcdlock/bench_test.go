package etcdlock_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"text/tabwriter"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/etcdtest"
)

// The benchmarks compare with etcd's own lock, a concurrency.Mutex on a session per contender, and with the floor: what
// single calls of etcd cost. All run on one member that syncs its log to disk, in this process, each contender with a
// client of its own:
//
//	go test -run '^$' -bench . ./etcdlock
//
// Disks are noisy. BenchmarkRatios measures everything in turns, many times, and prints the ratios of the medians:
//
//	go test ./etcdlock -run '^$' -bench Ratios -ratio-rounds 15

var (
	disk = flag.String("disk", "", "directory on a real disk where the benchmarks' etcd keeps its data; the default is the "+
		"test's temporary directory, where syncing may be free")
	ratioRounds = flag.Int("ratio-rounds", 9, "how many times BenchmarkRatios measures everything")
)

func benchServer(b *testing.B) *etcdtest.Server {
	b.Helper()
	return startClean(b, soon, etcdtest.WithFsync(*disk))
}

// A lockable locks and unlocks one name once.
type lockable func(ctx context.Context) error

func ourLock(b *testing.B, srv *etcdtest.Server, name string) lockable {
	l := clientLocker(b, srv)
	return func(ctx context.Context) error {
		k, err := l.Lock(ctx, name)
		if err != nil {
			return err
		}
		return k.Unlock(ctx)
	}
}

func stockSession(b *testing.B, srv *etcdtest.Server) *concurrency.Session {
	s, err := concurrency.NewSession(srv.Client(b))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := s.Close(); err != nil {
			b.Error(err)
		}
	})
	return s
}

func stockLock(b *testing.B, srv *etcdtest.Server, name string) lockable {
	m := concurrency.NewMutex(stockSession(b, srv), "/stock/"+name)
	return func(ctx context.Context) error {
		if err := m.Lock(ctx); err != nil {
			return err
		}
		return m.Unlock(ctx)
	}
}

var contestants = []struct {
	name string
	lock func(*testing.B, *etcdtest.Server, string) lockable
}{{"revfence", ourLock}, {"stock", stockLock}}

// contend makes n hand-offs among contenders, each of which takes its turn as soon as it gets it.
func contend(b *testing.B, contenders []lockable, n int) {
	var left atomic.Int64
	left.Store(int64(n))
	var wg sync.WaitGroup
	for _, once := range contenders {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if err := once(context.Background()); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// crowd returns contenders that have all locked once, each a name of its own, so that none starts cold.
func crowd(b *testing.B, srv *etcdtest.Server, n int, lock func(*testing.B, *etcdtest.Server, string) lockable) []lockable {
	all := make([]lockable, n)
	for i := range all {
		all[i] = lock(b, srv, fmt.Sprint("contended by ", n))
	}
	contend(b, all, 2*n)
	return all
}

func BenchmarkHandoff(b *testing.B) {
	for _, n := range []int{2, 10} {
		for _, c := range contestants {
			b.Run(fmt.Sprintf("%d/%s", n, c.name), func(b *testing.B) {
				all := crowd(b, benchServer(b), n, c.lock)
				b.ResetTimer()
				contend(b, all, b.N)
				b.StopTimer()
			})
		}
	}
}

func BenchmarkUncontended(b *testing.B) {
	for _, c := range contestants {
		b.Run(c.name, func(b *testing.B) {
			one := crowd(b, benchServer(b), 1, c.lock)
			b.ReportAllocs() // the server's included
			b.ResetTimer()
			contend(b, one, b.N)
			b.StopTimer()
		})
	}
}

func BenchmarkTryLockBusy(b *testing.B) {
	for _, c := range contestants {
		b.Run(c.name, func(b *testing.B) {
			try := busyTryLock(b, benchServer(b), c.name)
			b.ResetTimer()
			for range b.N {
				try()
			}
			b.StopTimer()
		})
	}
}

// busyTryLock returns a TryLock of a name that another client holds.
func busyTryLock(b *testing.B, srv *etcdtest.Server, whose string) func() {
	ctx := context.Background()
	if whose == "stock" {
		if err := concurrency.NewMutex(stockSession(b, srv), "/stock/busy").Lock(ctx); err != nil {
			b.Fatal(err)
		}
		m := concurrency.NewMutex(stockSession(b, srv), "/stock/busy")
		return func() {
			if err := m.TryLock(ctx); !errors.Is(err, concurrency.ErrLocked) {
				b.Fatal(err)
			}
		}
	}
	k := mustLock(b, clientLocker(b, srv), "busy")
	b.Cleanup(func() { mustUnlock(b, k) })
	l := clientLocker(b, srv)
	return func() {
		if _, err := l.TryLock(ctx, "busy"); !errors.Is(err, etcdlock.ErrLocked) {
			b.Fatal(err)
		}
	}
}

func BenchmarkFloor(b *testing.B) {
	for _, name := range []string{"put", "get", "two-puts"} {
		b.Run(name, func(b *testing.B) {
			srv := benchServer(b)
			f := floor(b, srv.Client(b), name)
			f()
			b.ResetTimer()
			for range b.N {
				f()
			}
			b.StopTimer()
			clearFloor(b, srv)
		})
	}
}

func floor(b *testing.B, c *clientv3.Client, name string) func() {
	ctx := context.Background()
	put := func() {
		if _, err := c.Put(ctx, "floor", ""); err != nil {
			b.Fatal(err)
		}
	}
	switch name {
	case "put":
		return put
	case "two-puts":
		return func() { put(); put() }
	}
	return func() {
		if _, err := c.Get(ctx, "floor"); err != nil {
			b.Fatal(err)
		}
	}
}

func clearFloor(b *testing.B, srv *etcdtest.Server) {
	if _, err := srv.Admin().Delete(context.Background(), "floor"); err != nil {
		b.Error(err)
	}
}

// BenchmarkRatios prints how the library compares with etcd's own lock and with the floor. It measures all of them in
// short turns on one server, so that a slow moment of the disk hits all alike, and takes medians.
func BenchmarkRatios(b *testing.B) {
	srv := benchServer(b)
	c := srv.Client(b)
	type entry struct {
		name  string
		n     int // operations in one turn
		run   func(n int)
		turns []time.Duration // per operation
	}
	repeat := func(f func()) func(int) {
		return func(n int) {
			for range n {
				f()
			}
		}
	}
	var all []*entry
	for _, f := range []string{"put", "get", "two-puts"} {
		all = append(all, &entry{name: f, n: 100, run: repeat(floor(b, c, f))})
	}
	for _, k := range contestants {
		try := busyTryLock(b, srv, k.name)
		two, ten, one := crowd(b, srv, 2, k.lock), crowd(b, srv, 10, k.lock), crowd(b, srv, 1, k.lock)
		all = append(all,
			&entry{name: "handoff-2/" + k.name, n: 50, run: func(n int) { contend(b, two, n) }},
			&entry{name: "handoff-10/" + k.name, n: 100, run: func(n int) { contend(b, ten, n) }},
			&entry{name: "uncontended/" + k.name, n: 50, run: func(n int) { contend(b, one, n) }},
			&entry{name: "trylock/" + k.name, n: 100, run: repeat(try)})
	}
	for b.Loop() {
		for _, e := range all {
			e.turns = nil
		}
		for round := range *ratioRounds {
			for i := range all {
				e := all[(i+round)%len(all)]
				from := time.Now()
				e.run(e.n)
				e.turns = append(e.turns, time.Since(from)/time.Duration(e.n))
			}
		}
	}
	median := map[string]time.Duration{}
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "per operation\tmedian\tmin\tmax\t\n")
	for _, e := range all {
		slices.Sort(e.turns)
		median[e.name] = e.turns[len(e.turns)/2]
		fmt.Fprintf(w, "%s\t%v\t%v\t%v\t\n", e.name, median[e.name].Round(time.Microsecond),
			e.turns[0].Round(time.Microsecond), e.turns[len(e.turns)-1].Round(time.Microsecond))
	}
	fmt.Fprint(w, "ratio\tmeasured\ttarget\t\t\n")
	for _, r := range []struct{ over, under, target string }{
		{"handoff-2/revfence", "put", "<= 2.8"},
		{"handoff-2/stock", "handoff-2/revfence", ">= 12"},
		{"handoff-10/revfence", "put", "<= 2.5"},
		{"handoff-10/stock", "handoff-10/revfence", ">= 4"},
		{"uncontended/revfence", "two-puts", "<= 1.25"},
		{"uncontended/stock", "uncontended/revfence", ">= 1"},
		{"trylock/stock", "trylock/revfence", ">= 5"},
		{"trylock/revfence", "get", ""},
	} {
		v := float64(median[r.over]) / float64(median[r.under])
		fmt.Fprintf(w, "%s : %s\t%.2f\t%s\t\t\n", r.over, r.under, v, r.target)
		b.ReportMetric(v, r.over+":"+r.under)
	}
	w.Flush()
	fmt.Printf("\nmedians of %d rounds\n%s", *ratioRounds, &table) // b.Log prints ten lines at most
	b.ReportMetric(0, "ns/op")
	clearFloor(b, srv)
}
