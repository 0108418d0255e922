package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/revfence/revfence/fencing"
	_ "modernc.org/sqlite"
)

// The entry table has no unique constraint on the invoice, and nothing looks whether an invoice is booked
// already before booking it: as in the incident, only the fence stands between two writers and a customer
// who is billed twice.
const schema = `
CREATE TABLE invoice (
	line     INTEGER PRIMARY KEY,
	id       TEXT    NOT NULL,
	customer TEXT    NOT NULL,
	cents    INTEGER NOT NULL,
	currency TEXT    NOT NULL
);
CREATE TABLE entry (
	number   INTEGER PRIMARY KEY,
	invoice  TEXT    NOT NULL,
	cents    INTEGER NOT NULL,
	currency TEXT    NOT NULL,
	worker   TEXT    NOT NULL,
	token    INTEGER NOT NULL
);` + fenceSchema

// ledger is the SQLite file that the workers book into.
type ledger struct {
	db    *sql.DB
	fence *ledgerFence // nil: unfenced
}

// reserveLedger creates the file, and fails when there is one already. What it created, nobody else had.
func reserveLedger(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return occupied(path)
	}
	if err != nil {
		return err
	}
	return f.Close()
}

func occupied(path string) error {
	return fmt.Errorf("ledger %s: there is a file already; a run needs a new one (remove it, or name another)", path)
}

// checkLedger says early what reserveLedger would run into.
func checkLedger(path string) error {
	if _, err := os.Lstat(path); err == nil {
		return occupied(path)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("ledger: %w", err)
	}
	dir, err := os.Stat(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("ledger: the directory it would be in: %w", err)
	}
	if !dir.IsDir() {
		return fmt.Errorf("ledger: %s is not a directory", filepath.Dir(path))
	}
	for _, suffix := range []string{"-journal", "-wal", "-shm"} { // SQLite would take it for ours
		if _, err := os.Lstat(path + suffix); err == nil {
			return occupied(path + suffix)
		}
	}
	return nil
}

// openLedger opens the file at an absolute path. Transactions begin as writing ones (BEGIN IMMEDIATE), and
// wait for one another as long as busy says.
func openLedger(path string, fence *ledgerFence, busy time.Duration) (*ledger, error) {
	slashed := filepath.ToSlash(path)
	if !strings.HasPrefix(slashed, "/") {
		slashed = "/" + slashed // a drive letter
	}
	u := url.URL{Scheme: "file", Path: slashed, RawQuery: fmt.Sprintf("_txlock=immediate&_pragma=busy_timeout(%d)", busy.Milliseconds())}
	db, err := sql.Open("sqlite", u.String())
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	return &ledger{db: db, fence: fence}, nil
}

func (l *ledger) close() error { return l.db.Close() }

// create lays the tables and the batch into a new ledger.
func (l *ledger) create(ctx context.Context, batch []invoice) error {
	tx, err := l.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, err := tx.ExecContext(ctx, schema); err != nil {
		return err
	}
	for _, v := range batch {
		if _, err := tx.ExecContext(ctx, `INSERT INTO invoice (id, customer, cents, currency) VALUES (?, ?, ?, ?)`,
			v.ID, v.Customer, v.Cents, v.Currency); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// transact runs fn in a transaction whose first statement raises the fence's mark to t. Check and write are
// thereby one step: either the token is good and everything in fn happens, or nothing does.
func (l *ledger) transact(ctx context.Context, t fencing.Token, fn func(*sql.Tx) error) error {
	tx, err := l.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if l.fence != nil {
		if err := l.fence.raise(ctx, tx, t); err != nil {
			return err
		}
	}
	if err := fn(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// open lists the invoices that are not booked yet, in the order of the batch. The fence comes first here
// too: a holder that read before it showed its token could be overtaken by the late write of the one before.
func (l *ledger) open(ctx context.Context, t fencing.Token) (open []invoice, err error) {
	err = l.transact(ctx, t, func(tx *sql.Tx) error {
		rows, err := tx.QueryContext(ctx, `SELECT id, customer, cents, currency FROM invoice
			WHERE id NOT IN (SELECT invoice FROM entry) ORDER BY line`)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var v invoice
			if err := rows.Scan(&v.ID, &v.Customer, &v.Cents, &v.Currency); err != nil {
				return err
			}
			open = append(open, v)
		}
		return rows.Err()
	})
	return open, err
}

// book writes one invoice into the ledger, in a transaction of its own.
func (l *ledger) book(ctx context.Context, t fencing.Token, worker string, v invoice) error {
	return l.transact(ctx, t, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO entry (invoice, cents, currency, worker, token) VALUES (?, ?, ?, ?, ?)`,
			v.ID, v.Cents, v.Currency, worker, int64(t))
		return err
	})
}

// entries counts what is booked; of one invoice, or of all when id is empty. It fails when a writer holds
// the file for longer than the busy time: the supervisor asks while that writer may be stopped.
func (l *ledger) entries(ctx context.Context, id string) (n int, err error) {
	tx, err := l.db.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer tx.Rollback()
	err = tx.QueryRowContext(ctx, `SELECT COUNT(*) FROM entry WHERE ? IN ('', invoice)`, id).Scan(&n)
	return n, err
}

// entry is one line of the ledger, as the final report shows it.
type entry struct {
	Cents  int64  `json:"cents"`
	Worker string `json:"worker"`
	Token  int64  `json:"token"`
}

// booked is an invoice and everything the ledger has for it.
type booked struct {
	invoice
	Entries []entry `json:"entries"`
}

// read returns the content of the ledger, in the order of the batch.
func (l *ledger) read(ctx context.Context) ([]booked, error) {
	rows, err := l.db.QueryContext(ctx, `SELECT i.id, i.customer, i.cents, i.currency, e.cents, e.worker, e.token
		FROM invoice i LEFT JOIN entry e ON e.invoice = i.id ORDER BY i.line, e.number`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []booked
	for rows.Next() {
		var v invoice
		var cents, token sql.NullInt64
		var worker sql.NullString
		if err := rows.Scan(&v.ID, &v.Customer, &v.Cents, &v.Currency, &cents, &worker, &token); err != nil {
			return nil, err
		}
		if len(all) == 0 || all[len(all)-1].ID != v.ID {
			all = append(all, booked{v, []entry{}})
		}
		if cents.Valid {
			b := &all[len(all)-1]
			b.Entries = append(b.Entries, entry{cents.Int64, worker.String, token.Int64})
		}
	}
	return all, rows.Err()
}
