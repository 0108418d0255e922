package etcdlock_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"os"
	"strings"
	"testing"
)

// TestReadmeProgramIsTheExample: the program on the README's first screen is,
// statement by statement, the Example that runs in the tests.
func TestReadmeProgramIsTheExample(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(readme), "```go\n")
	if !ok {
		t.Fatal("no Go program in README.md")
	}
	program, _, _ := strings.Cut(rest, "```")
	example, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	// What comes before the client differs: the example starts an etcd.
	got, want := statements(t, program, "main")[1:], statements(t, string(example), "Example")[2:]
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("README.md has\n%s\nexample_test.go has\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestMigrationProgramIsTheExample: so is the one in the page on migration.
func TestMigrationProgramIsTheExample(t *testing.T) {
	page, err := os.ReadFile("../docs/migration.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(page), "```go\n")
	if !ok {
		t.Fatal("no Go program in docs/migration.md")
	}
	program, _, _ := strings.Cut(rest, "```")
	example, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	got := statements(t, "package main\nfunc main() {\n"+program+"}", "main")
	want := statements(t, string(example), "Example_besideMutex")[3:] // what comes before is the client
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("docs/migration.md has\n%s\nexample_test.go has\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func statements(t *testing.T, src, name string) (out []string) {
	t.Helper()
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "", src, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Name.Name == name {
			for _, s := range f.Body.List {
				var b bytes.Buffer
				if err := printer.Fprint(&b, fset, s); err != nil {
					t.Fatal(err)
				}
				out = append(out, b.String())
			}
		}
	}
	return out
}
