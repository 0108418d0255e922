package lease

import (
	"context"
	"io"
	"time"

	"go.uber.org/zap"
)

// A rescue renews through every endpoint at once, each on a connection of its
// own: the client pins one member, and round robin would be luck.
type rescue struct {
	cancel  context.CancelFunc
	streams []*stream
	conns   []io.Closer
}

// bark is the watchdog: it reopens the main stream, and starts a rescue in
// place of the one that has not helped.
func (k *Keeper) bark(l *Lease, left time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed || k.leases[l.id] != l {
		return
	}
	if k.rescue != nil && !k.rescueStaleLocked() {
		return
	}
	k.Logger.Warn("lease renewal unanswered, trying every endpoint",
		zap.Int64("lease", l.id), zap.Duration("remaining", left), zap.Int("leases", len(k.leases)))
	k.calmLocked()
	if k.main != nil {
		k.main.restart()
	}
	ctx, cancel := context.WithCancel(k.ctx)
	r := &rescue{cancel: cancel}
	for _, ep := range k.Endpoints() {
		remote, conn, err := k.Dial(ep)
		if err != nil {
			k.Logger.Warn("cannot dial endpoint", zap.String("endpoint", ep), zap.Error(err))
			continue
		}
		r.conns = append(r.conns, conn)
		r.streams = append(r.streams, k.startLocked(ctx, remote))
	}
	k.rescue, k.rescuedAt = r, k.clock.Now()
}

// rescueStaleLocked: many leases bark within moments of each other; one
// rescue serves them all.
func (k *Keeper) rescueStaleLocked() bool {
	return k.clock.Now().Since(k.rescuedAt) > reopenWait
}

// answered ends the rescue once the main stream works again.
func (k *Keeper) answered(s *stream) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s == k.main {
		k.calmLocked()
	}
}

func (k *Keeper) calmLocked() {
	if k.rescue == nil {
		return
	}
	r := k.rescue
	k.rescue = nil
	r.cancel()
	k.wg.Go(func() { // closing a connection may wait for its dialer
		for _, c := range r.conns {
			_ = c.Close()
		}
	})
}
