package etcdlock

import (
	"container/list"
	"context"
	"sync"
)

// turns settles contention inside the process, first come first served, so
// that only one goroutine per name stands in etcd's queue.
type turns struct {
	mu    sync.Mutex
	names map[string]*list.List // of chan struct{}: who waits for the one whose turn it is
}

// take waits for the name's turn; ctx's cause if that ended first.
func (t *turns) take(ctx context.Context, name string) error {
	t.mu.Lock()
	waiting, busy := t.names[name]
	if !busy {
		t.names[name] = list.New()
		t.mu.Unlock()
		return nil
	}
	mine := make(chan struct{})
	place := waiting.PushBack(mine)
	t.mu.Unlock()
	select {
	case <-mine:
		return nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	select {
	case <-mine: // at the same moment: hand it on
		t.mu.Unlock()
		t.pass(name)
	default:
		waiting.Remove(place)
		t.mu.Unlock()
	}
	return context.Cause(ctx)
}

// try takes the turn only if nobody has it.
func (t *turns) try(name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, busy := t.names[name]; busy {
		return false
	}
	t.names[name] = list.New()
	return true
}

// pass ends the turn.
func (t *turns) pass(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	waiting := t.names[name]
	next := waiting.Front()
	if next == nil {
		delete(t.names, name)
		return
	}
	close(waiting.Remove(next).(chan struct{}))
}
