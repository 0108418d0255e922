package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/fencing"
)

const (
	// lockName is the one lock that the three workers share.
	lockName = "nightly-reconciliation"
	// night is what is to be done once. It is the date that the job was scheduled for, the same for every
	// worker; the date on a worker's own clock may be another one by the time it gets the lock.
	night = "2026-11-04"
	// markTTL is for how long the night stays marked as done. Nobody comes later than that: the workers end
	// with the run, and so does the mark. It is what removes it when nobody is left to. Yours may keep it.
	markTTL = time.Hour
)

// job is what the supervisor tells a worker.
type job struct {
	Name      string        `json:"name"`
	Endpoints []string      `json:"endpoints"`
	Prefix    string        `json:"prefix"` // in etcd; of this run alone
	Night     string        `json:"night"`
	TTL       time.Duration `json:"ttl"`
	Pace      time.Duration `json:"pace"`
	Ledger    string        `json:"ledger"`
	Fenced    bool          `json:"fenced"`
}

// errStopped ends a worker that was told to end.
var errStopped = errors.New("told to stop")

// workerMain is main of a worker process. It reports on stdout; the end of stdin means that the supervisor
// is gone.
func workerMain(j job, stdin io.Reader, stdout io.Writer) int {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, endSignals...) // SIGPIPE among them: with the supervisor gone, the lock is still to be released
	defer signal.Stop(signals)
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	go func() {
		<-signals
		cancel(errStopped)
	}()
	go func() {
		_, _ = io.Copy(io.Discard, stdin)
		cancel(errStopped)
	}()
	r := newReporter(stdout, j.Name, os.Getpid())
	if err := work(ctx, j, r); err != nil && !errors.Is(err, errStopped) {
		r.report(event{Kind: kindFailed, Text: err.Error()})
		return exitError
	}
	return exitOK
}

// work is one worker: it asks for the lock, and sees to it that the night is done.
func work(ctx context.Context, j job, r *reporter) (err error) {
	client, err := newClient(j.Endpoints)
	if err != nil {
		return err
	}
	defer client.Close()
	var fence *ledgerFence
	if j.Fenced {
		fence = &ledgerFence{lock: lockName}
	}
	books, err := openLedger(j.Ledger, fence, 10*time.Second)
	if err != nil {
		return err
	}
	defer books.close()
	locker, err := etcdlock.New(client, etcdlock.WithTTL(j.TTL), etcdlock.WithPrefix(j.Prefix), etcdlock.WithIdentity(j.Name))
	if err != nil {
		return err
	}
	defer func() {
		c, cancel := context.WithTimeout(context.Background(), releaseTime)
		defer cancel()
		if cerr := locker.Close(c); err == nil && cerr != nil {
			err = fmt.Errorf("closing the locker: %w", cerr)
		}
	}()
	r.report(event{Kind: kindWaiting, Text: fmt.Sprintf("process %d asks for the lock", os.Getpid())})
	return onceTonight(ctx, j, locker, books, r)
}

// onceTonight reconciles under the lock and has the night marked as done, unless it is.
func onceTonight(ctx context.Context, j job, locker *etcdlock.Locker, books *ledger, r *reporter) error {
	opts := []etcdlock.OnceOption{etcdlock.WithMarkTTL(markTTL)}
	raised := "; the ledger is not fenced"
	if j.Fenced {
		// Raises the ledger's mark before the job starts: before this holder reads anything.
		opts = append(opts, etcdlock.WithFences(armer{books}))
		raised = " and has shown it to the ledger"
	}
	var told sync.Once
	tellLoss := func(err error) {
		if lost, ok := errors.AsType[*etcdlock.LostError](err); ok {
			told.Do(func() {
				r.report(event{Kind: kindLost, Token: int64(lost.Token), Text: fmt.Sprintf("hears from etcdlock that it has lost the lock: %v", lost.Reason)})
			})
		}
	}
	// Once tells no more than whether the night is done, so these say whether it was done here.
	var token fencing.Token // 0: the job has not run
	var worked error
	err := locker.Once(ctx, lockName, j.Night, func(_ context.Context, lock *etcdlock.Lock) error {
		token = lock.Token()
		r.report(event{Kind: kindAcquired, Token: int64(token), Key: lock.Key(), Text: fmt.Sprintf("HAS THE LOCK with token %d%s", token, raised)})
		defer context.AfterFunc(lock.Context(), func() { tellLoss(context.Cause(lock.Context())) })()
		worked = reconcile(ctx, j, books, token, r)
		return worked
	}, opts...)
	tellLoss(err)
	lost := errors.Is(err, etcdlock.ErrLost) && !errors.Is(err, etcdlock.ErrUnknown)
	switch {
	case err == nil && !token.Valid():
		r.report(event{Kind: kindAlready, Night: j.Night, Text: fmt.Sprintf("finds the night %s done: nothing to do", j.Night)})
	case err == nil:
		r.report(event{Kind: kindMarked, Token: int64(token), Night: j.Night, Text: fmt.Sprintf("has marked the night %s as done", j.Night)})
	case !token.Valid() && ctx.Err() != nil:
		return errStopped
	case token.Valid() && lost && (worked == nil || errors.Is(worked, fencing.ErrStale)):
		// No failure of this worker: the night is for a later holder to mark.
		r.report(event{Kind: kindUnmarked, Token: int64(token), Night: j.Night, Text: fmt.Sprintf("has not marked the night %s: it had lost the lock", j.Night)})
	default:
		return fmt.Errorf("the night %s: %w", j.Night, err)
	}
	return nil
}

// releaseTime bounds how long releasing may take; what is not released then ends with its lease.
const releaseTime = 2 * time.Second

// reconcile books every invoice that is open when it starts, each in a transaction of its own.
//
// It is the code of the incident: once it has the lock and its list, it does not look at the lock again. Your
// code should, with lock.Require before each step and lock.Context() for its calls; that makes a late write
// rare. It cannot make it impossible: the process may be paused between any look and the write after it,
// which is what happens here. It is the same loop with and without the fence.
//
// It returns nil only when every invoice is booked, since that is what marks the night.
func reconcile(ctx context.Context, j job, books *ledger, token fencing.Token, r *reporter) error {
	open, err := books.open(context.Background(), token)
	tellRefusal(err, "reads the ledger", event{Token: int64(token)}, r)
	if err != nil {
		return fmt.Errorf("reading what is open: %w", err)
	}
	text := fmt.Sprintf("reads the ledger: %s %s open", count(len(open), "invoice"), are(len(open)))
	if len(open) == 0 {
		text = "reads the ledger: nothing is open"
	}
	r.report(event{Kind: kindOpen, Token: int64(token), Count: len(open), Text: text})
	for i, v := range open {
		e := event{Token: int64(token), Invoice: v.ID, Index: i + 1, Count: len(open)}
		e.Kind, e.Text = kindPreparing, "prepares "+v.ID
		r.report(e)
		select {
		case <-time.After(j.Pace): // rating, rendering, ... all that takes time between deciding to write and writing
		case <-ctx.Done():
			return errStopped
		}
		// Not under the lock's context: see above.
		err := books.book(context.Background(), token, j.Name, v)
		tellRefusal(err, "writes "+v.ID, e, r)
		if err != nil {
			return fmt.Errorf("booking %s: %w", v.ID, err)
		}
		e.Kind, e.Text = kindBooked, fmt.Sprintf("books %s  %s  %s", v.ID, v.amount(), v.Customer)
		r.report(e)
	}
	r.report(event{Kind: kindDone, Token: int64(token), Count: len(open), Text: fmt.Sprintf("is through: %d booked", len(open))})
	return nil
}

// tellRefusal reports that the ledger has refused the token, when that is what err says.
func tellRefusal(err error, what string, e event, r *reporter) {
	if stale, ok := errors.AsType[*fencing.StaleError](err); ok {
		e.Kind, e.Mark = kindRefused, int64(stale.HighWater)
		e.Text = fmt.Sprintf("%s: REFUSED as stale, its token %d is below the ledger's mark %d; stops", what, stale.Token, stale.HighWater)
		r.report(e)
	}
}
