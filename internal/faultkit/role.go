package faultkit

import (
	"bufio"
	"fmt"
	"os"
	"time"
)

// Role is what a child process does. arg is what Start was given. It has to return soon after the input of talk has
// ended; an error it returns is printed and makes the process exit with status 1.
type Role func(arg string, talk *Talk) error

// Main turns a process that Start has started into what it is to be, and does not return then. In any other process it
// returns at once. A package whose tests start processes calls it first in its TestMain. The roles of this package,
// members of an etcd cluster, need not be named.
func Main(roles map[string]Role) {
	name := os.Getenv(envRole)
	if name == "" {
		return
	}
	role := roles[name]
	if own := ownRoles[name]; own != nil {
		role = own
	}
	if role == nil {
		fail(fmt.Errorf("no role %q in this test binary", name))
	}
	// Not for the role's own children, should it have any.
	os.Unsetenv(envRole)
	talk := &Talk{in: make(chan string)}
	go talk.listen()
	if err := role(os.Getenv(envArg), talk); err != nil {
		fail(fmt.Errorf("%s: %w", name, err))
	}
	os.Exit(0)
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "faultkit:", err)
	os.Exit(1)
}

// ownRoles are there in every test binary that calls Main.
var ownRoles = map[string]Role{memberRole: runMember}

// Talk is a child's side of the pipes to its test.
type Talk struct{ in chan string }

// lingerTimeout ends a child that stays although its input has ended, as it does when the test's process died. On Linux
// the kernel has seen to it before.
const lingerTimeout = 15 * time.Second

func (t *Talk) listen() {
	for s := bufio.NewScanner(os.Stdin); s.Scan(); {
		t.in <- s.Text()
	}
	close(t.in)
	time.AfterFunc(lingerTimeout, func() { os.Exit(1) })
}

// Hear waits for the next line of the test. It reports false when the input has ended: the child should end too.
func (t *Talk) Hear() (string, bool) {
	line, ok := <-t.in
	return line, ok
}

// Say sends the test one line.
func (t *Talk) Say(format string, args ...any) {
	// Nobody listens any more when it fails, and then the input ends as well.
	_, _ = fmt.Fprintf(os.Stdout, format+"\n", args...)
}
