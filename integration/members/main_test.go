//go:build unix

package members_test

import (
	"flag"
	"strconv"
	"testing"

	"go.uber.org/goleak"

	"github.com/revfence/revfence/internal/faultkit"
)

// parallel is how many scenarios run at the same time. They mostly wait; what bounds them is the memory of three servers
// each.
const parallel = 8

func TestMain(m *testing.M) {
	faultkit.Main(map[string]faultkit.Role{"holder": holder})
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		if err := flag.Set("test.parallel", strconv.Itoa(parallel)); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}
