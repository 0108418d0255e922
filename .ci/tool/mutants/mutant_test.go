package main

import (
	"errors"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const text = `# a comment
file: a.go
find: x := 1
find: y := 2
replace: x := 2
replace:
package: ./a
test: ^TestX$
args: -race
`

func TestParse(t *testing.T) {
	m, err := parse("m", text)
	if err != nil {
		t.Fatal(err)
	}
	got, err := m.apply("a\n\tx := 1\n\ty := 2\nb\n")
	if want := "a\nx := 2\nb\n"; err != nil || got != want {
		t.Errorf("applied: %q, %v, want %q", got, err, want)
	}
	for _, bad := range []string{"x := 1\n", "a\n x := 1 + 1\n\ty := 2\n", "x := 1\ny := 2\nx := 1\ny := 2\n"} {
		if got, err := m.apply(bad); err == nil {
			t.Errorf("applied to %q: %q", bad, got)
		}
	}
	for _, cut := range []string{"file: a.go\n", "find: x := 1\nfind: y := 2\n", "replace: x := 2\nreplace:\n", "package: ./a\n", "test: ^TestX$\n"} {
		if _, err := parse("m", strings.Replace(text, cut, "", 1)); err == nil {
			t.Errorf("accepted without %q", cut)
		}
	}
	for _, bad := range []string{"colour: red\n", "nothing\n", "test: (\n"} {
		if _, err := parse("m", text+bad); err == nil {
			t.Errorf("accepted %q", bad)
		}
	}
}

func TestJudge(t *testing.T) {
	failed := errors.New("exit status 1")
	for _, c := range []struct {
		name, out string
		err       error
		want      verdict
	}{
		{"pass", `{"Action":"pass","Test":"TestX"}` + "\n" + `{"Action":"pass"}`, nil, survived},
		{"fail", `{"Action":"fail","Test":"TestX"}` + "\n" + `{"Action":"fail"}`, failed, killed},
		{"leak", `{"Action":"pass","Test":"TestX"}` + "\n" + `{"Action":"fail"}`, failed, killed},
		{"build", `{"Action":"build-fail"}` + "\n" + `{"Action":"fail"}`, failed, invalid},
		{"no test", `{"Action":"pass"}`, nil, invalid},
		{"go itself", "go: bad flag\n", failed, invalid},
	} {
		if got := judge(c.out, c.err); got.verdict != c.want {
			t.Errorf("%s: %s, want %s", c.name, got.verdict, c.want)
		}
	}
}
