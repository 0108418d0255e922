package houserules

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// faultTable lists the known faults of etcd's own lock, a row each.
const faultTable = "docs/etcd-differences.md"

var (
	faultRow    = regexp.MustCompile(`(?m)^\| (F\d\d) \|.*$`)
	faultTest   = regexp.MustCompile(`\b(?:Test|Fuzz)(F\d\d)[A-Z]\w*`)
	mutantTests = regexp.MustCompile(`(?m)^test: .*$`)
)

func TestFaultsAreTested(t *testing.T) { report(t, untestedFaults(repository(t))) }

// untestedFaults finds rows of the table that name no test of their number, or whose tests no mutant has failing; and
// tests of a number that has no row.
func untestedFaults(all []source) []finding {
	rows, mutants, tests := map[string]string{}, map[string]bool{}, map[string]string{}
	for _, s := range all {
		switch {
		case s.path == faultTable:
			for _, m := range faultRow.FindAllStringSubmatch(s.text, -1) {
				rows[m[1]] = m[0]
			}
		case path.Ext(s.path) == ".mutant":
			for _, line := range mutantTests.FindAllString(s.text, -1) {
				for _, m := range faultTest.FindAllStringSubmatch(line, -1) {
					mutants[m[1]] = true
				}
			}
		case s.isTest():
			for _, m := range declaredTest.FindAllStringSubmatch(s.text, -1) {
				if f := faultTest.FindStringSubmatch(m[1]); f != nil {
					tests[f[1]] = m[1]
				}
			}
		}
	}
	var found []finding
	for _, n := range slices.Sorted(maps.Keys(rows)) {
		if !slices.ContainsFunc(faultTest.FindAllStringSubmatch(rows[n], -1), func(m []string) bool { return m[1] == n }) {
			found = append(found, finding{faultTable, n + " names no test of its number"})
		}
		if !mutants[n] {
			found = append(found, finding{faultTable, "no mutant has a test of " + n + " fail"})
		}
	}
	for _, n := range slices.Sorted(maps.Keys(tests)) {
		if rows[n] == "" {
			found = append(found, finding{faultTable, fmt.Sprintf("no row %s, which %s tests", n, tests[n])})
		}
	}
	return found
}

func TestFaultsAreTestedFindsPlanted(t *testing.T) {
	planted(t, untestedFaults, []source{
		{faultTable, strings.Join([]string{
			"| F01 | two hold | `TestF01Hold` |",
			"| F02 | named by another's | `TestF01Hold` |",
			"| F03 | no mutant | `TestF03Late` |",
		}, "\n")},
		{"a_test.go", "func TestF01Hold(t *testing.T) {}\nfunc TestF03Late(t *testing.T) {}\nfunc FuzzF04Names(f *testing.F) {}\nfunc TestFree(t *testing.T) {}\n"},
		{".ci/mutants.d/a.mutant", "# TestF03Late\ntest: ^TestF01Hold$\n"},
	},
		faultTable+": F02 names no test of its number",
		faultTable+": no mutant has a test of F02 fail",
		faultTable+": no mutant has a test of F03 fail",
		faultTable+": no row F04, which FuzzF04Names tests",
	)
}
