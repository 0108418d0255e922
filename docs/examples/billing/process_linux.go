package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"syscall"
	"time"
)

// endWithParent has the kernel kill the worker, stopped or not, when the supervisor ends without notice.
func endWithParent(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGKILL }

// awaitStopped returns when the process is in state T: SIGSTOP takes effect a moment after it was sent.
func awaitStopped(ctx context.Context, pid int) error {
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline) && ctx.Err() == nil; time.Sleep(time.Millisecond) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return err
		}
		// The state follows the command name, which is in parentheses and may contain anything.
		if _, rest, ok := bytes.Cut(stat[max(0, bytes.LastIndexByte(stat, ')')):], []byte(") ")); ok && rest[0] == 'T' {
			return nil
		}
	}
	return fmt.Errorf("process %d did not stop", pid)
}
