package houserules

import (
	"go/ast"
	"go/token"
	"regexp"
	"strconv"
	"testing"
)

// timed lists the directories whose code decides how long a lock is held; exempt those in them that only tests use.
var (
	timed  = []string{"etcdlock", "fencing", "internal"}
	exempt = []string{"internal/etcdtest", "internal/faultkit", "internal/houserules"}
)

// excuse marks a reading of the wall clock as wanted, on its line or the one above.
var excuse = regexp.MustCompile(`^//\s?wallclock:\s*\S`)

func TestWallClock(t *testing.T) {
	found, excused := wallClock(repository(t))
	report(t, found)
	for _, f := range excused {
		t.Logf("excused: %v", f)
	}
}

// wallClock finds readings of the system clock in lock code, split into those without and with an excuse.
func wallClock(all []source) (found, excused []finding) {
	for _, s := range all {
		if !s.isGo() || s.isTest() || !s.under(timed...) || s.under(exempt...) {
			continue
		}
		fset, f, bad := s.parse()
		if bad != nil {
			found = append(found, bad...)
			continue
		}
		reasons := map[int]string{} // line: text of the excuse
		for _, g := range f.Comments {
			for _, c := range g.List {
				if excuse.MatchString(c.Text) {
					reasons[fset.Position(c.Pos()).Line] = c.Text
				}
			}
		}
		for _, r := range clockReadings(f) {
			pos := fset.Position(r.pos)
			why := reasons[pos.Line]
			if why == "" {
				why = reasons[pos.Line-1]
			}
			if why != "" {
				excused = append(excused, finding{pos.String(), r.name + " " + why})
				continue
			}
			found = append(found, finding{pos.String(), r.name + " without //wallclock: and a reason"})
		}
	}
	return found, excused
}

type reading struct {
	pos  token.Pos
	name string
}

// clockReadings returns the uses of the clock functions of package time, under whatever name it is imported.
func clockReadings(f *ast.File) []reading {
	var out []reading
	name := ""
	for _, i := range f.Imports {
		if p, err := strconv.Unquote(i.Path.Value); err != nil || p != "time" {
			continue
		}
		name = "time"
		if i.Name != nil {
			name = i.Name.Name
		}
		if name == "." {
			out = append(out, reading{i.Pos(), "dot import of time"})
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if x, ok := sel.X.(*ast.Ident); ok && x.Name == name {
			switch sel.Sel.Name {
			case "Now", "Since", "Until":
				out = append(out, reading{sel.Pos(), "time." + sel.Sel.Name})
			}
		}
		return true
	})
	return out
}

func TestWallClockFindsPlanted(t *testing.T) {
	const text = `package p

import "time"

var (
	a = time.Now()
	b = time.Since(a) //wallclock: metadata only
	// wallclock: metadata only
	c = time.Until(a)
	d = time.Now() //wallclock:
	e = time.NewTimer(time.Second)

	f = time.Since
)
`
	rule := func(all []source) []finding {
		found, excused := wallClock(all)
		for _, x := range excused {
			found = append(found, finding{x.at, "excused"})
		}
		return found
	}
	planted(t, rule, []source{
		{"etcdlock/p.go", text},
		{"etcdlock/p_test.go", text},
		{"internal/etcdtest/p.go", text},
		{"docs/examples/p.go", text},
		{"fencing/x/alias.go", "package x\n\nimport clock \"time\"\n\nvar now = clock.Now\n"},
		{"fencing/x/dot.go", "package x\n\nimport . \"time\"\n\nvar now = Now()\n"},
		{"internal/x/other.go", "package x\n\nvar now = time.Now()\n"},
	},
		"etcdlock/p.go:6:6: time.Now without //wallclock: and a reason",
		"etcdlock/p.go:10:6: time.Now without //wallclock: and a reason",
		"etcdlock/p.go:13:6: time.Since without //wallclock: and a reason",
		"fencing/x/alias.go:5:11: time.Now without //wallclock: and a reason",
		"fencing/x/dot.go:3:8: dot import of time without //wallclock: and a reason",
		"etcdlock/p.go:7:6: excused",
		"etcdlock/p.go:9:6: excused",
	)
}
