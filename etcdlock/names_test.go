package etcdlock_test

import (
	"fmt"
	"testing"

	"github.com/revfence/revfence/etcdlock"
)

// TestF30NestedPrefix: a lock whose prefix lies below another lock is reported there, by its key, and blocks nobody in silence.
func TestF30NestedPrefix(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	outer, inner := clientLocker(t, srv), clientLocker(t, srv, etcdlock.WithPrefix("/revfence/jobs/"))
	k := mustLock(t, inner, "billing")
	_, err := outer.TryLock(testContext(t), "jobs")
	wantIs(t, "TryLock", err, etcdlock.ErrForeignKey)
	wantText(t, "TryLock", err, fmt.Sprintf("%q", k.Key()))
	_, err = outer.Lock(testContext(t), "jobs")
	wantIs(t, "Lock", err, etcdlock.ErrForeignKey)
	mustUnlock(t, k)
	mustUnlock(t, mustLock(t, outer, "jobs"))
}

// TestF30PrefixOfMarks: a lock cannot stand where the marks of Once are.
func TestF30PrefixOfMarks(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	for _, prefix := range []string{"/revfence/%done/", "%done/x"} {
		_, err := etcdlock.New(srv.Client(t), etcdlock.WithPrefix(prefix))
		wantText(t, prefix, err, "must not contain")
	}
}
