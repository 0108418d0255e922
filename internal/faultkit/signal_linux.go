package faultkit

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// endWithParent has the kernel kill the child, stopped or not, when the test's process ends.
func endWithParent(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGKILL }

// awaitStopped returns when all threads of the process are stopped, or none is: signals take effect some time after
// they were sent, and not for all threads at once.
func awaitStopped(pid int, stopped bool) error {
	for deadline := time.Now().Add(signalTimeout); time.Now().Before(deadline); pause(time.Millisecond) {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		if err != nil {
			return err
		}
		done := len(threads) > 0
		for _, file := range threads {
			state, err := threadState(file)
			if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ESRCH) { // a thread may end meanwhile
				return err
			}
			done = done && (err != nil || (state == 'T') == stopped)
		}
		if done {
			return nil
		}
	}
	return fmt.Errorf("process %d: signal without effect after %v", pid, signalTimeout)
}

// threadState returns the state letter, which follows the name. That is in parentheses and may contain anything.
func threadState(file string) (byte, error) {
	stat, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	if _, rest, ok := bytes.Cut(stat[max(0, bytes.LastIndexByte(stat, ')')):], []byte(") ")); ok && len(rest) > 0 {
		return rest[0], nil
	}
	return 0, fmt.Errorf("%s: no state in %q", file, stat)
}
