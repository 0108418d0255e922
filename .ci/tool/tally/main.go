// Command tally reads the output of go test -json, prints a line for each package and the whole output of whatever
// fails, and counts top-level tests. A skipped test is a failure: a suite that did not run must not look green.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

func main() {
	count := flag.String("count", "", "file to append `passed failed` to")
	flag.Parse()
	t := newTally(os.Stdout)
	err := t.read(os.Stdin)
	if err == nil && *count != "" {
		err = appendLine(*count, fmt.Sprintf("%d %d\n", t.passed, t.failed))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "tally:", err)
		os.Exit(2)
	}
	if t.failed > 0 {
		os.Exit(1)
	}
}

func appendLine(name, line string) error {
	f, err := os.OpenFile(name, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	if _, err := f.WriteString(line); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// event is one line of go test -json.
type event struct {
	Action     string
	Package    string
	ImportPath string
	Test       string
	Output     string
	Elapsed    float64
}

type tally struct {
	out            io.Writer
	output         map[string]map[string][]string // package, top-level test: lines; "" for the package's own
	counts         map[string][2]int              // package: passed, failed
	passed, failed int
	packages       int
}

func newTally(out io.Writer) *tally {
	return &tally{out: out, output: map[string]map[string][]string{}, counts: map[string][2]int{}}
}

func (t *tally) read(r io.Reader) error {
	in := bufio.NewReader(r)
	for {
		line, err := in.ReadString('\n')
		if line != "" {
			var e event
			if json.Unmarshal([]byte(line), &e) != nil || e.Action == "" {
				fmt.Fprint(t.out, line) // go itself, not a test
			} else {
				t.take(e)
			}
		}
		if err == io.EOF {
			break
		} else if err != nil {
			return err
		}
	}
	if t.packages == 0 {
		fmt.Fprintln(t.out, "no package was tested")
		t.failed++
	}
	return nil
}

func (t *tally) take(e event) {
	top, _, _ := strings.Cut(e.Test, "/")
	isTop := e.Test != "" && e.Test == top
	switch e.Action {
	case "output":
		if t.output[e.Package] == nil {
			t.output[e.Package] = map[string][]string{}
		}
		t.output[e.Package][top] = append(t.output[e.Package][top], e.Output)
	case "build-output":
		fmt.Fprint(t.out, e.Output)
	case "pass", "fail", "skip":
		switch {
		case e.Test == "":
			t.finish(e)
		case e.Action == "skip":
			// Also of a subtest: its parent passes.
			t.show(e.Package, top)
			t.add(e.Package, 0, 1)
			fmt.Fprintf(t.out, "SKIPPED %s %s: a test that does not run counts as failed\n", e.Package, e.Test)
		case isTop && e.Action == "pass":
			delete(t.output[e.Package], top)
			t.add(e.Package, 1, 0)
		case isTop:
			t.show(e.Package, top)
			t.add(e.Package, 0, 1)
		}
	}
}

// finish ends a package.
func (t *tally) finish(e event) {
	t.packages++
	n := t.counts[e.Package]
	if e.Action == "fail" {
		// What is left belongs to the package (a leak, a panic) or to tests that never ended.
		for _, test := range sortedKeys(t.output[e.Package]) {
			t.show(e.Package, test)
		}
		if n[1] == 0 {
			t.add(e.Package, 0, 1)
			n = t.counts[e.Package]
		}
	}
	delete(t.output, e.Package)
	if n != [2]int{} {
		fmt.Fprintf(t.out, "%-4s %s %.1f s, %d passed, %d failed\n", e.Action, e.Package, e.Elapsed, n[0], n[1])
	}
}

func (t *tally) show(pkg, test string) {
	for _, line := range t.output[pkg][test] {
		fmt.Fprint(t.out, line)
	}
	delete(t.output[pkg], test)
}

func (t *tally) add(pkg string, passed, failed int) {
	n := t.counts[pkg]
	t.counts[pkg] = [2]int{n[0] + passed, n[1] + failed}
	t.passed += passed
	t.failed += failed
}

func sortedKeys(m map[string][]string) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
