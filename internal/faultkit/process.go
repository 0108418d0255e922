package faultkit

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// What a child process finds in its environment: the name of its role, and the role's argument.
const (
	envRole = "REVFENCE_TEST_ROLE"
	envArg  = "REVFENCE_TEST_ARG"
)

const (
	// hearTimeout bounds the wait for a child's next line, and for its end.
	hearTimeout = 30 * time.Second
	// closeGrace is how long a child may take to end once its input has, before it is killed.
	closeGrace = 10 * time.Second
	// unread is how many lines of a child may wait to be heard.
	unread = 4096
)

// Process is a child process that plays a role: a copy of the test binary, which can be stopped, resumed, killed and
// started again. Its methods fail the test when they cannot do what they say, so they belong on the test's goroutine. The
// child ends with the test at the latest, also when the test's process is killed.
type Process struct {
	tb        testing.TB
	role, arg string
	abrupt    bool // to be killed at the end of the test, not asked to end
	run       *run
	stopped   bool
}

// run is one life of a Process.
type run struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	lines  chan string
	over   chan struct{} // nobody listens any more
	hush   sync.Once
	exited chan struct{}
	err    error // how it exited
}

// Start runs a role of those given to Main in a process of its own. At the end of the test its input is closed, and it
// has to return without an error.
func Start(tb testing.TB, role, arg string) *Process {
	tb.Helper()
	p := &Process{tb: tb, role: role, arg: arg}
	p.start()
	return p
}

func (p *Process) start() {
	p.tb.Helper()
	p.launch()
	p.tb.Cleanup(p.close)
}

func (p *Process) launch() {
	p.tb.Helper()
	r, err := newRun(p.role, p.arg)
	if err != nil {
		p.tb.Fatalf("faultkit: %s: %v", p.role, err)
	}
	p.run, p.stopped = r, false
}

func newRun(role, arg string) (*run, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), envRole+"="+role, envArg+"="+arg)
	cmd.Stderr = os.Stderr
	setAttributes(cmd)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	r := &run{cmd: cmd, in: in, lines: make(chan string, unread), over: make(chan struct{}), exited: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel ends the child with the thread that started it (see setAttributes), so that thread has to live
		// as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		r.hear(out)
		r.err = cmd.Wait()
		close(r.exited)
	}()
	return r, <-started
}

// hear takes in what the child says until its output ends.
func (r *run) hear(out io.Reader) {
	defer close(r.lines)
	for s := bufio.NewScanner(out); s.Scan(); {
		select {
		case r.lines <- s.Text():
		case <-r.over:
		}
	}
}

// Pid returns the id of the child's present process.
func (p *Process) Pid() int { return p.run.cmd.Process.Pid }

// Say sends the child a line.
func (p *Process) Say(line string) {
	p.tb.Helper()
	if _, err := io.WriteString(p.run.in, line+"\n"); err != nil {
		p.tb.Fatalf("faultkit: %s: say %q: %v", p.role, line, err)
	}
}

// Hear returns the child's next line that begins with prefix, without it; lines before that are passed over.
func (p *Process) Hear(prefix string) string {
	p.tb.Helper()
	s, err := p.run.next(prefix, hearTimeout)
	if err != nil {
		p.tb.Fatalf("faultkit: %s: waiting for %q: %v", p.role, prefix, err)
	}
	return s
}

func (r *run) next(prefix string, limit time.Duration) (string, error) {
	t := time.NewTimer(limit)
	defer t.Stop()
	for {
		select {
		case line, ok := <-r.lines:
			if !ok {
				<-r.exited
				return "", fmt.Errorf("the process has ended: %v", r.cmd.ProcessState)
			}
			if rest, ok := strings.CutPrefix(line, prefix); ok {
				return rest, nil
			}
		case <-t.C:
			return "", fmt.Errorf("not said within %v", limit)
		}
	}
}

// Stop stops the child with SIGSTOP and returns when every thread of it stands still. Its connections stay open, and
// the kernel goes on accepting what is sent on them.
func (p *Process) Stop() {
	p.tb.Helper()
	if err := stopProcess(p.run.cmd.Process); err != nil {
		p.tb.Fatalf("faultkit: stop %s: %v", p.role, err)
	}
	p.stopped = true
}

// Cont resumes a stopped child with SIGCONT and returns when it runs again.
func (p *Process) Cont() {
	p.tb.Helper()
	if err := contProcess(p.run.cmd.Process); err != nil {
		p.tb.Fatalf("faultkit: resume %s: %v", p.role, err)
	}
	p.stopped = false
}

// Kill ends the child with SIGKILL, stopped or not, and returns when it is gone and the kernel has closed its
// connections.
func (p *Process) Kill() {
	p.tb.Helper()
	if err := p.run.kill(); err != nil {
		p.tb.Fatalf("faultkit: kill %s: %v", p.role, err)
	}
}

func (r *run) kill() error {
	r.quiet()
	if err := r.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	if !r.ends(hearTimeout) {
		return fmt.Errorf("process %d still there after %v", r.cmd.Process.Pid, hearTimeout)
	}
	r.in.Close()
	return nil
}

// quiet lets what the child still says go unheard, so that it does not wait for a listener.
func (r *run) quiet() { r.hush.Do(func() { close(r.over) }) }

// ends waits for the child to have ended.
func (r *run) ends(limit time.Duration) bool {
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-r.exited:
		return true
	case <-t.C:
		return false
	}
}

// Running reports whether the child is there and not stopped.
func (p *Process) Running() bool {
	select {
	case <-p.run.exited:
		return false
	default:
		return !p.stopped
	}
}

// Restart kills the child if it is still there, and runs the same role with the same argument anew.
func (p *Process) Restart() {
	p.tb.Helper()
	p.Kill()
	p.launch()
}

// close ends the child with its test.
func (p *Process) close() {
	p.tb.Helper()
	r := p.run
	select {
	case <-r.exited: // killed, or it has said why on its standard error
		r.in.Close()
		return
	default:
	}
	if !p.stopped && !p.abrupt {
		r.quiet()
		r.in.Close()
		if r.ends(closeGrace) {
			if r.err != nil {
				p.tb.Errorf("faultkit: %s: %v", p.role, r.err)
			}
			return
		}
		p.tb.Errorf("faultkit: %s did not end within %v of its input", p.role, closeGrace)
	}
	if err := r.kill(); err != nil {
		p.tb.Errorf("faultkit: kill %s: %v", p.role, err)
	}
}

// pause spaces out polls.
func pause(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	<-t.C
}
