package main

import (
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTally(t *testing.T) {
	const pass = `{"Action":"output","Package":"p","Test":"TestA","Output":"chatter\n"}
{"Action":"pass","Package":"p","Test":"TestA/sub"}
{"Action":"pass","Package":"p","Test":"TestA"}
`
	const done = `{"Action":"pass","Package":"p","Elapsed":1}
`
	for _, c := range []struct {
		name, in       string
		passed, failed int
		shown, hidden  string
	}{
		{"pass", pass + done, 1, 0, "pass p 1.0 s, 1 passed, 0 failed", "chatter"},
		{"fail", pass + `{"Action":"output","Package":"p","Test":"TestB","Output":"one\n"}
{"Action":"output","Package":"p","Test":"TestB/sub","Output":"two\n"}
{"Action":"fail","Package":"p","Test":"TestB/sub"}
{"Action":"fail","Package":"p","Test":"TestB"}
{"Action":"fail","Package":"p"}
`, 1, 1, "one\ntwo\n", "chatter"},
		{"leak", pass + `{"Action":"output","Package":"p","Output":"goleak: found\n"}
{"Action":"fail","Package":"p"}
`, 1, 1, "goleak: found", "chatter"},
		{"hang", `{"Action":"output","Package":"p","Test":"TestC","Output":"panic: test timed out\n"}
{"Action":"fail","Package":"p"}
`, 0, 1, "timed out", ""},
		{"skipped subtest", `{"Action":"skip","Package":"p","Test":"TestA/sub"}
` + pass + done, 1, 1, "SKIPPED p TestA/sub", ""},
		{"build failure", `{"ImportPath":"p [p.test]","Action":"build-output","Output":"undefined: x\n"}
{"ImportPath":"p [p.test]","Action":"build-fail"}
{"Action":"fail","Package":"p"}
`, 0, 1, "undefined: x", ""},
		{"no test files", `{"Action":"skip","Package":"q"}
` + pass + done, 1, 0, "", "SKIPPED"},
		{"nothing", "go: no such package\n", 0, 1, "go: no such package\nno package was tested", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out strings.Builder
			n := newTally(&out)
			if err := n.read(strings.NewReader(c.in)); err != nil {
				t.Fatal(err)
			}
			if n.passed != c.passed || n.failed != c.failed {
				t.Errorf("%d passed, %d failed, want %d and %d", n.passed, n.failed, c.passed, c.failed)
			}
			if !strings.Contains(out.String(), c.shown) || c.hidden != "" && strings.Contains(out.String(), c.hidden) {
				t.Errorf("printed %q, want it to contain %q and not %q", &out, c.shown, c.hidden)
			}
		})
	}
}
