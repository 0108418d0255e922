package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/revfence/revfence/internal/call"
	"github.com/revfence/revfence/internal/clock"
)

// troubleEvery is how often a wait that goes on in spite of errors is logged.
const troubleEvery = time.Minute

// trouble keeps and logs what stands between a lock and etcd: a Lock without a
// deadline would else wait for ever without a word.
type trouble struct {
	locker *Locker
	what   string // the log's message
	name   string
	asked  clock.Reading

	mu   sync.Mutex
	step string        // what the acquisition is waiting for
	err  error         // the last one
	told clock.Reading // when it was last logged
}

func (t *trouble) note(err error) {
	now := t.locker.clock.Now()
	t.mu.Lock()
	t.err = err
	tell := t.told == (clock.Reading{}) || now.Since(t.told) >= troubleEvery
	if tell {
		t.told = now
	}
	t.mu.Unlock()
	if tell { // but not on the goroutine that watches or waits
		t.locker.background(func(context.Context) {
			t.locker.log.Warn(t.what, zap.String("lock", t.name), zap.Duration("for", now.Since(t.asked)), zap.Error(err))
		})
	}
}

// at notes what the acquisition is waiting for now. Earlier errors are over.
func (t *trouble) at(step string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.step, t.err = step, nil
}

// last notes what ended the acquisition, if it says more than that its context
// did.
func (t *trouble) last(err error) {
	var tries *call.TriesError
	if !errors.As(err, &tries) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.err = tries.Last
}

// sum says what the acquisition was waiting for, and the last error if any.
func (t *trouble) sum() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err == nil {
		return errors.New(t.step)
	}
	return fmt.Errorf("%s, the last error was %w", t.step, t.err)
}
