package view

import (
	"context"
	"reflect"
	"strconv"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"
)

// streams hands out what watches run on. It is a Watcher of the view's own, and
// so a stream of its own, for two faults of clientv3's: a stream authenticates
// only when it is opened, so that once that token has expired no new watch on it
// would stand; and one on which a watch was given up before it stood begins no
// other, and lasts as long as its Watcher. Such a stream is left: later watches
// begin on another, and it is closed with the last watch that still runs on it.
type streams struct {
	base *clientv3.Client
	own  bool // else base's Watcher was wrapped by its owner, and must not be bypassed

	mu    sync.Mutex
	now   *stream
	made  int
	ended bool
}

type stream struct {
	clientv3.Watcher
	n     int
	users int
	left  bool
}

func newStreams(ctx context.Context, base *clientv3.Client) *streams {
	s := &streams{base: base}
	s.own = base.ActiveConnection() != nil && reflect.TypeOf(base.Watcher) == reflect.TypeOf(clientv3.NewWatcher(base))
	context.AfterFunc(ctx, s.end)
	return s
}

// join returns the stream for a watch under ctx, which is given back with part,
// and the context for the watch.
func (s *streams) join(ctx context.Context) (*stream, context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now == nil {
		s.now = &stream{Watcher: s.base.Watcher, n: s.made}
		if s.own {
			s.now.Watcher = clientv3.NewWatcher(s.base)
		}
		s.made++
	}
	s.now.users++
	if !s.own && s.now.n > 0 { // clientv3 shares a stream among the watches of one outgoing metadata
		ctx = metadata.AppendToOutgoingContext(ctx, "revfence-watch", strconv.Itoa(s.now.n))
	}
	return s.now, ctx
}

func (s *streams) part(w *stream) {
	s.mu.Lock()
	w.users--
	last := w.users == 0 && (w.left || s.ended)
	s.mu.Unlock()
	s.close(w, last)
}

// leave has later watches begin on another stream than w.
func (s *streams) leave(w *stream) {
	s.mu.Lock()
	if s.now == w {
		s.now = nil
	}
	w.left = true
	s.mu.Unlock()
}

// end closes the stream, or has its last watch do so.
func (s *streams) end() {
	s.mu.Lock()
	s.ended = true
	w := s.now
	idle := w != nil && w.users == 0
	s.mu.Unlock()
	s.close(w, idle)
}

func (s *streams) close(w *stream, last bool) {
	if last && s.own {
		_ = w.Close() // says only that a watch was running
	}
}
