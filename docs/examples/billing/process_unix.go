//go:build unix

package main

import (
	"context"
	"os"
	"os/exec"
	"syscall"
)

// canPause tells that this platform can stop a process from outside.
const canPause = true

// endSignals end a run in good order. SIGPIPE is among them so that `billing | head` cleans up too.
var endSignals = []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE}

// setAttributes puts the worker into a process group of its own. Ctrl-C in a terminal then reaches the
// supervisor alone, which ends the workers in order; and should the supervisor be killed while a worker is
// stopped, the kernel continues it with a SIGHUP, as it does for stopped groups that become orphans.
func setAttributes(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	endWithParent(cmd.SysProcAttr)
}

// stop pauses the worker, and returns when it stands still.
func (p *process) stop(ctx context.Context) error {
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return awaitStopped(ctx, p.cmd.Process.Pid)
}

func (p *process) resume() error { return p.cmd.Process.Signal(syscall.SIGCONT) }

func terminateProcess(p *os.Process) error { return p.Signal(syscall.SIGTERM) }

// exitCode is what a shell expects of a process that a signal ended.
func exitCode(s os.Signal) int {
	if n, ok := s.(syscall.Signal); ok {
		return 128 + int(n)
	}
	return exitError
}
