package houserules

import (
	"fmt"
	"path"
	"regexp"
	"strings"
	"testing"
)

var (
	namedTest    = regexp.MustCompile("`((?:Test|Example|Fuzz|Benchmark)[A-Z_]\\w*|Example)`")
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
		if path.Ext(s.path) != ".md" {
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
		{"docs/a.md", "`TestReal` and `Example`\n`TestGone`, `TestNotATest`\n"},
	},
		"docs/a.md:2: no such test: TestGone",
		"docs/a.md:2: no such test: TestNotATest",
	)
}
