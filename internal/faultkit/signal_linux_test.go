package faultkit

import (
	"errors"
	"os"
	"strconv"
	"testing"
	"time"
)

// TestChildrenEndWithTheirParent kills a process without notice and has its child, stopped or not, be gone.
func TestChildrenEndWithTheirParent(t *testing.T) {
	for _, stop := range []bool{false, true} {
		p := Start(t, "parent", "")
		pid := p.Hear("child ")
		stat := "/proc/" + pid + "/stat"
		if stop {
			signalChild(t, pid)
		}
		p.Kill()
		for deadline := time.Now().Add(soon); ; pause(time.Millisecond) {
			state, err := threadState(stat)
			if errors.Is(err, os.ErrNotExist) || state == 'Z' {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("the child is there %v after its parent, state %c, %v", soon, state, err)
			}
		}
	}
}

func signalChild(t *testing.T, pid string) {
	t.Helper()
	n, err := strconv.Atoi(pid)
	if err != nil {
		t.Fatal(err)
	}
	child, err := os.FindProcess(n)
	if err != nil {
		t.Fatal(err)
	}
	if err := stopProcess(child); err != nil {
		t.Fatal(err)
	}
}
