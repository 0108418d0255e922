package faultkit

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

// lateTimeout bounds a call that Late sends after its caller was answered.
const lateTimeout = 15 * time.Second

// Match chooses unary calls by full method name ("/etcdserverpb.KV/Txn") and request message.
type Match func(method string, req any) bool

// Method returns a Match for the calls whose method name ends in name: "KV/Txn", say.
func Method(name string) Match {
	return func(method string, _ any) bool { return strings.HasSuffix(method, name) }
}

// Calls makes unary calls of a client fail on demand: pass its Unary to the client, then arm faults with Fail, Lost, Late
// and Hang. Of several faults that match a call the one armed first is used. The zero value is ready and safe for
// concurrent use.
type Calls struct {
	mu     sync.Mutex
	faults []*Fault
	wg     sync.WaitGroup
}

// Fault is one armed fault. It ends by itself after the number of calls it was armed for.
type Fault struct {
	calls *Calls
	match Match
	left  int
	hits  int
	apply func(k call) error
	spent chan struct{}
}

// Fail makes the next n matching calls return err without being sent: nothing reaches the server.
func (c *Calls) Fail(match Match, n int, err error) *Fault {
	return c.arm(match, n, func(call) error { return err })
}

// Lost makes the next n matching calls commit and then return err, as when the answer is lost: the caller cannot know.
// The functions in then run in between, for instance to cancel the caller's context at just that moment. A nil err
// returns the real outcome, and so does a call that failed by itself.
func (c *Calls) Lost(match Match, n int, err error, then ...func()) *Fault {
	return c.arm(match, n, func(k call) error {
		real := k.send(k.ctx, k.reply)
		for _, f := range then {
			f()
		}
		if real != nil {
			return real
		}
		return err
	})
}

// Late makes the next n matching calls return err at once and sends them only after delay, detached from the caller's
// context: a reader in between sees nothing, and yet the call commits. Wait waits for them.
func (c *Calls) Late(match Match, n int, delay time.Duration, err error) *Fault {
	return c.arm(match, n, func(k call) error {
		c.wg.Go(func() {
			t := time.NewTimer(delay)
			defer t.Stop()
			<-t.C
			ctx, cancel := context.WithTimeout(context.WithoutCancel(k.ctx), lateTimeout)
			defer cancel()
			// The caller, who has been told err already, owns the reply: the answer goes to a copy and is dropped.
			_ = k.send(ctx, reflect.New(reflect.TypeOf(k.reply).Elem()).Interface())
		})
		return err
	})
}

// Hang makes the next n matching calls go without an answer until their context ends, and then return its error. With
// sent they commit all the same; without, nothing reaches the server.
func (c *Calls) Hang(match Match, n int, sent bool) *Fault {
	return c.arm(match, n, func(k call) error {
		if sent {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(k.ctx), lateTimeout)
			defer cancel()
			_ = k.send(ctx, reflect.New(reflect.TypeOf(k.reply).Elem()).Interface())
		}
		<-k.ctx.Done()
		return status.FromContextError(k.ctx.Err()).Err()
	})
}

// Wait waits until every call delayed by Late has been answered.
func (c *Calls) Wait() { c.wg.Wait() }

// Hits returns the number of calls the fault was applied to so far.
func (f *Fault) Hits() int {
	f.calls.mu.Lock()
	defer f.calls.mu.Unlock()
	return f.hits
}

// Spent returns a channel that is closed when the fault has been applied to the last of its calls, as that call begins.
func (f *Fault) Spent() <-chan struct{} { return f.spent }

// Disarm ends the fault early.
func (f *Fault) Disarm() {
	f.calls.mu.Lock()
	defer f.calls.mu.Unlock()
	f.left = 0
}

// call is one attempt of a unary call under way.
type call struct {
	ctx   context.Context
	reply any
	send  func(ctx context.Context, reply any) error
}

func (c *Calls) arm(match Match, n int, apply func(call) error) *Fault {
	f := &Fault{calls: c, match: match, left: n, apply: apply, spent: make(chan struct{})}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = append(c.faults, f)
	return f
}

// take returns the fault to apply to a call, nil for none.
func (c *Calls) take(method string, req any) *Fault {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.faults {
		if f.left > 0 && f.match(method, req) {
			f.left--
			f.hits++
			if f.left == 0 {
				close(f.spent)
			}
			return f
		}
	}
	return nil
}

// Unary is the interceptor that applies the faults. It has to be made part of the client's dial options.
func (c *Calls) Unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	f := c.take(method, req)
	if f == nil {
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	var tell []func(error) // how the call ended, as far as the caller is to know
	opts = slices.DeleteFunc(slices.Clone(opts), func(o grpc.CallOption) bool {
		switch o := o.(type) {
		case grpc.OnFinishCallOption:
			tell = append(tell, o.OnFinish)
		case grpc.PeerCallOption, grpc.HeaderCallOption, grpc.TrailerCallOption: // of a caller who may have gone
		default:
			return false
		}
		return true
	})
	err := f.apply(call{ctx, reply, func(ctx context.Context, reply any) error {
		return invoke(ctx, method, req, reply, cc, opts...)
	}})
	for _, f := range tell {
		f(err)
	}
	return err
}
