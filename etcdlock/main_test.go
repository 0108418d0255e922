package etcdlock_test

import (
	"flag"
	"strconv"
	"testing"

	"go.uber.org/goleak"

	"github.com/revfence/revfence/internal/faultkit"
)

// TestMain lets more tests run at the same time than there are processors: most of them wait for a TTL to pass. Tests
// that keep a processor busy, or whose timing is judged closely, are parallel to none but themselves.
func TestMain(m *testing.M) {
	faultkit.Main(nil)
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		if err := flag.Set("test.parallel", strconv.Itoa(parallel)); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m,
		// The members of an etcd cluster forward renewals to each other over HTTP, and a member that has stopped leaves
		// its idle connections to time out. Nothing here uses net/http.
		goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"),
		goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"),
		goleak.IgnoreAnyFunction("net/http.(*conn).serve"),
		goleak.IgnoreAnyFunction("net/http.(*connReader).backgroundRead"),
	)
}
