//go:build !unix

package faultkit

import (
	"errors"
	"os"
	"os/exec"
)

func setAttributes(*exec.Cmd) {}

// Nothing here can stop a process from outside.
func stopProcess(*os.Process) error { return errors.ErrUnsupported }

func contProcess(*os.Process) error { return errors.ErrUnsupported }
