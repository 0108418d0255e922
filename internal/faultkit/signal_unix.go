//go:build unix

package faultkit

import (
	"os"
	"os/exec"
	"syscall"
	"time"
)

// signalTimeout bounds the wait for a signal to have taken effect.
const signalTimeout = 10 * time.Second

// setAttributes puts the child into a process group of its own, so that an interrupt typed at the tests reaches the
// test's process alone, and lets the child end with it.
func setAttributes(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	endWithParent(cmd.SysProcAttr)
}

func stopProcess(p *os.Process) error { return signal(p, syscall.SIGSTOP, true) }

func contProcess(p *os.Process) error { return signal(p, syscall.SIGCONT, false) }

func signal(p *os.Process, sig syscall.Signal, stopped bool) error {
	if err := p.Signal(sig); err != nil {
		return err
	}
	return awaitStopped(p.Pid, stopped)
}
