package main

import (
	"encoding/json"
	"io"
	"sync"
)

// The kinds of event. README.md documents them and their fields for scripts that read -json.
const (
	kindRun         = "run"         // supervisor: what is about to happen
	kindEtcd        = "etcd"        // supervisor: etcd answers, the ledger is there
	kindWaiting     = "waiting"     // worker: started, asks for the lock
	kindAlready     = "already"     // worker: the night is done, there is nothing to do
	kindAcquired    = "acquired"    // worker: has the lock, and the night is not done
	kindOpen        = "open"        // worker: has read which invoices are open
	kindPreparing   = "preparing"   // worker: about to write an invoice (only with -json)
	kindBooked      = "booked"      // worker: wrote an invoice
	kindStopped     = "stopped"     // supervisor: sent SIGSTOP
	kindMissed      = "missed"      // supervisor: the stop did not land between two invoices
	kindDeleted     = "deleted"     // etcd: the key of a holder is gone
	kindResumed     = "resumed"     // supervisor: sent SIGCONT
	kindLost        = "lost"        // worker: was told by etcdlock that the lock is lost
	kindRefused     = "refused"     // worker: the ledger refused its write as stale
	kindDone        = "done"        // worker: through with its list
	kindMarked      = "marked"      // worker: has marked the night as done, and released the lock
	kindUnmarked    = "unmarked"    // worker: has not marked the night, since the lock was lost
	kindFailed      = "failed"      // anyone: something went wrong
	kindInterrupted = "interrupted" // supervisor: a signal came
	kindCleaned     = "cleaned"     // supervisor: what an interrupted or failed run left, and does no longer
	kindSummary     = "summary"     // supervisor: the ledger, who held the lock, what was refused
)

// event is what workers report to the supervisor, one JSON line each, and what -json prints.
type event struct {
	T       float64  `json:"t"`     // seconds since the supervisor started, on its monotonic clock
	Kind    string   `json:"event"` // one of the kinds above
	Who     string   `json:"who"`   // "worker-1" … "worker-3", "supervisor" or "etcd"
	PID     int      `json:"pid,omitempty"`
	Token   int64    `json:"token,omitempty"`   // the fencing token of the hold it is about
	Mark    int64    `json:"mark,omitempty"`    // refused: the ledger's high-water mark
	Invoice string   `json:"invoice,omitempty"` // preparing, booked, refused, stopped
	Index   int      `json:"index,omitempty"`   // the invoice's place on the worker's list, from 1
	Count   int      `json:"count,omitempty"`   // how many are on that list
	Key     string   `json:"key,omitempty"`     // acquired, deleted: the key in etcd
	Night   string   `json:"night,omitempty"`   // run, already, marked, unmarked
	Address string   `json:"address,omitempty"` // etcd: where it listens
	Ledger  string   `json:"ledger,omitempty"`  // etcd: the ledger file
	Text    string   `json:"text"`              // the same for people
	Summary *summary `json:"summary,omitempty"`
}

// reporter writes events as JSON lines. Its first error sticks: a worker that can no longer report has lost
// its supervisor.
type reporter struct {
	who string
	pid int

	mu  sync.Mutex
	enc *json.Encoder
	err error
}

// encoder leaves the & in a customer's name as it is.
func encoder(w io.Writer) *json.Encoder {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc
}

func newReporter(w io.Writer, who string, pid int) *reporter {
	return &reporter{who: who, pid: pid, enc: encoder(w)}
}

func (r *reporter) report(e event) {
	e.Who, e.PID = r.who, r.pid
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.err = r.enc.Encode(e)
	}
}
