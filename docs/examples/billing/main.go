// Billing runs the incident that revfence exists for: a nightly billing reconciliation by three worker
// processes under one lock, whose first holder is stopped for longer than the lock's TTL and then goes on.
//
// With the fence its late write is refused, and every invoice is in the ledger exactly once. With -unfenced
// customers are billed twice. README.md has the details.
package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"
)

// The exit codes; an interrupted run exits as shells expect, 130 for Ctrl-C.
const (
	exitOK     = 0
	exitError  = 1
	exitUsage  = 2
	exitDouble = 3
)

func main() {
	if doc, ok := os.LookupEnv(envWorker); ok {
		var j job
		if err := json.Unmarshal([]byte(doc), &j); err != nil {
			fmt.Fprintf(os.Stderr, "billing: %s: %v\n", envWorker, err)
			os.Exit(exitUsage)
		}
		os.Exit(workerMain(j, os.Stdin, os.Stdout))
	}
	os.Exit(supervise(os.Args[1:], os.Stdout, os.Stderr))
}

// signalError is why a run ends when a signal came.
type signalError struct{ os.Signal }

func (e signalError) Error() string { return "interrupted (" + e.String() + ")" }

// supervise is main of the process that people start.
func supervise(args []string, stdout, stderr *os.File) int {
	start := time.Now()
	// From the first moment on, so that no signal finds us between having started something and knowing how
	// to end it.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, endSignals...)
	defer signal.Stop(signals)
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	go func() {
		select {
		case s := <-signals: // a second one is for whoever waits for the workers to end
			cancel(signalError{s})
		case <-ctx.Done():
		}
	}()

	o, err := parseOptions(args, stdout)
	if errors.Is(err, flag.ErrHelp) {
		return exitOK
	}
	if err != nil {
		fmt.Fprintf(stderr, "billing: %v\nRun with -h for the flags.\n", err)
		return exitUsage
	}
	batch, err := loadInvoices(o.input)
	if err == nil && o.ledger != "" {
		err = checkLedger(o.ledger)
	}
	if err != nil {
		fmt.Fprintf(stderr, "billing: %v\n", err)
		return exitUsage
	}
	if !canPause {
		fmt.Fprintln(stderr, "billing: this platform has no SIGSTOP, so the pause this example is about cannot be made here; run it on Linux, macOS or a BSD")
		return exitError
	}
	s := &supervisor{o: o, batch: batch, signals: signals, timeline: newTimeline(stdout, start, o.json)}
	err = s.reconcileAll(ctx)
	if sig, ok := errors.AsType[signalError](err); ok {
		fmt.Fprintf(stderr, "billing: %v\n", err)
		return exitCode(sig.Signal)
	}
	switch {
	case err != nil:
		fmt.Fprintf(stderr, "billing: %v\n", err)
		return exitError
	case s.account.Outcome != exactlyOnce:
		fmt.Fprintf(stderr, "billing: %s\n", s.account.complaint(!o.json && isTerminal(stdout) && isTerminal(stderr)))
		if s.account.Outcome == doubles {
			return exitDouble
		}
		return exitError
	case !o.unfenced && len(s.account.Refusals) == 0:
		fmt.Fprintln(stderr, "billing: the resumed worker attempted no late write, so this run shows nothing")
		return exitError
	}
	return exitOK
}

// reconcileAll sets the stage, runs the workers, and takes the stage down again.
func (s *supervisor) reconcileAll(ctx context.Context) (err error) {
	mode := "ON: every transaction shows its token to the ledger first"
	if s.o.unfenced {
		mode = "OFF: the ledger takes every write"
	}
	s.say(event{Kind: kindRun, Count: len(s.batch), Night: night, Text: fmt.Sprintf("%s, %d workers, one lock (%s) with a TTL of %v, one night (%s) to be done once.\n"+
		"Once it has the lock, a worker does not look at it again; the incident's did not either.\n"+
		"The fence is %s.", count(len(s.batch), "invoice"), workers, lockName, s.o.ttl, night, mode)})

	dir, err := os.MkdirTemp("", "revfence-billing-")
	if err != nil {
		return err
	}
	keep := s.o.keep && s.o.ledger == ""
	defer func() {
		if !keep {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()

	endpoints := s.o.endpoints
	text := "uses etcd at " + strings.Join(endpoints, ",")
	if endpoints == nil {
		e, addr, err := startEtcd(ctx, filepath.Join(dir, "etcd"))
		if err != nil {
			return err
		}
		defer func() { e.Close(); os.RemoveAll(filepath.Join(dir, "etcd")) }()
		endpoints, text = []string{addr}, "started etcd at "+addr
	}
	// Of this run alone: another run's workers have another ledger, and no business with ours.
	prefix := "/revfence-billing/" + strings.ToLower(rand.Text()[:10]) + "/"
	if err := reach(ctx, endpoints, prefix); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	client, err := newClient(endpoints)
	if err != nil {
		return err
	}
	defer client.Close()

	s.path = s.o.ledger
	if s.path == "" {
		s.path = filepath.Join(dir, "ledger.db")
	}
	if err := reserveLedger(s.path); err != nil {
		return err
	}
	if s.books, err = openLedger(s.path, nil, 200*time.Millisecond); err != nil {
		return err
	}
	created := false
	defer func() { err = errors.Join(err, s.closeLedger(created, err)) }()
	if err := s.books.create(ctx, s.batch); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("ledger: %w", err)
	}
	created = true
	text += "; the ledger is " + s.path
	if s.o.ledger == "" && !s.o.keep {
		text += " (removed at the end; -keep keeps it)"
	}
	s.say(event{Kind: kindEtcd, Address: strings.Join(endpoints, ","), Ledger: s.path, Text: text})

	runErr := s.run(ctx, client, prefix, endpoints)
	if _, ok := errors.AsType[signalError](runErr); ok {
		s.say(event{Kind: kindInterrupted, Text: "INTERRUPTED: the workers have ended"})
	} else if runErr != nil {
		s.say(event{Kind: kindFailed, Text: runErr.Error()})
	}
	c, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	left, err := sweep(c, client, prefix)
	if runErr != nil {
		if err == nil {
			text := "no key of this run is left in etcd"
			if left > 0 {
				text += fmt.Sprintf("; %d had to be removed, of workers that did not come to it", left)
			}
			s.say(event{Kind: kindCleaned, Count: left, Text: text})
		}
		return errors.Join(runErr, err)
	}
	if err != nil {
		return err
	}
	content, err := s.books.read(c)
	if err != nil {
		return fmt.Errorf("reading the ledger: %w", err)
	}
	s.account.finish(content, !s.o.unfenced)
	s.say(event{Kind: kindSummary, Text: s.account.verdict(), Summary: &s.account})
	return s.timeline.err
}

// closeLedger closes the ledger of the run, and removes one that a failed run has left without an entry: it
// would only be in the way of the next.
func (s *supervisor) closeLedger(created bool, failed error) error {
	useless := failed != nil && !created
	if failed != nil && created {
		n, err := s.books.entries(context.Background(), "")
		useless = err == nil && n == 0
	}
	err := s.books.close()
	if useless {
		err = errors.Join(err, os.Remove(s.path))
	}
	return err
}
