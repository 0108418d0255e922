// Package houserules holds the rules of this repository that no ready-made linter knows. They are tests: run them with
//
//	go test ./internal/houserules
//
// The rules are: exported names and packages are documented; lock code does not read the wall clock; the dependency
// arrows between packages hold; a service that imports etcdlock gets one new module and no other; files stay short;
// every package checks for leaked goroutines; no file names a path of somebody's machine. Each rule has a test that
// shows it fail on a planted violation.
package houserules
