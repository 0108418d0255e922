package faultkit

import (
	"context"
	"slices"
	"sync"

	"google.golang.org/grpc"
)

// Streams disturbs the answers that a client gets on its streams, watches and kept-alive leases: pass its Stream to the
// client, then arm faults with Drop, Break and Change. What was received is what a Match is asked about. Of several
// faults that match an answer the one armed first is used. The zero value is ready and safe for concurrent use.
type Streams struct {
	mu     sync.Mutex
	faults []*StreamFault
}

// StreamFault is one armed fault. It ends by itself after the number of answers it was armed for.
type StreamFault struct {
	streams *Streams
	match   Match
	left    int
	hits    int
	apply   func(answer any) (pass bool, err error)
}

// Drop discards the next n matching answers.
func (s *Streams) Drop(match Match, n int) *StreamFault {
	return s.arm(match, n, func(any) (bool, error) { return false, nil })
}

// Break ends the stream with err in place of each of the next n matching answers.
func (s *Streams) Break(match Match, n int, err error) *StreamFault {
	return s.arm(match, n, func(any) (bool, error) { return false, err })
}

// Change passes the next n matching answers to change before the client sees them.
func (s *Streams) Change(match Match, n int, change func(answer any)) *StreamFault {
	return s.arm(match, n, func(answer any) (bool, error) {
		change(answer)
		return true, nil
	})
}

// Hits returns the number of answers the fault was applied to so far.
func (f *StreamFault) Hits() int {
	f.streams.mu.Lock()
	defer f.streams.mu.Unlock()
	return f.hits
}

// Disarm ends the fault early.
func (f *StreamFault) Disarm() {
	f.streams.mu.Lock()
	defer f.streams.mu.Unlock()
	f.left = 0
}

func (s *Streams) arm(match Match, n int, apply func(any) (bool, error)) *StreamFault {
	f := &StreamFault{streams: s, match: match, left: n, apply: apply}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, f)
	return f
}

// take returns the fault to apply to an answer, nil for none.
func (s *Streams) take(method string, answer any) *StreamFault {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.faults, func(f *StreamFault) bool { return f.left > 0 && f.match(method, answer) })
	if i < 0 {
		return nil
	}
	f := s.faults[i]
	f.left--
	f.hits++
	return f
}

// Stream is the interceptor that applies the faults. It has to be made part of the client's dial options.
func (s *Streams) Stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	ctx, cancel := context.WithCancel(ctx)
	in, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		cancel()
		return nil, err
	}
	return &disturbed{ClientStream: in, streams: s, method: method, cancel: cancel}, nil
}

// disturbed is one open stream. Its receiver is one goroutine, as gRPC demands.
type disturbed struct {
	grpc.ClientStream
	streams *Streams
	method  string
	cancel  context.CancelFunc
	broken  error
}

func (d *disturbed) RecvMsg(answer any) error {
	for d.broken == nil {
		if err := d.ClientStream.RecvMsg(answer); err != nil {
			d.cancel()
			return err
		}
		f := d.streams.take(d.method, answer)
		if f == nil {
			return nil
		}
		pass, err := f.apply(answer)
		if pass {
			return nil
		}
		if d.broken = err; err != nil {
			d.cancel()
		}
		// gRPC unmarshals the next answer over this one, emptying it first.
	}
	return d.broken
}
