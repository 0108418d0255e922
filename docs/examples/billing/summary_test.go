package main

import (
	"os"
	"path/filepath"
	"testing"
)

// account is a summary of invoices A, B, ... with these numbers of entries.
func account(entries ...int) *summary {
	var content []booked
	for i, n := range entries {
		b := booked{invoice: invoice{ID: string(rune('A' + i)), Cents: 100, Currency: "EUR"}}
		for range n {
			b.Entries = append(b.Entries, entry{Cents: 100, Worker: "w", Token: 1})
		}
		content = append(content, b)
	}
	s := new(summary)
	s.finish(content, false)
	return s
}

func TestVerdict(t *testing.T) {
	for _, c := range []struct {
		of                            *summary
		verdict, complaint, afterward string
	}{
		{account(1, 1), "each of the 2 invoices is in the ledger exactly once", "", ""},
		{account(1), "the invoice is in the ledger exactly once", "", ""},
		{account(2, 1, 3), "2 of 3 invoices are in the ledger more than once: A, C",
			"2 of 3 invoices are booked more than once: A, C", "2 of 3 invoices are booked more than once"},
		{account(1, 2), "1 of 2 invoices is in the ledger more than once: B",
			"1 of 2 invoices is booked more than once: B", "1 of 2 invoices is booked more than once"},
		{account(2), "1 of 1 invoice is in the ledger more than once: A",
			"1 of 1 invoice is booked more than once: A", "1 of 1 invoice is booked more than once"},
		{account(0, 2, 0), "2 of 3 invoices are not in the ledger: A, C",
			"2 of 3 invoices are not booked: A, C", "2 of 3 invoices are not booked"},
	} {
		if got := c.of.verdict(); got != c.verdict {
			t.Errorf("verdict %q, want %q", got, c.verdict)
		}
		if c.of.Outcome == exactlyOnce {
			continue
		}
		if got := c.of.complaint(false); got != c.complaint {
			t.Errorf("complaint %q, want %q", got, c.complaint)
		}
		if got := c.of.complaint(true); got != c.afterward {
			t.Errorf("complaint to somebody who has seen the table %q, want %q", got, c.afterward)
		}
	}
}

// Nobody reads the null device, so what is printed there has not been seen.
func TestIsTerminal(t *testing.T) {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	file, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, f := range []*os.File{null, file} {
		if isTerminal(f) {
			t.Errorf("%s is taken for a terminal", f.Name())
		}
	}
}
