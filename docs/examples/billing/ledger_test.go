package main

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/revfence/revfence/fencing"
	"github.com/revfence/revfence/fencing/fencingtest"
)

// newLedger opens the ledger at path as one process would, and creates it when batch is given.
func newLedger(tb testing.TB, path string, fence *ledgerFence, batch ...invoice) *ledger {
	tb.Helper()
	l, err := openLedger(path, fence, 5*time.Second)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { l.close() })
	if batch != nil {
		if err := reserveLedger(path); err != nil {
			tb.Fatal(err)
		}
		if err := l.create(tb.Context(), batch); err != nil {
			tb.Fatal(err)
		}
	}
	return l
}

var twoInvoices = []invoice{{"A-1", "Bau AG", 100, "EUR"}, {"A-2", "Bau AG", 250, "EUR"}}

// counts is the number of entries of each invoice, in the order of the batch.
func counts(t *testing.T, l *ledger) []int {
	t.Helper()
	all, err := l.read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	n := make([]int, len(all))
	for i, b := range all {
		n[i] = len(b.Entries)
	}
	return n
}

func wantStale(t *testing.T, err error, token, mark fencing.Token) {
	t.Helper()
	var stale *fencing.StaleError
	if !errors.As(err, &stale) || !errors.Is(err, fencing.ErrStale) || stale.Token != token || stale.HighWater != mark || stale.Resource != resource {
		t.Fatalf("got %v, want a *StaleError with token %d and mark %d", err, token, mark)
	}
}

func TestLedgerFence(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a ledger?#%20.db") // a name that a careless URI would break on
	fence := &ledgerFence{lock: lockName}
	old := newLedger(t, path, fence, twoInvoices...)
	next := newLedger(t, path, fence)
	ctx := t.Context()

	open, err := old.open(ctx, 5)
	if err != nil || len(open) != 2 {
		t.Fatalf("open: %v, %v", open, err)
	}
	if err := old.book(ctx, 5, "w1", open[0]); err != nil {
		t.Fatal(err)
	}
	if err := (armer{next}).Advance(ctx, 8); err != nil {
		t.Fatal(err)
	}
	wantStale(t, old.book(ctx, 5, "w1", open[1]), 5, 8)
	_, err = old.open(ctx, 7)
	wantStale(t, err, 7, 8)
	wantStale(t, armer{old}.Advance(ctx, 7), 7, 8)
	if n := counts(t, next); n[0] != 1 || n[1] != 0 {
		t.Fatalf("entries %v after a refused write, want [1 0]", n)
	}
	for _, bad := range []fencing.Token{0, -1} {
		if err := old.book(ctx, bad, "w1", open[1]); !errors.Is(err, fencing.ErrNoToken) {
			t.Fatalf("token %d: %v, want ErrNoToken", bad, err)
		}
	}
	if left, err := next.open(ctx, 8); err != nil || len(left) != 1 || left[0] != twoInvoices[1] {
		t.Fatalf("open for the next: %v, %v", left, err)
	}
	if err := next.book(ctx, 8, "w2", twoInvoices[1]); err != nil {
		t.Fatal(err)
	}
	if n := counts(t, old); n[0] != 1 || n[1] != 1 {
		t.Fatalf("entries %v, want [1 1]", n)
	}
	if err := reserveLedger(path); err == nil {
		t.Fatal("a ledger that exists was taken for a new one")
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("the file is not where it was asked for: %v", err)
	}
}

// Without the fence nothing keeps an invoice from being booked again: that is the premise of the example.
func TestLedgerUnfenced(t *testing.T) {
	l := newLedger(t, filepath.Join(t.TempDir(), "l.db"), nil, twoInvoices...)
	for _, token := range []fencing.Token{8, 5} {
		if err := l.book(t.Context(), token, "w", twoInvoices[0]); err != nil {
			t.Fatal(err)
		}
	}
	if n := counts(t, l); n[0] != 2 || n[1] != 0 {
		t.Fatalf("entries %v, want [2 0]", n)
	}
}

func TestLedgerFenceRefusesAnotherLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "l.db")
	ours := newLedger(t, path, &ledgerFence{lock: lockName}, twoInvoices...)
	theirs := newLedger(t, path, &ledgerFence{lock: "other"})
	if err := (armer{ours}).Advance(t.Context(), 5); err != nil {
		t.Fatal(err)
	}
	if err := theirs.book(t.Context(), 900, "w", twoInvoices[0]); err == nil || errors.Is(err, fencing.ErrStale) {
		t.Fatalf("another lock's token: %v, want an error that is not staleness", err)
	}
	if err := (armer{ours}).Advance(fencing.NewContext(t.Context(), "other", 900), 900); err == nil {
		t.Fatal("a context of another lock armed the fence")
	}
	if err := (armer{ours}).Advance(t.Context(), 5); err != nil {
		t.Fatalf("the mark has moved: %v", err)
	}
}

func TestLedgerFenceConformance(t *testing.T) {
	fencingtest.Run(t, func(tb testing.TB) fencingtest.Harness {
		path := filepath.Join(tb.TempDir(), "l.db")
		l := newLedger(tb, path, &ledgerFence{lock: "conformance"}, twoInvoices...)
		if _, err := l.db.ExecContext(tb.Context(), `CREATE TABLE value (v TEXT NOT NULL); INSERT INTO value VALUES ('')`); err != nil {
			tb.Fatal(err)
		}
		return harness(path, l)
	})
}

// harness drives the fence by the ledger's own transactions.
func harness(path string, l *ledger) fencingtest.Harness {
	return fencingtest.Harness{
		Fence: armer{l},
		Write: func(ctx context.Context, t fencing.Token, value string) error {
			return l.transact(ctx, t, func(tx *sql.Tx) error {
				fencingtest.Gap(ctx)
				_, err := tx.ExecContext(ctx, `UPDATE value SET v = ?`, value)
				return err
			})
		},
		Read: func(ctx context.Context, t fencing.Token) (value string, err error) {
			err = l.transact(ctx, t, func(tx *sql.Tx) error {
				return tx.QueryRowContext(ctx, `SELECT v FROM value`).Scan(&value)
			})
			return value, err
		},
		Reopen: func(tb testing.TB) fencingtest.Harness {
			if err := l.close(); err != nil {
				tb.Fatal(err)
			}
			return harness(path, newLedger(tb, path, l.fence))
		},
	}
}
