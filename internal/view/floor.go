package view

import (
	"errors"
	"fmt"
	"sync/atomic"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// ErrRegressed matches a RegressedError.
var ErrRegressed = errors.New("etcd's revision went backwards")

// A RegressedError says that etcd answered with a revision below one it had
// answered before: it was restored from a backup, or is another cluster.
type RegressedError struct{ Seen, Got int64 }

func (e *RegressedError) Error() string {
	return fmt.Sprintf("%v: answered %d after %d; tokens may repeat. (Or it is another etcd, or a fence was shown a bogus token.) A restore must go with a bump of at least the difference: "+
		"etcdutl snapshot restore --bump-revision %d --mark-compacted", ErrRegressed, e.Got, e.Seen, Bump(e.Seen-e.Got))
}

// Is makes errors.Is(err, ErrRegressed) true.
func (e *RegressedError) Is(target error) bool { return target == ErrRegressed }

// Bump returns the bump to recommend after a regression by d revisions: never
// below etcd's own recommendation of a thousand million, since writes may go on.
func Bump(d int64) int64 { return max(1_000_000_000, d) }

// A Floor is the highest revision that etcd has answered, from writes and
// linearizable reads only.
type Floor struct {
	rev     atomic.Int64
	cluster atomic.Uint64
}

// Load returns the floor.
func (f *Floor) Load() int64 { return f.rev.Load() }

// Cluster returns the id of the cluster that answered, 0 before the first answer.
func (f *Floor) Cluster() uint64 { return f.cluster.Load() }

// observe raises the floor, or reports that an answer is below what the floor
// was before its request was sent.
func (f *Floor) observe(before int64, h *pb.ResponseHeader) error {
	f.cluster.Store(h.ClusterId)
	if h.Revision < before {
		return &RegressedError{Seen: before, Got: h.Revision}
	}
	for {
		now := f.rev.Load()
		if h.Revision <= now || f.rev.CompareAndSwap(now, h.Revision) {
			return nil
		}
	}
}
