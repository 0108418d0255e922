package fencing

import (
	"os/exec"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestStandardLibraryOnly keeps a service that merely checks tokens free of etcd
// and of everything else.
func TestStandardLibraryOnly(t *testing.T) {
	const module = "github.com/revfence/revfence/"
	cmd := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", ".", "./fencingtest")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, out)
	}
	got := strings.Fields(string(out))
	if len(got) != 2 || got[0] != module+"fencing" || got[1] != module+"fencing/fencingtest" {
		t.Errorf("fencing and fencingtest depend on %q, want only themselves and the standard library", got)
	}
}
