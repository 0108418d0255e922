package etcdlock

import (
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/revfence/revfence/internal/clock"
)

// WithClock makes a Locker read another clock than the machine's.
func WithClock(c clock.Source) Option {
	return optionFunc(func(conf *config) error {
		conf.clock = c
		return nil
	})
}

// TurnsWaiting returns how many goroutines wait behind another of their own Locker for name.
func (l *Locker) TurnsWaiting(name string) int {
	l.turns.mu.Lock()
	defer l.turns.mu.Unlock()
	if waiting := l.turns.names[name]; waiting != nil {
		return waiting.Len()
	}
	return 0
}

// IdleLeases returns the leases that are kept for reuse.
func (l *Locker) IdleLeases() (ids []clientv3.LeaseID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.room {
		if len(s.names) == 0 {
			ids = append(ids, s.lease.ID())
		}
	}
	return ids
}
