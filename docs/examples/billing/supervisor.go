package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	workers = 3
	// grace is how long a worker may take to end before it is killed.
	grace = 4 * time.Second
	// enough is how many invoices the second holder books before the first is resumed: both are at work then.
	enough = 2
	// margin is how much longer than the TTL the first holder stands still, at least, by the times of the
	// timeline. It is many times what rounding those to milliseconds takes away.
	margin = 100 * time.Millisecond
)

// supervisor starts the workers, stops and resumes the first holder, and keeps account of what it hears.
type supervisor struct {
	o        options
	batch    []invoice
	books    *ledger
	path     string
	timeline *timeline
	signals  <-chan os.Signal
	quiet    time.Duration // longest time without any event before the run is given up

	msgs      chan message
	deletions chan deletion
	running   map[*process]bool

	first    *process  // the first holder
	token    int64     // its token
	pauseAt  int       // it is stopped before it writes this invoice of its list, or one soon after
	paused   time.Time // when its stop had been seen and told
	resumed  bool
	gone     bool // its key is deleted
	takeover bool // another worker has the lock
	others   int  // invoices booked by others while the first is stopped
	through  bool // another worker has finished
	reported error
	account  summary
}

// now is an event's time: seconds since start, to the millisecond.
func (s *supervisor) now() float64 { return math.Round(s.timeline.now().Seconds()*1000) / 1000 }

func (s *supervisor) say(e event) {
	e.T = s.now()
	if e.Who == "" {
		e.Who = "supervisor"
	}
	s.timeline.print(e)
}

// run lets the workers do the reconciliation. When it returns, they have ended, whatever the error is.
func (s *supervisor) run(ctx context.Context, client *clientv3.Client, prefix string, endpoints []string) (err error) {
	s.msgs = make(chan message, 16)
	s.deletions = make(chan deletion, 16)
	s.running = map[*process]bool{}
	s.pauseAt = min(5, 1+len(s.batch)/3)
	s.quiet = 3*s.o.ttl + s.o.pace + 15*time.Second
	s.account.holds = map[int64]*hold{}

	wctx, cancel := context.WithCancel(ctx)
	watching, err := watchDeletions(wctx, client, prefix, s.deletions)
	defer func() {
		s.end()
		s.drainDeletions()
		cancel()
		if watching != nil {
			<-watching
		}
	}()
	if err != nil {
		return err
	}
	for i := range workers {
		p, err := startProcess(job{
			Name: fmt.Sprintf("worker-%d", i+1), Endpoints: endpoints, Prefix: prefix, Night: night,
			TTL: s.o.ttl, Pace: s.o.pace, Ledger: s.path, Fenced: !s.o.unfenced,
		}, s.msgs)
		if err != nil {
			return err
		}
		s.running[p] = true
	}
	for len(s.running) > 0 {
		if err := s.step(ctx); err != nil {
			return err
		}
	}
	switch {
	case s.paused.IsZero():
		return errors.New("the first holder was never stopped between two invoices (a longer -pace makes that easier)")
	case !s.resumed:
		return errors.New("the stopped worker ended before it was resumed")
	}
	return nil
}

// step waits for one thing to happen.
func (s *supervisor) step(ctx context.Context) error {
	if s.timeline.err != nil {
		return fmt.Errorf("writing the timeline: %w", s.timeline.err)
	}
	stopped := !s.paused.IsZero() && !s.resumed
	var due <-chan time.Time // looks again when the pause has been long enough
	if left := time.Until(s.paused.Add(s.o.ttl + margin)); stopped && left > 0 {
		due = time.After(left)
	}
	select {
	case m := <-s.msgs:
		if err := s.hear(ctx, m); err != nil {
			return err
		}
	case d := <-s.deletions:
		s.deleted(d)
	case <-due:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(s.quiet):
		return fmt.Errorf("nothing has happened for %v", s.quiet)
	}
	if stopped && time.Since(s.paused) >= s.o.ttl+margin && s.gone && s.takeover && (s.others >= enough || s.through) {
		return s.resume()
	}
	return nil
}

// hear takes in what a worker reports.
func (s *supervisor) hear(ctx context.Context, m message) error {
	if m.exited {
		delete(s.running, m.from)
		if s.reported != nil {
			return s.reported
		}
		return m.err
	}
	e := m.event
	e.T = s.now()
	s.timeline.print(e)
	s.account.add(e)
	other := s.first != nil && m.from != s.first
	switch e.Kind {
	case kindAcquired:
		if s.first == nil {
			s.first, s.token = m.from, e.Token
		}
		s.takeover = s.takeover || other && !s.paused.IsZero()
	case kindPreparing:
		if m.from == s.first && s.paused.IsZero() && e.Index >= s.pauseAt {
			return s.pause(ctx, e)
		}
	case kindBooked:
		if other {
			s.others++
		}
	case kindDone:
		s.through = s.through || other
	case kindFailed:
		s.reported = fmt.Errorf("%s: %s", e.Who, e.Text) // its exit follows
	}
	return nil
}

// pause stops the first holder, which is about to write an invoice. Should it be further already (in the
// middle of the transaction, or past it), it is let go, and stopped at the next one.
func (s *supervisor) pause(ctx context.Context, e event) error {
	if err := s.first.stop(ctx); err != nil {
		return fmt.Errorf("stopping %s: %w", s.first.name, err)
	}
	if n, err := s.books.entries(ctx, e.Invoice); err != nil || n != 0 {
		s.say(event{Kind: kindMissed, Invoice: e.Invoice, Text: "stopped " + s.first.name + " too late to be between two invoices; lets it go on to the next"})
		return s.first.resume()
	}
	s.say(event{Kind: kindStopped, Token: e.Token, Invoice: e.Invoice, PID: e.PID,
		Text: fmt.Sprintf("STOPS %s (SIGSTOP): it has the lock and is about to write %s", s.first.name, e.Invoice)})
	s.paused = time.Now()
	return nil
}

func (s *supervisor) resume() error {
	if err := s.first.resume(); err != nil {
		return fmt.Errorf("resuming %s: %w", s.first.name, err)
	}
	s.resumed = true
	s.say(event{Kind: kindResumed, Token: s.token,
		Text: fmt.Sprintf("RESUMES %s (SIGCONT) after %.1f s; it goes on as if nothing had happened", s.first.name, time.Since(s.paused).Seconds())})
	return nil
}

// deleted takes in that a key is gone from etcd.
func (s *supervisor) deleted(d deletion) {
	e := event{T: s.now(), Kind: kindDeleted, Who: "etcd", Token: d.token, Key: d.key}
	h := s.account.holds[d.token]
	if h == nil || h.Key != d.key {
		return // a waiter's place, or a hold we have not heard of yet
	}
	s.account.add(e)
	s.gone = s.gone || d.token == s.token
	if s.first != nil && d.token == s.token && !s.paused.IsZero() && !s.resumed {
		e.Text = fmt.Sprintf("deletes the key of %s (token %d): its lease ran out, the next waiter's turn", s.first.name, d.token)
		s.timeline.print(e)
	}
}

func (s *supervisor) drainDeletions() {
	for {
		select {
		case d := <-s.deletions:
			s.deleted(d)
		default:
			return
		}
	}
}

// end ends the workers that are still there: asks them, a stopped one after it was resumed, and kills who
// does not follow within the grace, or at once when another signal comes.
func (s *supervisor) end() {
	if len(s.running) == 0 {
		return
	}
	for p := range s.running {
		p.terminate()
	}
	patience := time.After(grace)
	for len(s.running) > 0 {
		select {
		case m := <-s.msgs:
			if m.exited {
				delete(s.running, m.from)
			} else if e := m.event; e.Kind != kindLost { // the consequence of being ended late
				e.T = s.now()
				s.timeline.print(e)
				s.account.add(e)
			}
		case d := <-s.deletions:
			s.deleted(d)
		case <-patience:
			patience = nil
			s.killAll()
		case <-s.signals:
			s.killAll()
		}
	}
}

func (s *supervisor) killAll() {
	for p := range s.running {
		p.kill()
	}
}
