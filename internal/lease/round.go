package lease

import (
	"context"
	"io"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/revfence/revfence/internal/clock"
)

// maxRounds bounds the rounds open at once. The oldest has had no answer for
// half a TTL when it makes room.
const maxRounds = 4

// A round is a set of streams that were opened together: one on the user's
// connection and, when the watchdog opened it, one through every endpoint, each
// on a connection of its own. The client pins one member, and round robin
// would be luck.
//
// A new round does not end the older ones: a slow link may still answer.
type round struct {
	begun  clock.Reading
	cancel context.CancelFunc
	main   *stream
	others []*stream
	conns  []io.Closer
}

// openLocked opens a round.
func (k *Keeper) openLocked(endpoints []string) {
	ctx, cancel := context.WithCancel(k.ctx)
	r := &round{begun: k.Clock.Now(), cancel: cancel}
	r.main = k.startLocked(ctx, k.Remote)
	for _, ep := range endpoints {
		remote, conn, err := k.Dial(ep)
		if err != nil {
			k.say(k.Logger.Warn, "cannot dial endpoint", zap.String("endpoint", ep), zap.Error(err))
			continue
		}
		r.conns = append(r.conns, conn)
		r.others = append(r.others, k.startLocked(ctx, remote))
	}
	k.rounds = append(k.rounds, r)
}

// closeLocked ends the i-th round.
func (k *Keeper) closeLocked(i int) {
	r := k.rounds[i]
	k.rounds = slices.Delete(k.rounds, i, i+1)
	r.cancel()
	k.hangUpLocked(r)
}

// hangUpLocked ends what a round has beside its main stream.
func (k *Keeper) hangUpLocked(r *round) {
	for _, s := range r.others {
		s.cancel()
	}
	conns := r.conns
	r.others, r.conns = nil, nil
	if len(conns) > 0 {
		k.wg.Go(func() { // closing a connection may wait for its dialer
			for _, c := range conns {
				_ = c.Close()
			}
		})
	}
}

// bark is the watchdog: it opens one more round. Many leases bark within
// moments of each other; one round serves them all.
func (k *Keeper) bark(l *Lease, left, every time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed || k.leases[l.id] != l || len(k.rounds) == 0 {
		return
	}
	if n := len(k.rounds); n > 1 && k.Clock.Now().Since(k.rounds[n-1].begun) < every {
		return
	}
	k.say(k.Logger.Warn, "lease renewal unanswered, trying every endpoint",
		zap.Int64("lease", l.id), zap.Duration("remaining", left), zap.Int("leases", len(k.leases)))
	k.openLocked(k.Endpoints())
	if len(k.rounds) > maxRounds {
		k.closeLocked(0)
	}
}

// answered ends the rounds that an answer on s shows to be of no more use: all
// others if s is on the user's connection, else those before it.
func (k *Keeper) answered(s *stream) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.rounds) == 1 && k.rounds[0].main == s && len(k.rounds[0].others) == 0 {
		return
	}
	for i, r := range k.rounds {
		switch {
		case r.main == s:
			for len(k.rounds) > i+1 {
				k.closeLocked(i + 1)
			}
			k.hangUpLocked(r)
		case !slices.Contains(r.others, s):
			continue
		}
		for ; i > 0; i-- {
			k.closeLocked(0)
		}
		return
	}
}
