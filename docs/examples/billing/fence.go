package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/revfence/revfence/fencing"
)

const fenceSchema = `
CREATE TABLE fence (
	resource TEXT    PRIMARY KEY,
	lock     TEXT    NOT NULL,
	mark     INTEGER NOT NULL
);`

// resource names what the fence protects, in the fence table and in errors.
const resource = "ledger"

// ledgerFence is the ledger's high-water mark: a row in the same file as the entries, so that it is exactly
// as durable as they are, and can be raised in the same transaction.
type ledgerFence struct {
	lock string // the lock whose tokens it takes; a token of another lock means nothing here
}

// raise makes t the mark, or returns a *fencing.StaleError when a higher token was here. It has to be the
// first statement of tx. The row is rewritten at equality too, so that a transaction that only reads
// conflicts with the next holder's.
func (f *ledgerFence) raise(ctx context.Context, tx *sql.Tx, t fencing.Token) error {
	if !t.Valid() {
		return fmt.Errorf("%s: %w", resource, fencing.ErrNoToken)
	}
	var mark int64
	err := tx.QueryRowContext(ctx, `INSERT INTO fence (resource, lock, mark) VALUES (?, ?, ?)
		ON CONFLICT (resource) DO UPDATE SET mark = excluded.mark
			WHERE fence.mark <= excluded.mark AND fence.lock = excluded.lock
		RETURNING mark`, resource, f.lock, int64(t)).Scan(&mark)
	if !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	var lock string
	if err := tx.QueryRowContext(ctx, `SELECT lock, mark FROM fence WHERE resource = ?`, resource).Scan(&lock, &mark); err != nil {
		return err
	}
	if lock != f.lock {
		return fmt.Errorf("%s: fenced by lock %q, not by %q", resource, lock, f.lock)
	}
	return &fencing.StaleError{Resource: resource, Token: t, HighWater: fencing.Token(mark)}
}

// armer raises the mark as soon as the lock is taken; it is what etcdlock.WithFences gets.
type armer struct{ *ledger }

var _ fencing.Fence = armer{}

// Advance raises the mark in a transaction of its own. It protects no write: transact does.
func (a armer) Advance(ctx context.Context, t fencing.Token) error {
	if lock, _, ok := fencing.FromContext(ctx); ok && lock != a.fence.lock {
		return fmt.Errorf("%s: fenced by lock %q, not by %q", resource, a.fence.lock, lock)
	}
	return a.transact(ctx, t, func(*sql.Tx) error { return nil })
}
