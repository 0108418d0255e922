//go:build unix

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// program is a run of the example as people start it: a process of its own, whose temporary files are ours
// to look for.
type program struct {
	t      *testing.T
	cmd    *exec.Cmd
	tmp    string
	out    io.ReadCloser
	lines  *bufio.Reader
	stderr bytes.Buffer
	events []event
}

// runTime is more than any run takes on a busy machine.
const runTime = 60 * time.Second

func start(t *testing.T, args ...string) *program {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), runTime)
	p := &program{t: t, cmd: exec.CommandContext(ctx, exe, args...), tmp: t.TempDir()}
	p.cmd.Env = append(os.Environ(), envProgram+"=1", "TMPDIR="+p.tmp)
	p.cmd.Stderr = &p.stderr
	if p.out, err = p.cmd.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	p.lines = bufio.NewReader(p.out)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_, _ = p.cmd.Process.Wait()
	})
	return p
}

// next reads an event; it is nil at the end of the output.
func (p *program) next() *event {
	p.t.Helper()
	line, err := p.lines.ReadBytes('\n')
	if len(line) == 0 && err != nil {
		return nil
	}
	var e event
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&e); err != nil {
		p.t.Fatalf("no event: %q: %v", line, err)
	}
	p.events = append(p.events, e)
	return &e
}

// until reads on to the nth event of a kind from here.
func (p *program) until(kind string, nth int) event {
	p.t.Helper()
	for e := p.next(); e != nil; e = p.next() {
		if e.Kind == kind {
			if nth--; nth <= 0 {
				return *e
			}
		}
	}
	p.t.Fatalf("the run ended before event %q; events: %v; stderr: %s", kind, kinds(p.events), p.stderr.String())
	return event{}
}

// end reads the rest of the events and returns the exit code.
func (p *program) end() int {
	p.t.Helper()
	for p.next() != nil {
	}
	return p.wait()
}

// text reads the rest of the output as it is, and returns it with the exit code.
func (p *program) text() (string, int) {
	p.t.Helper()
	out, err := io.ReadAll(p.lines)
	if err != nil {
		p.t.Fatal(err)
	}
	return string(out), p.wait()
}

func (p *program) wait() int {
	p.t.Helper()
	var exit *exec.ExitError
	if err := p.cmd.Wait(); err != nil && !errors.As(err, &exit) {
		p.t.Fatal(err)
	}
	if code := p.cmd.ProcessState.ExitCode(); code >= 0 {
		return code
	}
	p.t.Fatalf("the run did not exit: %v; events: %v; stderr: %s", p.cmd.ProcessState, kinds(p.events), p.stderr.String())
	return -1
}

func (p *program) signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// find returns the first event of a kind.
func (p *program) find(kind string) *event {
	for i := range p.events {
		if p.events[i].Kind == kind {
			return &p.events[i]
		}
	}
	return nil
}

// wantNothingLeft checks that neither a process, nor a port, nor a temporary file is left of the run.
func (p *program) wantNothingLeft(files ...string) {
	p.t.Helper()
	if left := p.processes(); len(left) > 0 {
		p.t.Errorf("processes left: %v", left)
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	if e := p.find(kindEtcd); e != nil && strings.HasPrefix(e.Text, "started") {
		if c, err := net.Dial("tcp", e.Address); err == nil {
			c.Close()
			p.t.Errorf("something listens on %s still", e.Address)
		}
	}
	var got []string
	left, err := os.ReadDir(p.tmp)
	if err != nil {
		p.t.Fatal(err)
	}
	for _, f := range left {
		got = append(got, f.Name())
	}
	if !slices.Equal(got, files) {
		p.t.Errorf("temporary files left: %q, want %q", got, files)
	}
}

// processes lists those of the run: on Linux whatever has its environment, elsewhere what has been heard of.
func (p *program) processes() (pids []int) {
	if runtime.GOOS != "linux" {
		for _, e := range p.events {
			if e.PID != 0 && syscall.Kill(e.PID, 0) == nil {
				pids = append(pids, e.PID)
			}
		}
		return pids
	}
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, f := range files {
		env, err := os.ReadFile(f) // gone, or not ours
		if err != nil || !bytes.Contains(env, []byte("TMPDIR="+p.tmp+"\x00")) {
			continue
		}
		var pid int
		if _, err := fmt.Sscanf(f, "/proc/%d/", &pid); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// entriesOf asks a ledger file how many entries each invoice has.
func entriesOf(t *testing.T, path string) map[string]int {
	t.Helper()
	l, err := openLedger(path, nil, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	rows, err := l.db.QueryContext(t.Context(), `SELECT id, (SELECT COUNT(*) FROM entry WHERE invoice = id) FROM invoice`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	counts := map[string]int{}
	for rows.Next() {
		var id string
		var n int
		if err := rows.Scan(&id, &n); err != nil {
			t.Fatal(err)
		}
		counts[id] = n
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return counts
}
