//go:build unix && !linux

package main

import (
	"context"
	"syscall"
	"time"
)

// endWithParent has nothing to add here: the end of the standard input tells a worker.
func endWithParent(*syscall.SysProcAttr) {}

// awaitStopped gives SIGSTOP the moment it needs; there is no portable way to ask.
func awaitStopped(ctx context.Context, _ int) error {
	select {
	case <-time.After(50 * time.Millisecond):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
