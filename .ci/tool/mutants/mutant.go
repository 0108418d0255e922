package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// mutant is one planted fault and the test that has to notice it.
type mutant struct {
	name          string
	file          string
	find, replace []string
	pkg, run      string
	args          []string
}

type verdict string

const (
	killed   verdict = "killed"   // the test failed
	survived verdict = "SURVIVED" // the test passed
	invalid  verdict = "INVALID"  // the fault does not apply or build, or no test ran
)

type result struct {
	verdict verdict
	output  string // what go printed, or what is wrong
}

// parse reads a mutant file: lines of "key: value", blank lines and lines that start with #.
func parse(name, text string) (mutant, error) {
	m := mutant{name: name}
	replaced := false
	for i, line := range strings.Split(text, "\n") {
		if strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#") {
			continue
		}
		key, value, ok := strings.Cut(line, ":")
		if !ok {
			return m, fmt.Errorf("line %d: no key", i+1)
		}
		value = strings.TrimPrefix(value, " ")
		switch key {
		case "file":
			m.file = strings.TrimSpace(value)
		case "find":
			m.find = append(m.find, value)
		case "replace":
			if replaced = true; value != "" {
				m.replace = append(m.replace, value)
			}
		case "package":
			m.pkg = strings.TrimSpace(value)
		case "test":
			m.run = strings.TrimSpace(value)
		case "args":
			m.args = strings.Fields(value)
		default:
			return m, fmt.Errorf("line %d: unknown key %q", i+1, key)
		}
	}
	if m.file == "" || len(m.find) == 0 || !replaced || m.pkg == "" || m.run == "" {
		return m, errors.New("file, find, replace, package and test are all needed")
	}
	if _, err := regexp.Compile(m.run); err != nil {
		return m, err
	}
	return m, nil
}

// sameRun reports whether one run of go test can hold the tests of both.
func (m mutant) sameRun(o mutant) bool {
	return m.pkg == o.pkg && strings.Join(m.args, " ") == strings.Join(o.args, " ")
}

// apply returns the source with the fault in it. The lines of find have to be whole lines of the source, white space
// around them aside, and to occur once.
func (m mutant) apply(source string) (string, error) {
	lines := strings.Split(source, "\n")
	at := -1
	for i := range lines {
		if !matches(lines[i:], m.find) {
			continue
		}
		if at >= 0 {
			return "", fmt.Errorf("%s: found at lines %d and %d, has to occur once", m.file, at+1, i+1)
		}
		at = i
	}
	if at < 0 {
		return "", fmt.Errorf("%s: not found: %q", m.file, m.find)
	}
	out := append([]string{}, lines[:at]...)
	out = append(out, m.replace...)
	out = append(out, lines[at+len(m.find):]...)
	return strings.Join(out, "\n"), nil
}

func matches(lines, find []string) bool {
	if len(lines) < len(find) {
		return false
	}
	for i, f := range find {
		if strings.TrimSpace(lines[i]) != strings.TrimSpace(f) {
			return false
		}
	}
	return true
}

// try plants the fault and runs the test.
func (m mutant) try(ctx context.Context, tmp string) result {
	fail := func(err error) result { return result{verdict: invalid, output: m.name + ": " + err.Error()} }
	source, err := os.ReadFile(m.file)
	if err != nil {
		return fail(err)
	}
	changed, err := m.apply(string(source))
	if err != nil {
		return fail(err)
	}
	original, err := filepath.Abs(m.file)
	if err != nil {
		return fail(err)
	}
	mutated := filepath.Join(tmp, m.name+".go")
	if err := os.WriteFile(mutated, []byte(changed), 0o644); err != nil {
		return fail(err)
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{original: mutated}})
	if err != nil {
		return fail(err)
	}
	name := filepath.Join(tmp, m.name+".json")
	if err := os.WriteFile(name, overlay, 0o644); err != nil {
		return fail(err)
	}
	return m.test(ctx, name)
}

// test runs the mutant's test, with an overlay unless that is empty.
func (m mutant) test(ctx context.Context, overlay string) result {
	args := []string{"test", "-json", "-count=1", "-vet=off", "-timeout=3m", "-run", m.run}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	cmd := exec.CommandContext(ctx, "go", append(append(args, m.args...), m.pkg)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	r := judge(stdout.String(), err)
	r.output = m.name + ":\n" + r.output + stderr.String()
	if ctx.Err() != nil {
		r.verdict = invalid
	}
	return r
}

// judge reads the output of go test -json and how it ended.
func judge(stdout string, err error) result {
	var r result
	ran, failed, built := false, false, true
	for line := range strings.Lines(stdout) {
		var e struct{ Action, Test, Output string }
		if json.Unmarshal([]byte(line), &e) != nil {
			r.output += line
			continue
		}
		r.output += e.Output
		switch e.Action {
		case "build-fail":
			built = false
		case "pass":
			ran = ran || e.Test != ""
		case "fail":
			ran = ran || e.Test != ""
			failed = true // the test, or what TestMain checks after it
		}
	}
	switch {
	case !built || !ran:
		r.verdict = invalid
	case failed && err != nil:
		r.verdict = killed
	case err == nil:
		r.verdict = survived
	default:
		r.verdict = invalid
	}
	return r
}
