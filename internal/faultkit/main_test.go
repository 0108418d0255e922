package faultkit

import (
	"errors"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	Main(testRoles)
	goleak.VerifyTestMain(m)
}

var testRoles = map[string]Role{
	"echo": func(arg string, talk *Talk) error {
		talk.Say("hello %s", arg)
		for {
			line, ok := talk.Hear()
			if !ok {
				return nil
			}
			talk.Say("echo %s", line)
		}
	},
	"failing": func(string, *Talk) error { return errors.New("as it should") },
	"parent": func(_ string, talk *Talk) error {
		r, err := newRun("echo", "")
		if err != nil {
			return err
		}
		talk.Say("child %d", r.cmd.Process.Pid)
		talk.Hear()
		return nil
	},
}
