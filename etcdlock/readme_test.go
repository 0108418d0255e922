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
	// What comes before the client differs: the example starts an etcd.
	page{file: "README.md", before: 1, example: "Example", exampleBefore: 2}.check(t)
}

// TestMigrationProgramIsTheExample: so is the one in the page on migration.
func TestMigrationProgramIsTheExample(t *testing.T) {
	// What comes before is the client.
	page{file: "docs/migration.md", part: true, example: "Example_besideMutex", exampleBefore: 3}.check(t)
}

// A page shows a program that is an example too, but for so many statements at the beginning of either.
type page struct {
	file          string // below the repository's root
	part          bool   // the program is the body of its main alone
	before        int
	example       string
	exampleBefore int
}

func (p page) check(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile("../" + p.file)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), "```go\n")
	if !ok {
		t.Fatalf("no Go program in %s", p.file)
	}
	program, _, _ := strings.Cut(rest, "```")
	if p.part {
		program = "package main\nfunc main() {\n" + program + "}"
	}
	example, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(statements(t, program, "main")[p.before:], "\n")
	want := strings.Join(statements(t, string(example), p.example)[p.exampleBefore:], "\n")
	if got == "" || got != want {
		t.Errorf("%s has\n%s\nexample_test.go has\n%s", p.file, got, want)
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
