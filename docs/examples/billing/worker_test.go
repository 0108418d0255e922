package main

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/revfence/revfence/fencing"
)

// stage is an etcd and a ledger, on which workers run within the test.
type stage struct {
	t      *testing.T
	client *clientv3.Client
	job    job
	books  *ledger
}

const testPrefix = "/test/"

func newStage(t *testing.T) *stage {
	e, addr, err := startEtcd(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	client, err := newClient([]string{addr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	path := filepath.Join(t.TempDir(), "ledger.db")
	books := newLedger(t, path, &ledgerFence{lock: lockName}, twoInvoices...)
	return &stage{t, client, job{
		Endpoints: []string{addr}, Prefix: testPrefix, Night: night, TTL: 2 * time.Second, Pace: 20 * time.Millisecond, Ledger: path, Fenced: true,
	}, books}
}

// hearing is where a worker reports to.
type hearing func(event)

func (h hearing) Write(p []byte) (int, error) {
	var e event
	err := json.Unmarshal(p, &e)
	h(e)
	return len(p), err
}

// work runs a worker to its end, and returns what it has reported. At each event it calls at, with what ends the worker.
func (s *stage) work(name, night string, at func(e event, interrupt func())) ([]event, error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), 20*time.Second)
	defer cancel()
	j := s.job
	j.Name, j.Night = name, night
	var events []event
	err := work(ctx, j, newReporter(hearing(func(e event) {
		events = append(events, e)
		if at != nil {
			at(e, cancel)
		}
	}), name, 1))
	return events, err
}

// marked lists the nights that are marked as done.
func (s *stage) marked() (nights []string) {
	s.t.Helper()
	r, err := s.client.Get(s.t.Context(), testPrefix, clientv3.WithPrefix())
	if err != nil {
		s.t.Fatal(err)
	}
	for _, kv := range r.Kvs {
		n, ok := strings.CutPrefix(string(kv.Key), testPrefix+marks+lockName+"/")
		if !ok || kv.Lease == 0 {
			s.t.Errorf("key %s with lease %x in etcd", kv.Key, kv.Lease)
		}
		nights = append(nights, n)
	}
	return nights
}

func wantKinds(t *testing.T, who string, events []event, want ...string) {
	t.Helper()
	if got := kinds(events); !slices.Equal(got, want) {
		t.Errorf("%s: events %v, want %v", who, got, want)
	}
}

func kinds(events []event) (out []string) {
	for _, e := range events {
		out = append(out, e.Kind)
	}
	return out
}

// wantNoTrace checks that a run has left no key in etcd at once, and no lease after the TTL.
func wantNoTrace(t *testing.T, client *clientv3.Client) {
	t.Helper()
	r, err := client.Get(t.Context(), "", clientv3.WithPrefix())
	if err != nil || len(r.Kvs) > 0 {
		t.Errorf("keys left in etcd: %v, %v", r.Kvs, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
	defer cancel()
	for {
		leases, err := client.Leases(ctx)
		if err != nil {
			t.Fatalf("leases left in etcd: %v", err)
		}
		if len(leases.Leases) == 0 {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// A night is done once: one that was interrupted is made up for, one that is done is not begun again.
func TestWorkOncePerNight(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	events, err := s.work("first", night, func(e event, interrupt func()) {
		if e.Kind == kindBooked {
			interrupt()
		}
	})
	if !errors.Is(err, errStopped) {
		t.Errorf("interrupted: %v", err)
	}
	wantKinds(t, "interrupted", events, kindWaiting, kindAcquired, kindOpen, kindPreparing, kindBooked, kindPreparing)
	if m := s.marked(); len(m) > 0 {
		t.Errorf("marked %v by one that was interrupted", m)
	}

	events, err = s.work("second", night, nil)
	if err != nil {
		t.Errorf("who makes up: %v", err)
	}
	wantKinds(t, "who makes up", events, kindWaiting, kindAcquired, kindOpen, kindPreparing, kindBooked, kindDone, kindMarked)

	events, err = s.work("third", night, nil)
	if err != nil {
		t.Errorf("who comes late: %v", err)
	}
	wantKinds(t, "who comes late", events, kindWaiting, kindAlready)

	events, err = s.work("fourth", "2026-11-05", nil)
	if err != nil {
		t.Errorf("the next night: %v", err)
	}
	wantKinds(t, "the next night", events, kindWaiting, kindAcquired, kindOpen, kindDone, kindMarked)
	if m := s.marked(); !slices.Equal(m, []string{night, "2026-11-05"}) {
		t.Errorf("marked: %v", m)
	}
	if n := counts(t, s.books); !slices.Equal(n, []int{1, 1}) {
		t.Errorf("entries: %v", n)
	}
}

// Who loses the lock marks nothing, though it has gone on to the end of its list.
func TestWorkLost(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	key := ""
	events, err := s.work("loser", night, func(e event, _ func()) {
		if e.Kind == kindAcquired {
			key = e.Key
		}
		if e.Kind == kindBooked && e.Index == 1 {
			if _, err := s.client.Delete(t.Context(), key); err != nil {
				t.Error(err)
			}
		}
	})
	if err != nil {
		t.Error(err)
	}
	if m := s.marked(); len(m) > 0 {
		t.Errorf("marked: %v", m)
	}
	wantKinds(t, "loser", events, kindWaiting, kindAcquired, kindOpen, kindPreparing, kindBooked, kindPreparing, kindBooked, kindDone, kindLost, kindUnmarked)
}

// A refusal does not count as done. Of one that has the lock nobody knows what to think, so that the run fails.
func TestWorkRefused(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	events, err := s.work("refused", night, func(e event, _ func()) {
		if e.Kind == kindBooked {
			if err := (armer{s.books}).Advance(t.Context(), fencing.Token(e.Token+1000)); err != nil {
				t.Error(err)
			}
		}
	})
	if !errors.Is(err, fencing.ErrStale) {
		t.Errorf("it ended with %v", err)
	}
	if m := s.marked(); len(m) > 0 {
		t.Errorf("marked: %v", m)
	}
	wantKinds(t, "refused", events, kindWaiting, kindAcquired, kindOpen, kindPreparing, kindBooked, kindPreparing, kindRefused)
}

// The mark of a night is removed at the end of a run, and not counted among what a worker has left.
func TestSweep(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	if _, err := s.work("worker", night, nil); err != nil {
		t.Fatal(err)
	}
	for want := range 2 {
		if found, err := sweep(t.Context(), s.client, testPrefix); err != nil || found != want {
			t.Errorf("found %d, %v; want %d", found, err, want)
		}
		if m := s.marked(); len(m) > 0 {
			t.Errorf("left: %v", m)
		}
		wantNoTrace(t, s.client)
		lease, err := s.client.Grant(t.Context(), 60)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.client.Put(t.Context(), testPrefix+lockName+"/1f", "killed", clientv3.WithLease(lease.ID)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := sweep(t.Context(), s.client, testPrefix); err != nil {
		t.Error(err)
	}
}
