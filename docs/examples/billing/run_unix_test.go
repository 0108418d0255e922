//go:build unix

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// fast makes a run short: three seconds instead of eight.
func fast(more ...string) []string { return append([]string{"-ttl", "2s", "-pace", "50ms"}, more...) }

func TestRunFenced(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger.db")
	p := start(t, fast("-ledger", path)...)
	out, code := p.text()
	if code != exitOK || p.stderr.Len() > 0 {
		t.Fatalf("exit %d, stderr %q, output:\n%s", code, p.stderr.String(), out)
	}
	counts := entriesOf(t, path)
	if len(counts) != 12 {
		t.Errorf("%d invoices in the ledger, want 12", len(counts))
	}
	for id, n := range counts {
		if n != 1 {
			t.Errorf("%s has %d entries", id, n)
		}
	}
	for _, want := range []string{"HAS THE LOCK", "STOPS worker-", "its lease ran out", "RESUMES worker-", "REFUSED as stale", "has not marked the night",
		"has marked the night 2026-11-04 as done", "finds the night 2026-11-04 done: nothing to do", "12 invoices, 3 workers", "12 invoices are open", "What is in the ledger", "Who had the lock", "What the ledger refused", "Each of the 12 invoices is in the ledger exactly once."} {
		if !strings.Contains(out, want) {
			t.Errorf("the output does not say %q:\n%s", want, out)
		}
	}
	if strings.Contains(out, "removed at the end") {
		t.Errorf("the output says that the ledger is removed, but -ledger keeps it:\n%s", out)
	}
	if strings.Contains(out, "\x1b") {
		t.Error("the output is coloured, but is no terminal")
	}
	p.wantNothingLeft()
}

func TestRunFencedJSON(t *testing.T) {
	t.Parallel()
	p := start(t, fast("-json", "-keep")...)
	if code := p.end(); code != exitOK || p.stderr.Len() > 0 {
		t.Fatalf("exit %d, stderr %q, events %v", code, p.stderr.String(), kinds(p.events))
	}
	last := 0.0
	for _, e := range p.events {
		if e.T < last || e.Kind == "" || e.Who == "" || e.Text == "" {
			t.Errorf("event %+v after %.3f s", e, last)
		}
		last = e.T
	}
	order := slices.DeleteFunc(kinds(p.events), func(k string) bool {
		return !slices.Contains([]string{kindRun, kindEtcd, kindStopped, kindDeleted, kindResumed, kindRefused, kindSummary}, k)
	})
	if want := []string{kindRun, kindEtcd, kindStopped, kindDeleted, kindResumed, kindRefused, kindSummary}; !slices.Equal(order, want) {
		t.Errorf("events came as %v, want %v", order, want)
	}

	stopped, resumed, refused := p.find(kindStopped), p.find(kindResumed), p.find(kindRefused)
	if resumed.T-stopped.T <= 2 {
		t.Errorf("stopped at %.3f s, resumed at %.3f s: not longer than the TTL of 2 s", stopped.T, resumed.T)
	}
	if refused.Invoice != stopped.Invoice || refused.PID != stopped.PID || refused.Token != stopped.Token || refused.Mark <= refused.Token {
		t.Errorf("stopped %+v, but refused %+v", stopped, refused)
	}
	pids := map[int]bool{}
	for _, e := range p.events {
		if e.Kind == kindWaiting {
			pids[e.PID] = true
		}
	}
	if len(pids) != workers {
		t.Errorf("%d worker processes, want %d", len(pids), workers)
	}

	sum := p.find(kindSummary).Summary
	if sum == nil || sum.Outcome != exactlyOnce || !sum.Fenced || len(sum.Invoices) != 12 || len(sum.Holds) < 2 || len(sum.Refusals) == 0 {
		t.Fatalf("summary %+v", sum)
	}
	if first := sum.Holds[0]; first.End != "lease ran out" || first.Until <= stopped.T || first.Until >= resumed.T {
		t.Errorf("the first hold is said to have been %+v", first)
	}
	for i, h := range sum.Holds[1:] {
		if before := sum.Holds[i]; h.Token <= before.Token || h.From < before.From || h.End == "" {
			t.Errorf("hold %+v follows %+v", h, before)
		}
	}
	wantNightDone(t, p.events)
	for _, total := range sum.Totals {
		if total.Batch != total.Booked || total.Batch == 0 {
			t.Errorf("total %+v", total)
		}
	}

	// -keep: the ledger is where the run said.
	if text := p.find(kindEtcd).Text; strings.Contains(text, "removed") {
		t.Errorf("with -keep it says %q", text)
	}
	ledger := p.find(kindEtcd).Ledger
	if n := entriesOf(t, ledger); len(n) != 12 {
		t.Errorf("the kept ledger has %v", n)
	}
	dir, _ := filepath.Split(ledger)
	p.wantNothingLeft(filepath.Base(dir))
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("beside the kept ledger: %v, %v", left, err)
	}
}

// wantNightDone checks that one worker has marked the night, that it was not the one that was stopped, and that each one
// that was not let in before found the night done.
func wantNightDone(t *testing.T, events []event) {
	t.Helper()
	kinds, stopped := map[string]int{}, 0
	for _, e := range events {
		kinds[e.Kind]++
		switch e.Kind {
		case kindStopped:
			stopped = e.PID
		case kindMarked:
			if e.PID == stopped {
				t.Errorf("the worker that was stopped has marked the night: %+v", e)
			}
		}
		if night := e.Night == night; night != slices.Contains([]string{kindRun, kindAlready, kindMarked, kindUnmarked}, e.Kind) {
			t.Errorf("the night in %+v", e)
		}
	}
	if kinds[kindMarked] != 1 || kinds[kindUnmarked] == 0 || kinds[kindAcquired]+kinds[kindAlready] != workers ||
		kinds[kindAcquired] != kinds[kindMarked]+kinds[kindUnmarked] {
		t.Errorf("the night has not come to a good end: %v", kinds)
	}
}

func TestRunUnfenced(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger.db")
	p := start(t, fast("-json", "-unfenced", "-ledger", path)...)
	if code := p.end(); code != exitDouble {
		t.Fatalf("exit %d, stderr %q, events %v", code, p.stderr.String(), kinds(p.events))
	}
	if e := p.find(kindRefused); e != nil {
		t.Errorf("refused without a fence: %+v", e)
	}
	if e := p.find(kindLost); e == nil {
		t.Error("the resumed worker never heard that it had lost the lock")
	}
	wantNightDone(t, p.events)
	var twice []string
	for id, n := range entriesOf(t, path) {
		if n < 1 {
			t.Errorf("%s is not booked", id)
		}
		if n > 1 {
			twice = append(twice, id)
			if !strings.Contains(p.stderr.String(), id) {
				t.Errorf("%s has %d entries, but stderr does not name it: %s", id, n, p.stderr.String())
			}
		}
	}
	slices.Sort(twice)
	sum := p.find(kindSummary).Summary
	if len(twice) == 0 || sum.Outcome != doubles || sum.Fenced || !slices.Equal(sum.named(doubles), twice) {
		t.Errorf("the ledger has %v twice, the summary says %v", twice, sum.named(doubles))
	}
	if at := p.find(kindStopped).Invoice; !slices.Contains(twice, at) {
		t.Errorf("%s, which the first holder was about to write, is not among the doubles %v", at, twice)
	}
	p.wantNothingLeft()
}

// A batch of one leaves the first holder no invoice before the pause, and the second none after it.
func TestRunOneInvoice(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := filepath.Join(dir, "one.csv")
	if err := os.WriteFile(in, []byte(header+"A-1,Bau AG,19.99,EUR\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "ledger.db")
	p := start(t, "-ttl", "2s", "-pace", "1s", "-input", in, "-ledger", path)
	out, code := p.text()
	if code != exitOK {
		t.Fatalf("exit %d, stderr %q, output:\n%s", code, p.stderr.String(), out)
	}
	for _, want := range []string{"1 invoice, 3 workers", "1 invoice is open", "REFUSED", "The invoice is in the ledger exactly once."} {
		if !strings.Contains(out, want) {
			t.Errorf("the output does not say %q:\n%s", want, out)
		}
	}
	if n := entriesOf(t, path); n["A-1"] != 1 {
		t.Errorf("entries %v", n)
	}
	p.wantNothingLeft()
}

func TestRunRefusesBeforeItStarts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	bad := file("bad.csv", header+"A-1,Bau AG,1.00,EUR\nA-2,Bau AG,1;00,EUR\n")
	taken := file("taken.db", "something of value")
	file("new.db-journal", "")
	for _, c := range []struct {
		name string
		args []string
		code int
		says string
	}{
		{"unknown flag", []string{"-nope"}, exitUsage, "billing: flag provided but not defined: -nope\nRun with -h for the flags.\n"},
		{"TTL without unit", []string{"-ttl", "3"}, exitUsage, "billing: -ttl \"3\": want a duration such as 3s\nRun with -h for the flags.\n"},
		{"argument", []string{"invoices.csv"}, exitUsage, "invoices.csv"},
		{"short TTL", []string{"-ttl", "1s"}, exitUsage, "-ttl 1s"},
		{"endpoint without port", []string{"-endpoints", "localhost"}, exitUsage, "localhost"},
		{"input absent", []string{"-input", filepath.Join(dir, "absent.csv")}, exitUsage, "absent.csv"},
		{"input malformed", []string{"-input", bad}, exitUsage, "bad.csv: line 3, column 12 (amount)"},
		{"ledger taken", []string{"-ledger", taken}, exitUsage, "taken.db"},
		{"ledger in no directory", []string{"-ledger", filepath.Join(dir, "no", "l.db")}, exitUsage, "no such file or directory"},
		{"ledger in a file", []string{"-ledger", filepath.Join(taken, "l.db")}, exitUsage, "not a directory"},
		{"journal of another ledger", []string{"-ledger", filepath.Join(dir, "new.db")}, exitUsage, "new.db-journal"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := start(t, c.args...)
			out, code := p.text()
			if code != c.code || out != "" || !strings.Contains(p.stderr.String(), c.says) {
				t.Errorf("exit %d, stdout %q, stderr %q; want exit %d, saying %q", code, out, p.stderr.String(), c.code, c.says)
			}
			p.wantNothingLeft()
		})
	}
	if b, err := os.ReadFile(taken); err != nil || string(b) != "something of value" {
		t.Errorf("the occupied file has become %q, %v", b, err)
	}
	t.Run("help", func(t *testing.T) {
		p := start(t, "-h")
		if out, code := p.text(); code != exitOK || !strings.Contains(out, "-unfenced") || p.stderr.Len() > 0 {
			t.Errorf("exit %d, stdout %q, stderr %q", code, out, p.stderr.String())
		}
	})
}
