package etcdlock_test

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/revfence/revfence/internal/faultkit"
)

// A fault is one column of the table: what becomes of calls of the row's kinds.
type fault struct {
	name string
	last time.Duration // how long every such call fails; 0: one call
	// limit is what the operation is given: enough for it to succeed after the fault, or little, to cut it short.
	limit  time.Duration
	calls  func(c *faultkit.Calls, m faultkit.Match, n int) *faultkit.Fault
	stream func(f *streamFault)
}

func (f fault) String() string {
	if f.last > 0 {
		return f.name + ", all for " + f.last.String()
	}
	return f.name
}

// enough is more than the longest fault and a call's limit together.
const enough = 9 * time.Second

const everyCall = 1 << 30

// callFaults returns all columns of the rows of unary calls.
func callFaults() []fault {
	lost := func(code codes.Code) func(*faultkit.Calls, faultkit.Match, int) *faultkit.Fault {
		return func(c *faultkit.Calls, m faultkit.Match, n int) *faultkit.Fault {
			return c.Lost(m, n, status.Error(code, "answer lost"))
		}
	}
	late := func(by time.Duration, code codes.Code) func(*faultkit.Calls, faultkit.Match, int) *faultkit.Fault {
		return func(c *faultkit.Calls, m faultkit.Match, n int) *faultkit.Fault {
			return c.Late(m, n, by, status.Error(code, "answer lost"))
		}
	}
	fail := func(c *faultkit.Calls, m faultkit.Match, n int) *faultkit.Fault {
		return c.Fail(m, n, status.Error(codes.Unavailable, "not sent"))
	}
	hang := func(sent bool) func(*faultkit.Calls, faultkit.Match, int) *faultkit.Fault {
		return func(c *faultkit.Calls, m faultkit.Match, n int) *faultkit.Fault { return c.Hang(m, n, sent) }
	}
	out := []fault{
		{name: "none", limit: enough, calls: func(c *faultkit.Calls, m faultkit.Match, _ int) *faultkit.Fault {
			return c.Lost(m, everyCall, nil)
		}},
		{name: "no answer within the limit", limit: enough, calls: hang(true)},
		{name: "not sent", last: 3 * time.Second, limit: enough, calls: fail},
		{name: "committed, Unavailable", last: 3 * time.Second, limit: enough, calls: lost(codes.Unavailable)},
	}
	for _, last := range []time.Duration{0, time.Second} {
		out = append(out,
			fault{"not sent", last, enough, fail, nil},
			fault{"committed, Unavailable", last, enough, lost(codes.Unavailable), nil},
			fault{"committed, DeadlineExceeded", last, enough, lost(codes.DeadlineExceeded), nil},
			fault{"committed, Canceled", last, enough, lost(codes.Canceled), nil},
			fault{"committed, Unknown", last, enough, lost(codes.Unknown), nil},
			fault{"committed, Internal", last, enough, lost(codes.Internal), nil},
			fault{"committed 300 ms late, Unavailable", last, enough, late(300*time.Millisecond, codes.Unavailable), nil},
			fault{"committed 1 s late, Unavailable", last, enough, late(time.Second, codes.Unavailable), nil},
			fault{"committed 500 ms late, Canceled", last, enough, late(500*time.Millisecond, codes.Canceled), nil},
			fault{"no answer, not sent, cut short", last, time.Second, hang(false), nil},
			fault{"no answer, committed, cut short", last, time.Second, hang(true), nil},
		)
	}
	return out
}

// lasting limits m to the time after its first match.
func lasting(m faultkit.Match, d time.Duration) faultkit.Match {
	var mu sync.Mutex
	var first time.Time
	return func(method string, req any) bool {
		if !m(method, req) {
			return false
		}
		mu.Lock()
		defer mu.Unlock()
		if first.IsZero() {
			first = time.Now()
		}
		return time.Since(first) < d
	}
}

// streamFaults returns all columns of the rows of streams.
func streamFaults() []fault {
	out := []fault{{name: "none", limit: enough, stream: func(*streamFault) {}}}
	for _, last := range []time.Duration{0, time.Second, 3 * time.Second} {
		for name, set := range map[string]func(*streamFault){
			"refused when opened":     func(f *streamFault) { f.refuse = true },
			"cut after no answer":     func(f *streamFault) { f.cut, f.after = true, 0 },
			"cut after one answer":    func(f *streamFault) { f.cut, f.after = true, 1 },
			"cut after two answers":   func(f *streamFault) { f.cut, f.after = true, 2 },
			"request lost":            func(f *streamFault) { f.mute, f.after = true, 0 },
			"second request lost":     func(f *streamFault) { f.mute, f.after = true, 1 },
			"answer lost":             func(f *streamFault) { f.deaf, f.after = true, 0 },
			"second answer lost":      func(f *streamFault) { f.deaf, f.after = true, 1 },
			"hangs when it is opened": func(f *streamFault) { f.stuck = true },
		} {
			out = append(out, fault{name: name, last: last, limit: 2 * enough, stream: set})
		}
	}
	return out
}

// A streamFault breaks the streams of one kind: once, or all for a time.
type streamFault struct {
	kind  callKind
	last  time.Duration
	after int // messages that pass first

	refuse, stuck, cut, deaf, mute bool

	mu    sync.Mutex
	armed bool
	first time.Time
	hits  int
}

func (f *streamFault) arm(armed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.armed = armed
}

// hit reports whether to apply the fault now.
func (f *streamFault) hit() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.armed {
		return false
	}
	if f.first.IsZero() {
		f.first = time.Now()
	}
	if f.last == 0 && f.hits > 0 || f.last > 0 && time.Since(f.first) >= f.last {
		return false
	}
	f.hits++
	return true
}

func (f *streamFault) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if kindOfStream(method) != f.kind {
		return open(ctx, desc, cc, method, opts...)
	}
	broken := status.Error(codes.Unavailable, "stream broken")
	if f.refuse && f.hit() {
		return nil, broken
	}
	if f.stuck && f.hit() {
		<-ctx.Done()
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	ctx, cancel := context.WithCancel(ctx)
	s, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		cancel()
		return nil, err
	}
	return &faultyStream{ClientStream: s, fault: f, cancel: cancel, broken: broken}, nil
}

type faultyStream struct {
	grpc.ClientStream
	fault      *streamFault
	cancel     context.CancelFunc
	broken     error
	sent, seen int // by one goroutine each
}

func (s *faultyStream) SendMsg(m any) error {
	s.sent++
	if s.fault.mute && s.sent > s.fault.after && s.fault.hit() {
		return nil
	}
	return s.ClientStream.SendMsg(m)
}

func (s *faultyStream) RecvMsg(m any) error {
	for {
		err := s.ClientStream.RecvMsg(m)
		if err != nil {
			s.cancel()
			return err
		}
		s.seen++
		switch {
		case s.seen <= s.fault.after:
		case s.fault.cut && s.fault.hit():
			s.cancel()
			return s.broken
		case s.fault.deaf && s.fault.hit():
			continue
		}
		return nil
	}
}
