package houserules

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// consumer is a service as it is before it takes up revfence: it uses etcd's client and zap.
const consumer = `// Command consumer stands for a service that already uses etcd.
package main

import (
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

func main() {
	log := zap.NewNop()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{"127.0.0.1:2379"}, Logger: log})
	if err != nil {
		log.Fatal("client", zap.Error(err))
	}
	defer c.Close()
}
`

const adopts = `package main

import _ "` + module + `/etcdlock"
`

// footprint is what a module depends on.
type footprint struct {
	required map[string]string // module path: version, each one a require line of go.mod
	linked   map[string]bool   // modules with a package in go list -deps
	vendored map[string]bool   // modules with a package in vendor/modules.txt
}

// TestLeanConsumer takes a service that uses etcd's client and zap, adds etcdlock, and looks at what else that brought.
func TestLeanConsumer(t *testing.T) {
	before := measure(t, consumerModule(t, false))
	after := measure(t, consumerModule(t, true))
	for _, s := range before.grown(after) {
		t.Error(s)
	}
	for m, v := range after.required {
		if old := before.required[m]; old != "" && old != v {
			t.Logf("etcdlock raises %s from %s to %s", m, old, v)
		}
	}
}

// grown lists what after has beyond the footprint and one new module, this one.
func (before footprint) grown(after footprint) []string {
	var out []string
	for _, c := range []struct {
		what     string
		old, now []string
	}{
		{"require line", slices.Sorted(maps.Keys(before.required)), slices.Sorted(maps.Keys(after.required))},
		{"linked module", slices.Sorted(maps.Keys(before.linked)), slices.Sorted(maps.Keys(after.linked))},
		{"vendored module", slices.Sorted(maps.Keys(before.vendored)), slices.Sorted(maps.Keys(after.vendored))},
	} {
		found := false
		for _, m := range c.now {
			switch {
			case m == module:
				found = true
			case !slices.Contains(c.old, m):
				out = append(out, "new "+c.what+": "+m)
			}
		}
		if !found {
			out = append(out, "no "+c.what+" for "+module+": the measurement is wrong")
		}
	}
	return out
}

// consumerModule writes the service's module, with or without etcdlock, and tidies it.
func consumerModule(t *testing.T, adopted bool) string {
	t.Helper()
	dir := t.TempDir()
	abs, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	ours := readMod(t, root)
	mod := "module example.com/consumer\n\ngo " + ours.Go + "\n\nrequire (\n"
	for _, m := range []string{"go.etcd.io/etcd/client/v3", "go.uber.org/zap"} {
		v := ours.versions()[m]
		if v == "" {
			t.Fatalf("go.mod does not require %s", m)
		}
		mod += "\t" + m + " " + v + "\n"
	}
	files := map[string]string{"main.go": consumer, "go.sum": string(sums)}
	if adopted {
		mod += "\t" + module + " v0.0.0\n"
		files["adopt.go"] = adopts
	}
	files["go.mod"] = mod + ")\n"
	if adopted {
		files["go.mod"] += "\nreplace " + module + " => " + abs + "\n"
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	goTool(t, dir, modEnv, "mod", "tidy")
	return dir
}

var modEnv = []string{"GOWORK=off", "GOFLAGS=-mod=mod"}

func measure(t *testing.T, dir string) footprint {
	t.Helper()
	f := footprint{readMod(t, dir).versions(), map[string]bool{}, map[string]bool{}}
	for m := range strings.Lines(goTool(t, dir, modEnv, "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", "./...")) {
		if m = strings.TrimSpace(m); m != "" && m != "example.com/consumer" {
			f.linked[m] = true
		}
	}
	goTool(t, dir, modEnv, "mod", "vendor")
	text, err := os.ReadFile(filepath.Join(dir, "vendor", "modules.txt"))
	if err != nil {
		t.Fatal(err)
	}
	f.vendored = vendored(string(text))
	return f
}

// vendored returns the modules of a modules.txt that have a package in it.
func vendored(text string) map[string]bool {
	out := map[string]bool{}
	current := ""
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0 || fields[0] == "##":
		case fields[0] == "#":
			current = fields[1]
		default:
			out[current] = true
		}
	}
	return out
}

// modFile is the part of go mod edit -json used here.
type modFile struct {
	Go      string
	Require []struct{ Path, Version string }
}

func readMod(t *testing.T, dir string) modFile {
	t.Helper()
	var m modFile
	if err := json.Unmarshal([]byte(goTool(t, dir, nil, "mod", "edit", "-json")), &m); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m modFile) versions() map[string]string {
	out := map[string]string{}
	for _, r := range m.Require {
		out[r.Path] = r.Version
	}
	return out
}

func TestLeanConsumerFindsPlanted(t *testing.T) {
	set := func(ms ...string) map[string]bool {
		out := map[string]bool{}
		for _, m := range ms {
			out[m] = true
		}
		return out
	}
	before := footprint{map[string]string{"a": "v1"}, set("a"), set("a")}
	lean := footprint{map[string]string{"a": "v2", module: "v0"}, set("a", module), set("a", module)}
	if got := before.grown(lean); len(got) != 0 {
		t.Errorf("a lean module was reported: %q", got)
	}
	fat := footprint{map[string]string{"a": "v1", "b": "v1", module: "v0"}, set("a", "c", module), set("a", "d", module)}
	want := []string{"new require line: b", "new linked module: c", "new vendored module: d"}
	if got := before.grown(fat); !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
	if got := before.grown(before); len(got) != 3 {
		t.Errorf("a measurement without this module was accepted: %q", got)
	}
	text := "# a v1\n## explicit; go 1.25\na/x\n# b v2\n## explicit\n# c v3 => ../c\nc\nc/y\n"
	if got := vendored(text); !maps.Equal(got, set("a", "c")) {
		t.Errorf("modules with packages: %v, want a and c", got)
	}
}
