//go:build !unix

package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
)

// canPause tells that this platform cannot stop a process from outside.
const canPause = false

var endSignals = []os.Signal{os.Interrupt}

func setAttributes(*exec.Cmd) {}

func (*process) stop(context.Context) error { return errors.ErrUnsupported }

func (*process) resume() error { return nil }

func terminateProcess(p *os.Process) error { return p.Kill() }

func exitCode(os.Signal) int { return 130 }
