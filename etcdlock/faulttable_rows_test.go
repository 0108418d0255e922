package etcdlock_test

import (
	"context"
	"errors"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/fencing"
)

// A row is an operation, some of whose calls fail.
type row struct {
	op       string
	kinds    []callKind
	share    int           // for WithSharedLeases
	later    time.Duration // than the TTL: when the name has to be free
	succeeds bool          // the operation goes on until it succeeds
	patient  bool          // it is never cut short: the call comes late
	closes   bool          // it closes the Locker
	methods  string        // that it is of, beside Lock and Unlock
	act      func(c *cell) (held *etcdlock.Lock, err error)
}

// keeps reports whether a lock that is held has to be kept.
func (r row) keeps(f fault) bool { return r.kinds[0] != renewKind || f.last == 0 }

var errFence = errors.New("fence failed")

func kinds(k ...callKind) []callKind { return k }

// callRows returns the rows of unary calls.
func callRows() []row {
	return []row{
		{op: "Lock", kinds: kinds(grantCall), succeeds: true, act: (*cell).first},
		{op: "Lock", kinds: kinds(createCall), succeeds: true, act: (*cell).first},
		{op: "Lock again", kinds: kinds(createCall), succeeds: true, act: (*cell).again},
		{op: "Lock on a shared lease", kinds: kinds(createCall), share: 4, succeeds: true, act: (*cell).shared},
		{op: "Lock after a create of unknown outcome on a shared lease", kinds: kinds(scrubCall), share: 4, succeeds: true, act: (*cell).scrubbed},
		{op: "Lock behind another", kinds: kinds(placeCall), succeeds: true, act: (*cell).behind},
		{op: "Lock behind another for long", kinds: kinds(keyCall), succeeds: true, patient: true, act: (*cell).longBehind},
		{op: "Lock cancelled while it waits", kinds: kinds(deleteCall), patient: true, act: (*cell).cancelled},
		{op: "Lock whose fence fails", kinds: kinds(deleteCall), act: (*cell).givenBack},
		{op: "Lock whose fence fails", kinds: kinds(deleteCall, revokeCall), act: (*cell).givenBack},
		{op: "Lock whose fence has seen more", kinds: kinds(keyCall), act: (*cell).overtaken},
		{op: "Lock under the hold of another Locker", kinds: kinds(lookCall), act: (*cell).reentrant},
		{op: "Lock, the version asked for", kinds: kinds(versionCall), succeeds: true, patient: true, act: (*cell).versionAsked},
		{op: "TryLock", kinds: kinds(lookCall), methods: "TryLock", act: (*cell).try},
		{op: "TryLock", kinds: kinds(grantCall), act: (*cell).try},
		{op: "TryLock", kinds: kinds(freeCall), act: (*cell).try},
		{op: "TryLock of a taken name", kinds: kinds(lookCall), act: (*cell).tryTaken},
		{op: "hold whose key is deleted", kinds: kinds(keyCall), act: (*cell).holdDeleted},
		{op: "Check", kinds: kinds(touchCall), methods: "Check", act: (*cell).check},
		{op: "Txn", kinds: kinds(userCall), methods: "Txn", act: (*cell).transact},
		{op: "Once", kinds: kinds(userCall), methods: "Once Do", act: (*cell).once},
		{op: "Once, done already?", kinds: kinds(keyCall), act: (*cell).once},
		{op: "Once, the mark's lease", kinds: kinds(grantCall), act: (*cell).onceMarkExpires},
		{op: "Queue", kinds: kinds(queueCall), methods: "Queue", act: (*cell).showQueue},
		{op: "Unlock", kinds: kinds(deleteCall), act: (*cell).unlock},
		{op: "Unlock", kinds: kinds(deleteCall, revokeCall), act: (*cell).unlock},
		{op: "Unlock on a shared lease", kinds: kinds(deleteCall, scrubCall), share: 4, later: tableTTL, act: (*cell).unlockBeside},
		{op: "Unlock after the maximum hold", kinds: kinds(revokeCall), act: (*cell).handOver},
		{op: "Unlock after the maximum hold, shared", kinds: kinds(deleteCall), share: 4, later: 2 * tableTTL, act: (*cell).handOver},
		{op: "maximum hold on a shared lease", kinds: kinds(deleteCall, scrubCall), share: 4, later: 2 * tableTTL, act: (*cell).abandoned},
		{op: "idle lease retired", kinds: kinds(revokeCall), act: (*cell).retired},
		{op: "Close", kinds: kinds(revokeCall), methods: "Close", closes: true, act: (*cell).closed},
	}
}

// streamRows returns those of streams.
func streamRows() []row {
	return []row{
		{op: "hold", kinds: kinds(renewKind), act: (*cell).keep},
		{op: "Lock behind another", kinds: kinds(watchKind), succeeds: true, act: (*cell).behind},
		{op: "Lock behind another, own key deleted", kinds: kinds(watchKind), succeeds: true, act: (*cell).placeDeleted},
		{op: "hold whose key is deleted", kinds: kinds(watchKind), act: (*cell).holdDeleted},
	}
}

func (c *cell) first() (*etcdlock.Lock, error) {
	c.arm()
	return c.lock()
}

func (c *cell) versionAsked() (*etcdlock.Lock, error) {
	k, err := c.first()
	c.hit()
	return k, err
}

func (c *cell) again() (*etcdlock.Lock, error) {
	mustUnlock(c, mustLock(c, c.l, "warm"))
	c.arm()
	return c.lock()
}

// neighbour holds another lock on the same lease, until the judgement is over.
func (c *cell) neighbour() {
	c.beside = mustLock(c, c.l, "neighbour")
}

func (c *cell) shared() (*etcdlock.Lock, error) {
	c.neighbour()
	c.arm()
	return c.lock()
}

func (c *cell) scrubbed() (*etcdlock.Lock, error) {
	c.neighbour()
	c.calls.Lost(callsOf(createCall), 1, errLostReply)
	c.arm()
	return c.lock()
}

// write takes a revision.
func (c *cell) write() {
	put(c, c.srv, c.prefix+"unrelated", "")
	remove(c, c.srv, c.prefix+"unrelated")
}

// waits has Lock wait for another Locker's lock of the name.
func (c *cell) waits(ctx context.Context) (holder *etcdlock.Lock, next <-chan result) {
	holder = mustLock(c, c.other, "x")
	out := make(chan result, 1)
	go func() {
		var r result
		r.err = c.within(ctx, func(ctx context.Context) (err error) {
			r.lock, err = c.l.Lock(ctx, "x")
			return err
		})
		out <- r
	}()
	eventually(c, "a place in the queue, and a watch of the one before, or the end of it", func() bool {
		return len(c.queue("x")) == 2 && c.record.count(watchKind) > 0 || len(out) == 1
	})
	return holder, out
}

func (c *cell) behind() (*etcdlock.Lock, error) {
	c.arm()
	holder, next := c.waits(context.Background())
	if c.fault.stream != nil {
		pass(200 * time.Millisecond) // the watch may stand by then, or not
	}
	c.release(holder)
	r := receive(c, "Lock", next)
	return r.lock, r.err
}

func (c *cell) longBehind() (*etcdlock.Lock, error) {
	c.arm()
	holder, next := c.waits(context.Background())
	c.write() // so that the watch of the own key begins with a read
	c.hit()
	c.release(holder)
	r := receive(c, "Lock", next)
	return r.lock, r.err
}

func (c *cell) placeDeleted() (*etcdlock.Lock, error) {
	c.arm()
	holder, next := c.waits(context.Background())
	pass(1200 * time.Millisecond) // the own key is watched by then, or its watch fails
	before := c.queue("x")
	for _, kv := range keys(c, c.srv, c.prefix+"x/").Kvs {
		if string(kv.Key) != holder.Key() {
			remove(c, c.srv, string(kv.Key))
		}
	}
	eventually(c, "another place", func() bool { q := c.queue("x"); return len(q) == 2 && q[1] != before[1] })
	c.release(holder)
	r := receive(c, "Lock", next)
	return r.lock, r.err
}

func (c *cell) cancelled() (*etcdlock.Lock, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	holder, next := c.waits(ctx)
	c.arm()
	cancel()
	r := receive(c, "Lock", next)
	c.release(holder)
	return r.lock, r.err
}

func (c *cell) givenBack() (*etcdlock.Lock, error) {
	c.arm()
	return c.lock(etcdlock.WithFences(fenceFunc(func(context.Context, fencing.Token) error { return errFence })))
}

func (c *cell) overtaken() (*etcdlock.Lock, error) {
	c.arm()
	return c.lock(etcdlock.WithFences(fenceFunc(func(_ context.Context, t fencing.Token) error {
		c.write()
		return &fencing.StaleError{Resource: "r", Token: t, HighWater: t + 1}
	})))
}

func (c *cell) reentrant() (*etcdlock.Lock, error) {
	outer := mustLock(c, c.other, "x")
	defer c.release(outer)
	c.arm()
	err := c.within(outer.Context(), func(ctx context.Context) error {
		_, err := c.l.Lock(ctx, "x")
		return err
	})
	if err == nil || c.fault.limit >= enough && !errors.Is(err, etcdlock.ErrReentrant) {
		c.Errorf("Lock under a hold of the name: %v", err)
	}
	return nil, err
}

func (c *cell) try() (k *etcdlock.Lock, err error) {
	c.arm()
	err = c.within(context.Background(), func(ctx context.Context) error {
		k, err = c.l.TryLock(ctx, "x")
		return err
	})
	return k, err
}

func (c *cell) tryTaken() (*etcdlock.Lock, error) {
	theirs := mustLock(c, c.other, "x")
	defer c.release(theirs)
	k, err := c.try()
	if k != nil || err == nil {
		c.Error("two hold it")
	}
	return nil, err
}

func (c *cell) holdDeleted() (*etcdlock.Lock, error) {
	c.arm()
	k := mustLock(c, c.l, "x")
	c.write()
	if c.armed != nil {
		c.hit()
	} else {
		pass(1200 * time.Millisecond) // it is watched by then, or its watch fails
	}
	remove(c, c.srv, k.Key())
	lost := lostTo(c, k)
	mustLostUnlock(c, k)
	return nil, lost
}

func (c *cell) check() (*etcdlock.Lock, error) {
	k := mustLock(c, c.l, "x")
	c.arm()
	return k, c.within(context.Background(), k.Check)
}

func (c *cell) transact() (*etcdlock.Lock, error) {
	k := mustLock(c, c.l, "x")
	data := "data" + c.prefix
	c.Cleanup(func() {
		c.calls.Wait() // it may come late
		remove(c, c.srv, data)
	})
	c.arm()
	err := c.within(context.Background(), func(ctx context.Context) error {
		_, err := k.Txn(ctx).Then(clientv3.OpPut(data, "written")).Commit()
		return err
	})
	if err == nil && value(c, c.srv, data) != "written" {
		c.Error("committed, but not written")
	}
	return k, err
}

func (c *cell) once() (*etcdlock.Lock, error) { return c.onceWith() }

func (c *cell) onceMarkExpires() (*etcdlock.Lock, error) {
	mustUnlock(c, mustLock(c, c.l, "warm"))
	return c.onceWith(etcdlock.WithMarkTTL(tableTTL))
}

func (c *cell) onceWith(opts ...etcdlock.OnceOption) (*etcdlock.Lock, error) {
	marks := c.prefix + "%done/"
	c.Cleanup(func() {
		c.calls.Wait()
		if _, err := c.srv.Admin().Delete(testContext(c), marks, clientv3.WithPrefix()); err != nil {
			c.Error(err)
		}
	})
	c.arm()
	err := c.within(context.Background(), func(ctx context.Context) error {
		return c.l.Once(ctx, "x", "slot", func(context.Context, *etcdlock.Lock) error { return nil }, opts...)
	})
	if n := len(keys(c, c.srv, marks).Kvs); err == nil && n != 1 {
		c.Errorf("done, with %d marks", n)
	}
	return nil, err
}

func (c *cell) showQueue() (*etcdlock.Lock, error) {
	c.arm()
	return nil, c.within(context.Background(), func(ctx context.Context) error {
		_, err := c.l.Queue(ctx, "x")
		return err
	})
}

func (c *cell) unlock() (*etcdlock.Lock, error) {
	k := mustLock(c, c.l, "x")
	c.arm()
	return nil, c.within(context.Background(), k.Unlock)
}

func (c *cell) unlockBeside() (*etcdlock.Lock, error) {
	c.neighbour()
	return c.unlock()
}

// overheld returns a lock that was lost since its time was over.
func (c *cell) overheld() *etcdlock.Lock {
	if c.row.share > 0 {
		c.neighbour()
	}
	k := mustLock(c, c.l, "x", etcdlock.WithMaxHold(100*time.Millisecond))
	lostTo(c, k)
	return k
}

func (c *cell) handOver() (*etcdlock.Lock, error) {
	k := c.overheld()
	c.arm()
	return nil, c.within(context.Background(), k.Unlock)
}

func (c *cell) abandoned() (*etcdlock.Lock, error) {
	k := c.overheld()
	c.arm()
	return nil, context.Cause(k.Context())
}

func (c *cell) retired() (*etcdlock.Lock, error) {
	mustUnlock(c, mustLock(c, c.l, "x"))
	c.arm()
	c.hit()
	return nil, nil
}

func (c *cell) closed() (*etcdlock.Lock, error) {
	for _, k := range lockAll(c, c.l, 3) {
		mustUnlock(c, k)
	}
	c.arm()
	return nil, c.within(context.Background(), c.l.Close)
}

func (c *cell) keep() (*etcdlock.Lock, error) {
	c.arm()
	k := mustLock(c, c.l, "x")
	pass(tableTTL * 5 / 2)
	return k, nil
}
