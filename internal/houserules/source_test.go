package houserules

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// root is the top of the repository as seen from this package.
const root = "../.."

// source is one file of the repository, or of a test's planted tree.
type source struct {
	path string // slash-separated, relative to the root
	text string
}

// finding is one violation of a rule.
type finding struct {
	at   string // path, or path:line
	what string
}

func (f finding) String() string { return f.at + ": " + f.what }

// repository reads all text files of the repository, the version control's own aside.
func repository(t *testing.T) []source {
	t.Helper()
	var all []source
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.Name() == ".git" {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil // a worktree's pointer
		}
		if !d.Type().IsRegular() {
			return nil
		}
		text, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		if bytes.IndexByte(text, 0) >= 0 {
			return nil
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		all = append(all, source{filepath.ToSlash(rel), string(text)})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(all, func(s source) bool { return s.path == "internal/houserules/doc.go" }) {
		t.Fatalf("%s is not the repository's root", root)
	}
	return all
}

func (s source) isGo() bool   { return strings.HasSuffix(s.path, ".go") }
func (s source) isTest() bool { return strings.HasSuffix(s.path, "_test.go") }

// under reports whether the file lies in one of the directories.
func (s source) under(dirs ...string) bool {
	return slices.ContainsFunc(dirs, func(d string) bool { return strings.HasPrefix(s.path, d+"/") })
}

// internal reports whether the file belongs to a package that only this repository can import.
func (s source) internal() bool {
	return slices.Contains(strings.Split(path.Dir(s.path), "/"), "internal")
}

// parse returns the syntax of a Go file. A file that does not parse is a finding of its own.
func (s source) parse() (*token.FileSet, *ast.File, []finding) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, s.path, s.text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, nil, []finding{{s.path, err.Error()}}
	}
	return fset, f, nil
}

func report(t *testing.T, found []finding) {
	t.Helper()
	for _, f := range found {
		t.Error(f)
	}
}

// planted checks that a rule finds exactly want (as the text of findings) in a made-up tree.
func planted(t *testing.T, rule func([]source) []finding, tree []source, want ...string) {
	t.Helper()
	var got []string
	for _, f := range rule(tree) {
		got = append(got, f.String())
	}
	if !slices.Equal(got, want) {
		t.Errorf("found\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}
