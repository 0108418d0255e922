package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// The outcomes of a run, by what the ledger contains at its end.
const (
	exactlyOnce = "exactly-once"
	doubles     = "double-entries"
	missing     = "missing-entries"
)

// hold is one time that a worker had the lock and did the job. Who took it only to find the night done has none.
type hold struct {
	Worker string  `json:"worker"`
	Token  int64   `json:"token"`
	Key    string  `json:"key"`
	From   float64 `json:"from"`  // seconds since start
	Until  float64 `json:"until"` // when its key was deleted in etcd
	End    string  `json:"end"`   // "released" or "lease ran out"
}

// refusal is a write that the ledger did not take.
type refusal struct {
	T       float64 `json:"t"`
	Worker  string  `json:"worker"`
	Invoice string  `json:"invoice"`
	Token   int64   `json:"token"`
	Mark    int64   `json:"mark"`
}

// total is the sum over one currency: what the batch says, and what the ledger has.
type total struct {
	Currency string `json:"currency"`
	Batch    int64  `json:"batch_cents"`
	Booked   int64  `json:"booked_cents"`
}

// summary is the account of a run. Invoices and Totals come from the ledger alone, by SQL.
type summary struct {
	Outcome  string    `json:"outcome"` // one of the outcomes above
	Fenced   bool      `json:"fenced"`
	Invoices []booked  `json:"invoices"`
	Totals   []total   `json:"totals"`
	Holds    []hold    `json:"holds"`
	Refusals []refusal `json:"refusals"`

	holds map[int64]*hold // by token
}

// add takes in what an event says about holds and refusals.
func (s *summary) add(e event) {
	h := s.holds[e.Token]
	switch e.Kind {
	case kindAcquired:
		s.holds[e.Token] = &hold{Worker: e.Who, Token: e.Token, Key: e.Key, From: e.T}
	case kindDeleted:
		if h != nil {
			h.Until = e.T
		}
	case kindMarked:
		if h != nil {
			h.End = "released"
			h.Until = cmp.Or(h.Until, e.T)
		}
	case kindRefused:
		s.Refusals = append(s.Refusals, refusal{e.T, e.Who, e.Invoice, e.Token, e.Mark})
	}
}

// finish adds what is in the ledger.
func (s *summary) finish(content []booked, fenced bool) {
	s.Fenced, s.Invoices = fenced, content
	s.Holds, s.Totals = []hold{}, []total{}
	for _, token := range slices.Sorted(maps.Keys(s.holds)) {
		h := *s.holds[token]
		h.End = cmp.Or(h.End, "lease ran out")
		s.Holds = append(s.Holds, h)
	}
	if s.Refusals == nil {
		s.Refusals = []refusal{}
	}
	s.Outcome = exactlyOnce
	for _, b := range content {
		switch {
		case len(b.Entries) == 0:
			s.Outcome = missing
		case len(b.Entries) > 1 && s.Outcome != missing:
			s.Outcome = doubles
		}
		i := slices.IndexFunc(s.Totals, func(t total) bool { return t.Currency == b.Currency })
		if i < 0 {
			i = len(s.Totals)
			s.Totals = append(s.Totals, total{Currency: b.Currency})
		}
		s.Totals[i].Batch += b.Cents
		for _, e := range b.Entries {
			s.Totals[i].Booked += e.Cents
		}
	}
}

// named lists the invoices with more than one entry (or with none).
func (s *summary) named(outcome string) []string {
	var ids []string
	for _, b := range s.Invoices {
		if len(b.Entries) == 0 && outcome == missing || len(b.Entries) > 1 && outcome == doubles {
			ids = append(ids, b.ID)
		}
	}
	return ids
}

// count is a number of things, in the singular or the plural (of a word that adds an s).
func count(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}

// are is the verb that goes with n things.
func are(n int) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

// verdict is the outcome in a sentence.
func (s *summary) verdict() string {
	ids := s.named(s.Outcome)
	what := fmt.Sprintf("%d of %s %s", len(ids), count(len(s.Invoices), "invoice"), are(len(ids)))
	switch {
	case s.Outcome == doubles:
		return what + " in the ledger more than once: " + strings.Join(ids, ", ")
	case s.Outcome == missing:
		return what + " not in the ledger: " + strings.Join(ids, ", ")
	case len(s.Invoices) == 1:
		return "the invoice is in the ledger exactly once"
	}
	return fmt.Sprintf("each of the %d invoices is in the ledger exactly once", len(s.Invoices))
}

// complaint is what stderr says of a ledger that is wrong. It names the invoices, unless the reader has just
// seen them in the table.
func (s *summary) complaint(seen bool) string {
	ids := s.named(s.Outcome)
	fault := "booked more than once"
	if s.Outcome == missing {
		fault = "not booked"
	}
	text := fmt.Sprintf("%d of %s %s %s", len(ids), count(len(s.Invoices), "invoice"), are(len(ids)), fault)
	if !seen {
		text += ": " + strings.Join(ids, ", ")
	}
	return text
}

// table is the account for people.
func (s *summary) table(paint func(code, text string) string) string {
	var b strings.Builder
	b.WriteString("\n" + paint(bold, "What is in the ledger") + ", read from it with SQL:\n\n")
	rows := [][]string{{"invoice", "customer", "amount", "entries", "written by"}}
	for _, v := range s.Invoices {
		var by []string
		for _, e := range v.Entries {
			by = append(by, fmt.Sprintf("%s (token %d)", e.Worker, e.Token))
		}
		rows = append(rows, []string{v.ID, v.Customer, v.amount(), fmt.Sprint(len(v.Entries)), strings.Join(by, ", ")})
	}
	for i, line := range align(rows, 2, 3) {
		if i > 0 && len(s.Invoices[i-1].Entries) != 1 {
			line = paint(red, line)
		}
		b.WriteString("  " + line + "\n")
	}
	b.WriteByte('\n')
	for _, t := range s.Totals {
		line := fmt.Sprintf("total %s: the batch says %s, the ledger %s", t.Currency, formatCents(t.Batch), formatCents(t.Booked))
		if d := t.Booked - t.Batch; d > 0 {
			line = paint(red, line+": "+formatCents(d)+" too much")
		} else if d < 0 {
			line = paint(red, line+": "+formatCents(-d)+" too little")
		}
		b.WriteString("  " + line + "\n")
	}

	b.WriteString("\n" + paint(bold, "Who had the lock") + " and did the job:\n\n")
	rows = [][]string{{"token", "worker", "from", "until", "how it ended"}}
	for _, h := range s.Holds {
		rows = append(rows, []string{fmt.Sprint(h.Token), h.Worker, fmt.Sprintf("%.2f s", h.From), fmt.Sprintf("%.2f s", h.Until), h.End})
	}
	for _, line := range align(rows, 0, 2, 3) {
		b.WriteString("  " + line + "\n")
	}

	b.WriteString("\n" + paint(bold, "What the ledger refused") + ":\n\n")
	for _, r := range s.Refusals {
		fmt.Fprintf(&b, "  %s at %.2f s, from %s: its token %d is below the mark %d that a later holder had set\n", cmp.Or(r.Invoice, "a read"), r.T, r.Worker, r.Token, r.Mark)
	}
	switch {
	case !s.Fenced:
		b.WriteString("  nothing: without the fence (-unfenced) it takes every write\n")
	case len(s.Refusals) == 0:
		b.WriteString("  nothing\n")
	}

	color := red
	if s.Outcome == exactlyOnce {
		color = green
	}
	verdict := s.verdict()
	b.WriteString("\n" + paint(color, strings.ToUpper(verdict[:1])+verdict[1:]+".") + "\n")
	return b.String()
}

// align pads the cells of each column to one width; those of the columns named go to the right.
func align(rows [][]string, right ...int) []string {
	width := make([]int, len(rows[0]))
	for _, r := range rows {
		for i, c := range r {
			width[i] = max(width[i], utf8.RuneCountInString(c))
		}
	}
	lines := make([]string, len(rows))
	for n, r := range rows {
		cells := make([]string, len(r))
		for i, c := range r {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(c))
			if slices.Contains(right, i) {
				cells[i] = pad + c
			} else {
				cells[i] = c + pad
			}
		}
		lines[n] = strings.TrimRight(strings.Join(cells, "  "), " ")
	}
	return lines
}
