package main

import (
	"bytes"
	_ "embed"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"
)

// builtin is the batch that ships with the example; embedded, so that it runs from any directory.
//
//go:embed invoices.csv
var builtin []byte

const (
	maxInvoices = 10_000
	maxFile     = 10 << 20 // bytes
	maxField    = 80       // characters
)

var columns = [...]string{"invoice", "customer", "amount", "currency"}

const headerLine = "invoice,customer,amount,currency" // the columns, as the first line names them

// invoice is one line of the batch.
type invoice struct {
	ID       string `json:"invoice"`
	Customer string `json:"customer"`
	Cents    int64  `json:"cents"`
	Currency string `json:"currency"`
}

func (v invoice) amount() string { return formatCents(v.Cents) + " " + v.Currency }

// inputError is a fault in the batch, at the place where it stands.
type inputError struct {
	line, column int    // from 1; the column counts bytes, as editors' "go to" does for ASCII
	field        string // the name of the column, when known
	err          error
}

func (e *inputError) Error() string {
	field := ""
	if e.field != "" {
		field = " (" + e.field + ")"
	}
	return fmt.Sprintf("line %d, column %d%s: %v", e.line, e.column, field, e.err)
}

func (e *inputError) Unwrap() error { return e.err }

// loadInvoices reads the batch from a file, or the one that ships with the example when path is empty.
func loadInvoices(path string) ([]invoice, error) {
	if path == "" {
		return parseInvoices(builtin)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("%s: larger than %d MiB", path, maxFile>>20)
	}
	batch, err := parseInvoices(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return batch, nil
}

// parseInvoices reads a CSV with the header "invoice,customer,amount,currency". Every fault is an
// *inputError, except a batch without invoices.
func parseInvoices(data []byte) ([]invoice, error) {
	data = bytes.TrimPrefix(data, []byte("\ufeff")) // spreadsheets put one there
	r := csv.NewReader(bytes.NewReader(data))
	r.FieldsPerRecord = -1 // counted below, where the place is known
	var batch []invoice
	first := map[string]int{} // invoice id -> line
	for header := true; ; header = false {
		rec, err := r.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			if pe, ok := errors.AsType[*csv.ParseError](err); ok {
				return nil, quoteError(data, pe)
			}
			return nil, err
		}
		if err := checkFields(r, rec, header); err != nil {
			return nil, err
		}
		if header {
			continue
		}
		v := invoice{ID: rec[0], Customer: rec[1], Currency: rec[3]}
		at := func(i int, err error) error {
			line, col := r.FieldPos(i)
			return &inputError{line, col, columns[i], err}
		}
		if v.Cents, err = parseCents(rec[2]); err != nil {
			return nil, at(2, err)
		}
		if !currency(v.Currency) {
			return nil, at(3, fmt.Errorf("%q is not a currency code such as EUR", v.Currency))
		}
		line, _ := r.FieldPos(0)
		if before, twice := first[v.ID]; twice {
			return nil, at(0, fmt.Errorf("invoice %q is in the batch already, on line %d", v.ID, before))
		}
		if len(batch) == maxInvoices {
			return nil, at(0, fmt.Errorf("more than %d invoices", maxInvoices))
		}
		first[v.ID] = line
		batch = append(batch, v)
	}
	if len(batch) == 0 {
		return nil, errors.New("no invoices: the file needs a header (" + headerLine + ") and at least one line after it")
	}
	return batch, nil
}

// checkFields checks what all fields have in common: their number, the header's names, and text that is
// safe to print on a terminal.
func checkFields(r *csv.Reader, rec []string, header bool) error {
	for i, f := range rec {
		line, col := r.FieldPos(i)
		if i >= len(columns) {
			return &inputError{line, col, "", fmt.Errorf("%d fields, want %d (%s)", len(rec), len(columns), headerLine)}
		}
		fail := func(format string, a ...any) error {
			return &inputError{line, col, columns[i], fmt.Errorf(format, a...)}
		}
		switch {
		case !utf8.ValidString(f):
			return fail("is not valid UTF-8")
		case strings.Contains(f, "\n"): // only within quotes
			return fail("%s", notClosed)
		case header && f != columns[i]:
			return fail("the first line must be the header %s; it has %s here%s", headerLine, quoted(f), separatorHint(f))
		case f == "":
			return fail("is empty")
		case strings.TrimSpace(f) != f:
			return fail("%q begins or ends with a space", f)
		case strings.ContainsFunc(f, func(c rune) bool { return !unicode.IsPrint(c) }):
			return fail("%q has characters that do not print", f)
		case utf8.RuneCountInString(f) > maxField:
			return fail("is longer than %d characters", maxField)
		}
	}
	if len(rec) < len(columns) {
		line, col := r.FieldPos(len(rec) - 1)
		return &inputError{line, col + len(rec[len(rec)-1]), columns[len(rec)], fmt.Errorf("is missing: %s, want %d (%s)%s", count(len(rec), "field"), len(columns), headerLine, separatorHint(rec[0]))}
	}
	return nil
}

// separatorHint is for a field that looks like a whole line.
func separatorHint(field string) string {
	if strings.ContainsAny(field, ";\t") {
		return "; separate the fields with commas"
	}
	return ""
}

// quoted is a field for an error text, shortened: a file that is no CSV may be one long line.
func quoted(f string) string {
	const most = 40
	if r := []rune(f); len(r) > most {
		return fmt.Sprintf("%q...", string(r[:most]))
	}
	return fmt.Sprintf("%q", f)
}

func currency(s string) bool {
	return len(s) == 3 && strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
}
