package etcdlock

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/revfence/revfence/internal/keyspace"
	"github.com/revfence/revfence/internal/lease"
	"github.com/revfence/revfence/internal/view"
)

// A Locker takes locks for one process through one etcd client. It is safe for
// concurrent use. Create it with New.
type Locker struct {
	config
	client *clientv3.Client
	keeper *lease.Keeper
	view   *view.View
	turns  turns

	servers sync.Once // their versions were asked for

	base context.Context // ends what runs in the background, when Close gives up
	stop context.CancelFunc
	open context.Context // ends acquisitions, with ErrClosed
	shut context.CancelCauseFunc
	// forgetClient ends the wait for the end of the client, which is Close as
	// well: the watchdog dials connections of its own, and would renew for ever
	// what nobody can unlock any more.
	forgetClient func() bool

	mu     sync.Mutex
	closed bool
	work   int           // acquisitions in flight, locks held, background tasks
	idle   chan struct{} // closed once closed and without work
	room   []*session    // sessions that can take another name
	reaper *time.Timer
	held   map[*Lock]struct{}
}

// New returns a Locker that works through client. It starts nothing and asks
// etcd nothing until the first lock. The client stays the caller's: close it
// after the Locker.
func New(client *clientv3.Client, opts ...Option) (*Locker, error) {
	if client == nil {
		return nil, errors.New("etcdlock: nil client")
	}
	if client.ActiveConnection() == nil {
		return nil, errors.New("etcdlock: client without a connection: use one made by clientv3.New")
	}
	c, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	if c.prefix != "" && !strings.HasSuffix(c.prefix, "/") {
		c.log.Warn("prefix of locks does not end in a slash, nothing is put between it and the name", zap.String("prefix", c.prefix))
	}
	l := &Locker{
		config: c, client: client, idle: make(chan struct{}), held: make(map[*Lock]struct{}),
		turns: turns{names: make(map[string]*list.List)},
	}
	l.base, l.stop = context.WithCancel(context.Background())
	l.open, l.shut = context.WithCancelCause(context.Background())
	l.keeper = lease.NewKeeper(lease.Config{
		Remote:    clientv3.RetryLeaseClient(client),
		Endpoints: client.Endpoints,
		Dial: func(endpoint string) (pb.LeaseClient, io.Closer, error) {
			conn, err := client.Dial(endpoint)
			return pb.NewLeaseClient(conn), conn, err
		},
		StaticToken: client.Token != "",
		// A key that was released, and comes back with a backup, must not be
		// kept alive by a session that waits for use, or is used for others.
		Broken: l.discard,
		Clock:  c.clock,
		Logger: c.log,
	})
	l.view = view.New(l.base, client, l.keeper.View(client.Lease))
	l.mu.Lock() // the client may be closed at this moment
	defer l.mu.Unlock()
	l.forgetClient = context.AfterFunc(client.Ctx(), func() {
		if lost := l.giveUp(); lost > 0 {
			l.log.Warn("etcd client closed under held locks, left to expire", zap.Int("locks", lost))
		}
	})
	return l, nil
}

// queue returns the prefix of all keys of a name.
func (l *Locker) queue(name string) string { return keyspace.Queue(l.prefix, name) }

func checkName(name string) error {
	if name == "" {
		return errors.New("etcdlock: empty lock name")
	}
	if len(name) > maxNameLen {
		return fmt.Errorf("etcdlock: lock name of %d bytes: at most %d are allowed", len(name), maxNameLen)
	}
	return nil
}

// begin counts one more piece of work, unless the Locker is closed.
func (l *Locker) begin() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.work++
	return true
}

func (l *Locker) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endLocked()
}

func (l *Locker) endLocked() {
	l.work--
	if l.closed && l.work == 0 {
		close(l.idle)
	}
}

// join counts one more piece of the work that Close waits for, unless Close is
// over.
func (l *Locker) join() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed && l.work == 0 {
		return false
	}
	l.work++
	return true
}

// background runs f, which Close waits for, unless Close is over.
func (l *Locker) background(f func(ctx context.Context)) {
	if !l.join() {
		return
	}
	go func() {
		defer l.end()
		f(l.base)
	}()
}

// Close ends the Locker. It
//
//   - refuses new acquisitions and fails waiting ones with ErrClosed;
//   - cancels the contexts of held locks, with the cause ErrClosed, and goes on
//     renewing them until each was unlocked, so that work can end in order;
//   - revokes idle leases.
//
// It returns nil when all that is done and nothing of the Locker runs any
// more. If ctx ends first, what is still held is no longer renewed and left to
// expire within its TTL, since its work may still run; Close then returns an
// error that matches ctx's, and those locks are lost with ReasonClosed.
//
// A second Close waits as the first does.
func (l *Locker) Close(ctx context.Context) error {
	if ctx == nil {
		return errNoContext
	}
	for _, k := range l.refuse() {
		k.cancel(ErrClosed)
	}
	select {
	case <-l.idle:
	default: // only now, so that a ctx that has ended fails no Close that has nothing to wait for
		select {
		case <-l.idle:
		case <-ctx.Done():
			if lost := l.giveUp(); lost > 0 {
				return fmt.Errorf("etcdlock: closed with %d locks still held, left to expire: %w", lost, ended(ctx))
			}
			return fmt.Errorf("etcdlock: closed before all leases were revoked, left to expire: %w", ended(ctx))
		}
	}
	l.giveUp()
	return nil
}

// refuse begins the end: no new acquisitions, and none of those in flight. It
// returns the locks still held.
func (l *Locker) refuse() []*Lock {
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		l.shutLocked()
		if l.work == 0 {
			close(l.idle)
		}
	}
	held := make([]*Lock, 0, len(l.held))
	for k := range l.held {
		held = append(held, k)
	}
	l.forgetClient()
	l.mu.Unlock()
	l.shut(ErrClosed)
	return held
}

// giveUp ends what still runs. What is still held is lost, and left to expire.
func (l *Locker) giveUp() (lost int) {
	for _, k := range l.refuse() {
		if k.lose(ReasonClosed, nil) {
			lost++
		}
	}
	l.stop()
	l.keeper.Close()
	return lost
}

// observe calls the Observer, whose panic is not ours to die of.
func (l *Locker) observe(e Event) {
	if l.observer == nil {
		return
	}
	defer func() {
		if r := recover(); r != nil {
			l.log.Error("observer panicked", zap.Any("panic", r))
		}
	}()
	l.observer.Observe(e)
}
