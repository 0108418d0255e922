//go:build unix

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// slow leaves room to interrupt a run between two of its events.
func slow(more ...string) []string {
	return append([]string{"-json", "-ttl", "2s", "-pace", "150ms"}, more...)
}

func TestInterrupt(t *testing.T) {
	for _, moment := range []struct {
		kind string
		nth  int
	}{
		{kindRun, 1}, // etcd is being started
		{kindEtcd, 1},
		{kindWaiting, 1}, // the workers are being started
		{kindWaiting, 3},
		{kindAcquired, 1},
		{kindBooked, 2},
		{kindStopped, 1}, // a child stands still
		{kindAcquired, 2},
		{kindResumed, 1},
		{kindRefused, 1},
	} {
		t.Run(fmt.Sprint(moment.kind, moment.nth), func(t *testing.T) {
			t.Parallel()
			p := start(t, slow()...)
			p.until(moment.kind, moment.nth)
			p.signal(os.Interrupt)
			at := time.Now()
			if code := p.end(); code != 130 || !strings.Contains(p.stderr.String(), "interrupted") {
				t.Errorf("exit %d, stderr %q, want 130", code, p.stderr.String())
			}
			if d := time.Since(at); d >= grace {
				t.Errorf("it took %v to end: a worker was killed instead of ended", d)
			}
			p.wantNothingLeft()
		})
	}
}

func TestInterruptAtRandom(t *testing.T) {
	for i := range 4 {
		phase := time.Duration(rand.Int64N(int64(3500 * time.Millisecond)))
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			t.Logf("interrupted %v after its first event", phase)
			p := start(t, slow()...)
			p.until(kindRun, 1)
			timer := time.AfterFunc(phase, func() { _ = p.cmd.Process.Signal(os.Interrupt) })
			defer timer.Stop()
			if code := p.end(); code != 130 {
				t.Errorf("exit %d, want 130; events %v", code, kinds(p.events))
			}
			p.wantNothingLeft()
		})
	}
}

// SIGTERM is what everything but a terminal sends; it exits as shells expect.
func TestTerminate(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger.db")
	p := start(t, slow("-ledger", path)...)
	p.until(kindAcquired, 1)
	p.signal(syscall.SIGTERM)
	if code := p.end(); code != 143 {
		t.Errorf("exit %d, want 143", code)
	}
	p.wantNothingLeft()
	if _, err := os.Stat(path); p.find(kindBooked) == nil && !os.IsNotExist(err) {
		t.Errorf("a ledger without entries was left behind: %v", err)
	}
}

// A second Ctrl-C does not wait for anybody.
func TestInterruptTwice(t *testing.T) {
	t.Parallel()
	p := start(t, slow()...)
	p.until(kindStopped, 1)
	p.signal(os.Interrupt)
	p.signal(os.Interrupt)
	if code := p.end(); code != 130 {
		t.Errorf("exit %d, want 130", code)
	}
	p.wantNothingLeft()
}

// The supervisor is killed while a worker is stopped: nobody is there to end the workers but themselves.
func TestSupervisorKilled(t *testing.T) {
	t.Parallel()
	p := start(t, slow()...)
	p.until(kindStopped, 1)
	p.signal(os.Kill)
	_ = p.cmd.Wait()
	for deadline := time.Now().Add(10 * time.Second); len(p.processes()) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("processes left: %v", p.processes())
		}
	}
}

// A worker crashes while it holds the lock: the run fails, and says of whom.
func TestWorkerKilled(t *testing.T) {
	t.Parallel()
	p := start(t, slow()...)
	e := p.until(kindBooked, 1)
	if err := syscall.Kill(e.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if code := p.end(); code != exitError || !strings.Contains(p.stderr.String(), e.Who+": signal: killed") {
		t.Errorf("exit %d, stderr %q; want %d, naming %s", code, p.stderr.String(), exitError, e.Who)
	}
	if c := p.find(kindCleaned); c == nil || c.Count == 0 {
		t.Errorf("its key was not removed: %+v", c)
	}
	p.wantNothingLeft()
}

// The reader of the timeline goes away, as with `billing | head`.
func TestOutputClosed(t *testing.T) {
	t.Parallel()
	p := start(t, slow()...)
	p.until(kindAcquired, 1)
	p.out.Close()
	if code := p.wait(); code != 128+int(syscall.SIGPIPE) && code != exitError {
		t.Errorf("exit %d, stderr %q", code, p.stderr.String())
	}
	p.wantNothingLeft()
}

func TestEndpoints(t *testing.T) {
	t.Parallel()
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
	for _, c := range []struct {
		kind string
		nth  int
		code int
		flag []string
	}{
		{"", 0, exitOK, nil},
		{"", 0, exitDouble, []string{"-unfenced"}},
		{kindWaiting, 3, 130, nil},
		{kindStopped, 1, 130, nil},
		{kindAcquired, 2, 130, nil},
	} {
		t.Run(fmt.Sprint(c.kind, c.nth, c.flag), func(t *testing.T) {
			p := start(t, slow(append(c.flag, "-endpoints", addr)...)...)
			if c.kind != "" {
				p.until(c.kind, c.nth)
				p.signal(os.Interrupt)
			}
			if code := p.end(); code != c.code {
				t.Errorf("exit %d, want %d; stderr %q", code, c.code, p.stderr.String())
			}
			p.wantNothingLeft()
			wantNoTrace(t, client)
			if marked := p.find(kindMarked); marked != nil {
				wantMark(t, client, p.find(kindAcquired), marked)
			}
		})
	}
}

// wantMark looks in etcd's history for the mark of the night: written once, by the holder that says so, and removed.
func wantMark(t *testing.T, client *clientv3.Client, acquired, marked *event) {
	t.Helper()
	prefix, _, _ := strings.Cut(acquired.Key, lockName)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var got []string
	for r := range client.Watch(ctx, prefix+marks+lockName+"/"+night, clientv3.WithRev(1)) {
		for _, e := range r.Events {
			token, rest, _ := strings.Cut(string(e.Kv.Value), " ")
			_, who, _ := strings.Cut(rest, " ") // after the time
			got = append(got, fmt.Sprintf("%v %s %s", e.Type, token, who))
			if e.Type == clientv3.EventTypeDelete {
				cancel()
			}
		}
	}
	if want := []string{fmt.Sprintf("PUT %d %s", marked.Token, marked.Who), "DELETE  "}; !slices.Equal(got, want) {
		t.Errorf("the mark of the night: %q, want %q", got, want)
	}
}

// Nobody listens at the address: a clear error, and neither a ledger nor a worker.
func TestEndpointsUnreachable(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger.db")
	p := start(t, "-endpoints", "127.0.0.1:1", "-ledger", path)
	if _, code := p.text(); code != exitError || !strings.Contains(p.stderr.String(), "etcd at 127.0.0.1:1: no answer within 5s: ") ||
		!strings.Contains(p.stderr.String(), "connection refused") {
		t.Errorf("exit %d, stderr %q", code, p.stderr.String())
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the ledger was created: %v", err)
	}
	p.wantNothingLeft()
}
