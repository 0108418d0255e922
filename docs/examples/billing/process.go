package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
)

// envWorker carries a worker's job to the child; a process that finds it is a worker.
const envWorker = "REVFENCE_BILLING_WORKER"

// message is what the supervisor hears from a worker process: an event, or (exited) that it has ended.
type message struct {
	from   *process
	event  event
	exited bool
	err    error // how it ended
}

// process is a worker process, seen from the supervisor.
type process struct {
	name string
	cmd  *exec.Cmd
	// stdin is never written to. It tells the worker, by its end, that the supervisor is gone.
	stdin *os.File
	// stderr has what a crash says, at most maxStderr of it.
	stderr *tail
}

const maxStderr = 16 << 10

// startProcess runs this program again as a worker, and sends what it reports to msgs until it has ended.
func startProcess(job job, msgs chan<- message) (*process, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	doc, err := json.Marshal(job)
	if err != nil {
		return nil, err
	}
	inR, inW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		inR.Close()
		inW.Close()
		return nil, err
	}
	p := &process{name: job.Name, cmd: exec.Command(exe), stdin: inW, stderr: &tail{}}
	p.cmd.Env = append(os.Environ(), envWorker+"="+string(doc))
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = inR, outW, p.stderr
	setAttributes(p.cmd)

	started := make(chan error)
	waited := make(chan error, 1)
	go func() {
		// The kernel ends the child with the *thread* that started it (see setAttributes): the thread is kept
		// for as long as the child lives.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		inR.Close()
		outW.Close()
		started <- err
		if err == nil {
			waited <- p.cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		inW.Close()
		outR.Close()
		return nil, fmt.Errorf("%s: %w", job.Name, err)
	}
	go func() {
		p.receive(outR, msgs)
		outR.Close()
		err := <-waited
		inW.Close()
		if err != nil {
			err = fmt.Errorf("%s: %w%s", p.name, err, p.stderr)
		}
		msgs <- message{from: p, exited: true, err: err}
	}()
	return p, nil
}

// receive reads events until the worker closes its output.
func (p *process) receive(r io.Reader, msgs chan<- message) {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if line = bytes.TrimSpace(line); len(line) > 0 {
			var e event
			if jerr := json.Unmarshal(line, &e); jerr != nil {
				e = event{Kind: kindFailed, Who: p.name, Text: fmt.Sprintf("says something that is no event: %q", line)}
			}
			msgs <- message{from: p, event: e}
		}
		if err != nil {
			return
		}
	}
}

// terminate asks the worker to end. One that is stopped hears it when it is resumed, before anything else.
func (p *process) terminate() {
	_ = terminateProcess(p.cmd.Process)
	_ = p.resume()
}

func (p *process) kill() { _ = p.cmd.Process.Kill() }

// tail keeps the end of what is written to it.
type tail struct{ b []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p...)
	if n := len(t.b) - maxStderr; n > 0 {
		t.b = t.b[n:]
	}
	return len(p), nil
}

// String is for the end of an error text: empty, or the output after a line break.
func (t *tail) String() string {
	if s := strings.TrimSpace(string(t.b)); s != "" {
		return "\n" + s
	}
	return ""
}
