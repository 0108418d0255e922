package houserules

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/revfence/revfence"

// arrow is a rule about what a set of packages links, tests aside.
type arrow struct {
	packages []string // patterns, relative to the module's root
	// allow reports whether linking p is allowed; standard says that p is of the standard library.
	allow func(p string, standard bool) bool
}

// arrows holds the rules by name.
var arrows = map[string]arrow{
	"fencing links the standard library only": {
		[]string{"./fencing"},
		func(p string, standard bool) bool { return standard || p == module+"/fencing" },
	},
	"fencingtest links the standard library and fencing only": {
		[]string{"./fencing/fencingtest"},
		func(p string, standard bool) bool {
			return standard || p == module+"/fencing" || p == module+"/fencing/fencingtest"
		},
	},
	"nothing under fencing links etcdlock": {
		[]string{"./fencing/..."},
		func(p string, _ bool) bool { return !within(p, module+"/etcdlock") },
	},
	"etcdlock links no etcd server and nothing for tests": {
		[]string{"./etcdlock/..."},
		func(p string, _ bool) bool {
			return !within(p, "go.etcd.io/etcd/server/v3") && !within(p, "testing") && !within(p, "go.uber.org/goleak") &&
				!within(p, module+"/internal/etcdtest") && !within(p, module+"/internal/faultkit")
		},
	},
}

// within reports whether p is tree or lies below it.
func within(p, tree string) bool { return p == tree || strings.HasPrefix(p, tree+"/") }

// linked is one package that a set of packages links.
type linked struct {
	path     string
	standard bool
}

func (a arrow) violations(deps []linked) []string {
	var bad []string
	for _, d := range deps {
		if !a.allow(d.path, d.standard) {
			bad = append(bad, d.path)
		}
	}
	return bad
}

func TestArrows(t *testing.T) {
	for name, a := range arrows {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"list", "-deps", "-f", "{{.ImportPath}} {{.Standard}}"}, a.packages...)
			var deps []linked
			for line := range strings.Lines(goTool(t, root, []string{"GOWORK=off"}, args...)) {
				path, standard, ok := strings.Cut(strings.TrimSpace(line), " ")
				if !ok {
					t.Fatalf("go list printed %q", line)
				}
				deps = append(deps, linked{path, standard == "true"})
			}
			if len(deps) == 0 {
				t.Fatalf("no package matches %v", a.packages)
			}
			for _, p := range a.violations(deps) {
				t.Errorf("links %s", p)
			}
		})
	}
}

func TestArrowsFindPlanted(t *testing.T) {
	planted := []linked{
		{"fmt", true}, {"testing", true}, {"testing/synctest", true},
		{module + "/fencing", false}, {module + "/fencing/fencingtest", false}, {module + "/fencing/sqlfence", false},
		{module + "/etcdlock", false}, {module + "/internal/etcdtest", false}, {module + "/internal/view", false},
		{"go.etcd.io/etcd/client/v3", false}, {"go.etcd.io/etcd/server/v3/embed", false}, {"go.uber.org/goleak", false},
	}
	want := map[string][]int{ // indexes into planted
		"fencing links the standard library only":                 {4, 5, 6, 7, 8, 9, 10, 11},
		"fencingtest links the standard library and fencing only": {5, 6, 7, 8, 9, 10, 11},
		"nothing under fencing links etcdlock":                    {6},
		"etcdlock links no etcd server and nothing for tests":     {1, 2, 7, 10, 11},
	}
	for name, a := range arrows {
		var paths []string
		for _, i := range want[name] {
			paths = append(paths, planted[i].path)
		}
		if got := a.violations(planted); !slices.Equal(got, paths) || len(got) == 0 {
			t.Errorf("%s: found %q, want %q", name, got, paths)
		}
	}
}

// goTool runs the go command in dir and returns what it printed.
func goTool(t *testing.T, dir string, env []string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatal(fmt.Errorf("go %s: %w\n%s%s", strings.Join(args, " "), err, &stdout, &stderr))
	}
	return stdout.String()
}
