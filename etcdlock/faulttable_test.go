package etcdlock_test

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/etcdtest"
)

// atOnce is how many cells of the table are under way: most of them wait.
const atOnce = 5 * parallel

// TestFaultTable: every call that the library makes, under every fault. The operation returns in time, and its lock is
// then held, or not, or free within the TTL; never is a name wedged, nor a key or a lease left that is renewed for nobody.
func TestFaultTable(t *testing.T) {
	servers := make([]*etcdtest.Server, 3)
	for i := range servers {
		servers[i] = startClean(t, expired)
	}
	table := &outcomes{stalls: etcdtest.Stalls(t), cells: map[string]map[string][]string{}, seen: map[callKind]int{}}
	slots := make(chan struct{}, atOnce)
	var wg sync.WaitGroup
	n := 0
	run := func(rows []row, faults []fault) {
		for _, r := range rows {
			for _, f := range faults {
				n++
				srv, prefix := servers[n%len(servers)], fmt.Sprintf("/table/%d/", n)
				slots <- struct{}{}
				wg.Go(func() {
					defer func() { <-slots }()
					t.Run(fmt.Sprintf("%s/%v/%v", r.op, r.kinds, f), func(t *testing.T) { table.run(t, srv, r, f, prefix) })
				})
			}
		}
	}
	run(streamRows(), streamFaults())
	run(callRows(), callFaults())
	wg.Wait()
	t.Logf("%d of %d cells\n%s", table.ran, n, table)
	if table.ran == n { // else -run has picked some
		table.complete(t)
	}
}

// outcomes is the table as it fills.
type outcomes struct {
	stalls *etcdtest.Ticker

	mu    sync.Mutex
	cells map[string]map[string][]string // faults by row and outcome
	seen  map[callKind]int               // calls made
	ran   int
}

func (o *outcomes) run(t *testing.T, srv *etcdtest.Server, r row, f fault, prefix string) {
	from := time.Now()
	c := newCell(t, srv, o.stalls, r, f, prefix)
	k, err := r.act(c)
	outcome := c.judge(k, err)
	if c.armed != nil && c.armed.Hits() == 0 && !o.stalls.Overlaps(from, time.Now()) {
		t.Errorf("no call of %v", r.kinds)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.cells[r.String()] == nil {
		o.cells[r.String()] = map[string][]string{}
	}
	o.cells[r.String()][outcome] = append(o.cells[r.String()][outcome], f.String())
	o.ran++
	for k, n := range c.record.all() {
		o.seen[k] += n
		if strings.HasPrefix(string(k), unnamedCalls) {
			t.Errorf("no row is about calls of the kind %q", k)
		}
	}
}

func (r row) String() string {
	var k []string
	for _, kind := range r.kinds {
		k = append(k, string(kind))
	}
	return r.op + "\t" + strings.Join(k, ", ")
}

// String is the table, a line to each row and outcome.
func (o *outcomes) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "operation\tfailing calls\toutcome\tfaults")
	for _, row := range slices.Sorted(maps.Keys(o.cells)) {
		byOutcome := o.cells[row]
		outcomes := slices.SortedFunc(maps.Keys(byOutcome), func(a, b string) int { return len(byOutcome[b]) - len(byOutcome[a]) })
		for i, outcome := range outcomes {
			faults := byOutcome[outcome]
			slices.Sort(faults)
			text := strings.Join(faults, "; ")
			if i == 0 {
				text = fmt.Sprintf("%d, all but those below", len(faults))
			}
			fmt.Fprintf(w, "%s\t%s\t%s\n", row, outcome, text)
		}
	}
	w.Flush()
	return out.String()
}

// complete fails if there was a call that no row is about, or a row's call was never seen, or if there is a method that
// no row calls.
func (o *outcomes) complete(t *testing.T) {
	named, methods := map[callKind]bool{}, map[string]bool{"Lock": true, "Unlock": true}
	for _, r := range slices.Concat(callRows(), streamRows()) {
		for _, k := range r.kinds {
			named[k] = true
			if o.seen[k] == 0 {
				t.Errorf("%v: no %s", r.op, k)
			}
		}
		for _, m := range strings.Fields(r.methods) {
			methods[m] = true
		}
	}
	for k := range o.seen {
		if !named[k] {
			t.Errorf("no row is about calls of the kind %q", k)
		}
	}
	// These ask etcd nothing.
	for _, m := range []string{"Token", "String", "Name", "Key", "Context", "Remaining", "Require", "IsOwner", "MarkKey", "TurnsWaiting", "IdleLeases"} {
		methods[m] = true
	}
	for _, typ := range []reflect.Type{reflect.TypeFor[*etcdlock.Locker](), reflect.TypeFor[*etcdlock.Lock]()} {
		for m := range typ.Methods() {
			if !methods[m.Name] {
				t.Errorf("no row calls %v.%s", typ, m.Name)
			}
		}
	}
}
