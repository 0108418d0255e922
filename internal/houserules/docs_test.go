package houserules

import (
	"fmt"
	"path"
	"regexp"
	"strings"
	"testing"
)

var (
	namedTest    = regexp.MustCompile(`\b((?:Test|Example|Fuzz|Benchmark)[A-Z]\w*)`)
	declaredTest = regexp.MustCompile(`(?m)^func ((?:Test|Example|Fuzz|Benchmark)\w*)\(`)
)

func TestDocsNameRealTests(t *testing.T) { report(t, missingTests(repository(t))) }

// missingTests finds tests that a document names and no file declares: a guarantee whose test was renamed away.
func missingTests(all []source) []finding {
	declared := map[string]bool{}
	for _, s := range all {
		if strings.HasSuffix(s.path, "_test.go") {
			for _, m := range declaredTest.FindAllStringSubmatch(s.text, -1) {
				declared[m[1]] = true
			}
		}
	}
	var found []finding
	for _, s := range all {
		if path.Ext(s.path) != ".md" || strings.HasPrefix(s.path, ".ci/") { // where names are placeholders
			continue
		}
		for i, line := range strings.Split(s.text, "\n") {
			for _, m := range namedTest.FindAllStringSubmatch(line, -1) {
				if !declared[m[1]] {
					found = append(found, finding{fmt.Sprintf("%s:%d", s.path, i+1), "no such test: " + m[1]})
				}
			}
		}
	}
	return found
}

func TestDocsNameRealTestsFindsPlanted(t *testing.T) {
	planted(t, missingTests, []source{
		{"a_test.go", "func TestReal(t *testing.T) {}\nfunc Example() {}\n"},
		{"a.go", "func TestNotATest(t *testing.T) {}\n"},
		{"docs/a.md", "`TestReal` and `Example`\n`TestGone`, -run TestNotATest\n"},
	},
		"docs/a.md:2: no such test: TestGone",
		"docs/a.md:2: no such test: TestNotATest",
	)
}

// placeholder matches a word that was meant to be replaced before anybody reads it.
var placeholder = regexp.MustCompile(`\b(?:[A-Z]+_[A-Z_]+|TODO|FIXME|RECORDED)\b`)

func TestDocsHaveNoPlaceholders(t *testing.T) { report(t, placeholders(repository(t))) }

func placeholders(all []source) []finding {
	var found []finding
	for _, s := range all {
		if path.Ext(s.path) != ".md" {
			continue
		}
		for i, line := range strings.Split(s.text, "\n") {
			for _, m := range placeholder.FindAllString(line, -1) {
				if !terms[m] {
					found = append(found, finding{fmt.Sprintf("%s:%d", s.path, i+1), "placeholder: " + m})
				}
			}
		}
	}
	return found
}

// terms are words in capitals that mean something.
var terms = map[string]bool{"MONOTONIC_RAW": true, "CLOCK_MONOTONIC": true, "NO_COLOR": true, "FUZZ_TIME": true}

func TestDocsHaveNoPlaceholdersFindsPlanted(t *testing.T) {
	planted(t, placeholders, []source{
		{"docs/a.md", "CLOCK_MONOTONIC\nSHAPE_TABLE here, TODO\n"},
		{"a.go", "TODO"},
	},
		"docs/a.md:2: placeholder: SHAPE_TABLE",
		"docs/a.md:2: placeholder: TODO",
	)
}
