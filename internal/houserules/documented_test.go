package houserules

import (
	"go/ast"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
)

func TestDocumented(t *testing.T) { report(t, undocumented(repository(t))) }

// undocumented finds exported names without a doc comment in packages users can import, and packages of any kind
// without a package comment.
func undocumented(all []source) []finding {
	var found []finding
	packages := map[string]bool{} // directory: has a package comment
	for _, s := range all {
		if !s.isGo() || s.isTest() {
			continue
		}
		fset, f, bad := s.parse()
		if bad != nil {
			found = append(found, bad...)
			continue
		}
		packages[path.Dir(s.path)] = packages[path.Dir(s.path)] || says(f.Doc)
		if s.internal() || f.Name.Name == "main" {
			continue
		}
		for _, n := range undocumentedIn(f) {
			found = append(found, finding{fset.Position(n.Pos()).String(), "exported " + n.Name + " has no doc comment"})
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(packages)) {
		if !packages[dir] {
			found = append(found, finding{dir, "package has no package comment"})
		}
	}
	return found
}

func undocumentedIn(f *ast.File) []*ast.Ident {
	var names []*ast.Ident
	miss := func(n *ast.Ident, docs ...*ast.CommentGroup) {
		if n.IsExported() && !slices.ContainsFunc(docs, says) {
			names = append(names, n)
		}
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil || ast.IsExported(receiver(d.Recv.List[0].Type)) {
				miss(d.Name, d.Doc)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					// A comment over a group of types says nothing about each of them.
					docs := []*ast.CommentGroup{spec.Doc}
					if !d.Lparen.IsValid() {
						docs = append(docs, d.Doc)
					}
					miss(spec.Name, docs...)
					if it, ok := spec.Type.(*ast.InterfaceType); ok && spec.Name.IsExported() {
						for _, m := range it.Methods.List {
							for _, n := range m.Names {
								miss(n, m.Doc, m.Comment)
							}
						}
					}
				case *ast.ValueSpec:
					for _, n := range spec.Names {
						miss(n, d.Doc, spec.Doc, spec.Comment)
					}
				}
			}
		}
	}
	return names
}

// says reports whether a comment has words in it, directives aside.
func says(c *ast.CommentGroup) bool { return strings.TrimSpace(c.Text()) != "" }

// receiver returns the name of a method's receiver type.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

func TestDocumentedFindsPlanted(t *testing.T) {
	planted(t, undocumented, []source{
		{"a/a.go", "// Package a is documented.\npackage a\n"},
		{"a/b.go", `package a

func Bare() {}

// Told has a comment.
func Told() {}

type Naked struct{ Field int }

func (*Naked) Method() {}

type hidden struct{}

func (hidden) Method() {}

//go:noinline
func Directive() {}

// Group of constants.
const (
	A = 1
	B = 2
)

var V, w = 1, 2

// Group says nothing about the types in it.
type (
	InGroup int
	// Own is fine.
	Own int
)

// I is an interface.
type I interface {
	Silent()
	// Spoken is documented.
	Spoken()
}

// G is generic.
type G[T any] struct{}

func (g *G[T]) Method() {}
`},
		{"a/a_test.go", "package a\n\nfunc Helper() {}\n"},
		{"b/b.go", "package b\n"},
		{"b/internal/c/c.go", "// Package c is internal.\npackage c\n\nfunc Free() {}\n"},
		{"cmd/main.go", "package main\n\nfunc Free() {}\n"},
		{"d/d.go", "// Package d is broken.\npackage d\n\nfunc {\n"},
	},
		"a/b.go:3:6: exported Bare has no doc comment",
		"a/b.go:8:6: exported Naked has no doc comment",
		"a/b.go:10:15: exported Method has no doc comment",
		"a/b.go:17:6: exported Directive has no doc comment",
		"a/b.go:25:5: exported V has no doc comment",
		"a/b.go:29:2: exported InGroup has no doc comment",
		"a/b.go:36:2: exported Silent has no doc comment",
		"a/b.go:44:16: exported Method has no doc comment",
		"d/d.go: d/d.go:4:6: expected 'IDENT', found '{'",
		"b: package has no package comment",
		"cmd: package has no package comment",
	)
}
