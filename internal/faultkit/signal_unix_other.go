//go:build unix && !linux

package faultkit

import (
	"syscall"
	"time"
)

// endWithParent has nothing to add here: the end of its input tells the child.
func endWithParent(*syscall.SysProcAttr) {}

// awaitStopped gives the signal the moment it needs; there is no portable way to ask.
func awaitStopped(int, bool) error {
	<-time.After(50 * time.Millisecond)
	return nil
}
