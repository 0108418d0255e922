package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/etcdtest"
	"github.com/revfence/revfence/internal/faultkit"
)

// tableTTL is the TTL of all locks of the table.
const tableTTL = 2 * time.Second

// expired is the time after which a lease that is no longer renewed is gone: etcd looks every half second, and the
// machine is busy.
const expired = tableTTL + 1500*time.Millisecond

// A cell is one row under one fault, with clients and names of its own.
type cell struct {
	testing.TB
	row    row
	fault  fault
	srv    *etcdtest.Server
	prefix string
	record *record
	calls  faultkit.Calls
	stream streamFault
	armed  *faultkit.Fault
	l      *etcdlock.Locker // whose calls fail
	other  *etcdlock.Locker // all is well with it
	beside *etcdlock.Lock   // on the same lease, if any
	began  time.Time
	stalls *etcdtest.Ticker
}

func newCell(t testing.TB, srv *etcdtest.Server, stalls *etcdtest.Ticker, r row, f fault, prefix string) *cell {
	t.Helper()
	if r.patient {
		f.limit = enough
	}
	c := &cell{TB: t, row: r, fault: f, srv: srv, prefix: prefix, record: newRecord(), began: time.Now(), stalls: stalls}
	c.stream.kind, c.stream.last = r.kinds[0], f.last
	if f.stream != nil {
		f.stream(&c.stream)
	}
	client := srv.Client(t, etcdtest.Unary(c.record.unary, c.calls.Unary), etcdtest.Stream(c.record.stream, c.stream.stream))
	opts := []etcdlock.Option{etcdlock.WithTTL(tableTTL), etcdlock.WithPrefix(prefix)}
	c.other = clientLocker(t, srv, opts...)
	if r.share > 0 {
		opts = append(opts, etcdlock.WithSharedLeases(r.share))
	}
	c.l = newLocker(t, client, opts...)
	t.Cleanup(c.calls.Wait)
	return c
}

// arm makes the row's calls fail from now on.
func (c *cell) arm() {
	if c.fault.stream != nil {
		c.stream.arm(true)
		return
	}
	n, match := 1, callsOf(c.row.kinds...)
	if c.fault.last > 0 {
		n, match = everyCall, lasting(match, c.fault.last)
	}
	c.armed = c.fault.calls(&c.calls, match, n)
}

// hit waits until the fault was applied.
func (c *cell) hit() {
	c.Helper()
	eventually(c, "the fault is applied", func() bool { return c.armed.Hits() > 0 })
}

func (c *cell) disarm() {
	c.stream.arm(false)
	if c.armed != nil {
		c.armed.Disarm()
	}
}

// within gives a call the time that the fault allows, and fails if it does not return when that is over. A release goes
// on for a while after the end of its context.
func (c *cell) within(ctx context.Context, call func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, c.fault.limit)
	defer cancel()
	from := time.Now()
	err := call(ctx)
	if took := time.Since(from); took > c.fault.limit+tableTTL/3+time.Second {
		c.Errorf("returned after %v, with %v to do so: %v", took, c.fault.limit, err)
	}
	return err
}

// lock is Lock of the name "x".
func (c *cell) lock(opts ...etcdlock.LockOption) (k *etcdlock.Lock, err error) {
	err = c.within(context.Background(), func(ctx context.Context) error {
		k, err = c.l.Lock(ctx, "x", opts...)
		return err
	})
	return k, err
}

// queue returns the keys of a name, oldest first.
func (c *cell) queue(name string) []string {
	c.Helper()
	var out []string
	for _, kv := range keys(c, c.srv, c.prefix+name+"/").Kvs {
		out = append(out, fmt.Sprintf("%s created at %d", kv.Key, kv.CreateRevision))
	}
	return out
}

// leases returns the leases of the faulty client that etcd has.
func (c *cell) leases() []clientv3.LeaseID {
	c.Helper()
	resp, err := c.srv.Admin().Leases(testContext(c))
	if err != nil {
		c.Fatal(err)
	}
	var out []clientv3.LeaseID
	for _, s := range resp.Leases {
		if c.record.asked(s.ID) {
			out = append(out, s.ID)
		}
	}
	return out
}

// judge says what the operation came to. k is the lock that it left held, if any, and err its error. Whatever that was,
// the name is free within the TTL, to all, and nothing is left.
func (c *cell) judge(k *etcdlock.Lock, err error) string {
	c.Helper()
	from := time.Now()
	outcome := describe(err)
	if k != nil {
		outcome = c.ends(k)
	} else if c.row.succeeds && c.fault.limit >= enough {
		c.Errorf("given enough time: %v", err)
	}
	released := k == nil && err == nil
	if n := c.queue("x"); len(n) > 0 && released {
		c.Errorf("done, but there is %v", n)
	}
	c.gone(expired + c.row.later)
	free := time.Since(from)
	if c.row.closes {
		c.l = c.other // nobody gets anything from a closed Locker
	}
	for _, l := range []*etcdlock.Locker{c.other, c.l} {
		ctx, cancel := context.WithTimeout(context.Background(), tableTTL+3*time.Second)
		next, err := l.Lock(ctx, "x")
		cancel()
		if err != nil {
			c.Errorf("the name is wedged: %v, with %v", err, c.queue("x"))
			continue
		}
		c.disarm()
		mustUnlock(c, next)
	}
	c.calls.Wait() // what comes late has come
	c.gone(expired)
	if c.beside != nil {
		c.ends(c.beside)
	}
	// Nothing is renewed for nobody.
	var left []clientv3.LeaseID
	c.poll(expired, func() bool {
		idle := c.l.IdleLeases()
		left = slices.DeleteFunc(c.leases(), func(id clientv3.LeaseID) bool { return slices.Contains(idle, id) })
		return len(left) == 0
	}, func() { c.Errorf("leases left that are not idle: %x", left) })
	if err := c.l.Close(testContext(c)); err != nil {
		c.Errorf("Close: %v", err)
	}
	c.poll(expired, func() bool { left = c.leases(); return len(left) == 0 }, func() { c.Errorf("leases left after Close: %x", left) })
	if free > time.Second {
		outcome += ", free later"
	}
	return outcome
}

// ends checks that a lock is held, and releases it, or that it is lost.
func (c *cell) ends(k *etcdlock.Lock) string {
	c.Helper()
	c.disarm()
	err := k.Check(testContext(c))
	var lost *etcdlock.LostError
	if errors.As(err, &lost) {
		if err := k.Unlock(testContext(c)); !errors.Is(err, etcdlock.ErrLost) {
			c.Errorf("Unlock of a lost lock: %v", err)
		}
		if c.row.keeps(c.fault) && !c.stalled(lost) {
			c.Errorf("the lock was to be kept: %v", lost)
		}
		return "lost"
	}
	if err != nil {
		c.Errorf("Check: %v", err)
	}
	if q := c.queue(k.Name()); len(q) == 0 || q[0] != fmt.Sprintf("%s created at %d", k.Key(), k.Token()) {
		c.Errorf("token %d of %s, but the queue is %v", k.Token(), k.Key(), q)
	}
	c.release(k)
	return "held"
}

// release releases a lock that is held, or was lost because the process was held up.
func (c *cell) release(k *etcdlock.Lock) {
	c.Helper()
	if err := k.Unlock(testContext(c)); err != nil && !c.stalled(err) {
		c.Errorf("Unlock: %v", err)
	}
}

// stalled reports whether err is a loss that says nothing, since the process was held up.
func (c *cell) stalled(err error) bool {
	var lost *etcdlock.LostError
	return errors.As(err, &lost) && lost.Reason == etcdlock.ReasonDeadline && c.stalls.Overlaps(c.began, time.Now())
}

// gone fails unless all keys of the name are gone within a time.
func (c *cell) gone(within time.Duration) {
	c.Helper()
	c.poll(within, func() bool { return len(c.queue("x")) == 0 }, func() { c.Errorf("%v are there after %v", c.queue("x"), within) })
}

// poll is eventuallyWithin, seldom, since many cells are at work, and not fatal, so that the other steps are judged. Time in
// which the process is held up does not count.
func (c *cell) poll(within time.Duration, cond func() bool, fail func()) {
	c.Helper()
	const step = 50 * time.Millisecond
	for ; !cond(); within -= step {
		if within <= 0 {
			fail()
			return
		}
		pass(step)
	}
}

// describe is an error in a word.
func describe(err error) string {
	for _, d := range []struct {
		err  error
		word string
	}{
		{nil, "done"}, {etcdlock.ErrUnknown, "unknown"}, {etcdlock.ErrLost, "lost"}, {etcdlock.ErrLocked, "locked"},
		{etcdlock.ErrReentrant, "reentrant"}, {etcdlock.ErrClosed, "closed"},
		{context.DeadlineExceeded, "in vain"}, {context.Canceled, "in vain"}, {errFence, "fence failed"},
	} {
		if err == d.err || d.err != nil && errors.Is(err, d.err) {
			return d.word
		}
	}
	if strings.Contains(err.Error(), "etcdlock:") {
		return "error"
	}
	return err.Error()
}
