// Package etcdlock provides locks shared by processes through etcd, each
// acquisition numbered by a fencing token.
//
// # Model
//
// A name stands for a queue of keys in etcd, each on a lease. The oldest living
// key holds the lock; etcd decides which that is, and when a lease has expired.
// The token of a hold is the create revision of its key. Places are served in
// the order of their create revisions, so tokens rise from holder to holder,
// and a resource that remembers the highest token it has seen can refuse a
// former holder that does not know yet. Package fencing is that half; a lock
// without it is only probably exclusive.
//
// [Locker.Do] is the shortest way to a correct use: see its example. [Locker.Lock]
// and [Lock.Unlock] are the pieces. [Locker.Once] is for jobs that every process
// would start, such as a nightly one.
//
// # Guaranteed
//
// While etcd keeps its own promises, and its revisions do not go backwards
// (numbers as in docs/guarantees.md, which has them all and the test of each):
//
//   - G1. Tokens of one name strictly increase from holder to holder.
//   - G2, G4. A lock that is returned had, when etcd answered, the oldest key of
//     its name; every fence of [WithFences] has been raised to its token before.
//   - G3. Between processes places are served first come, first served, and so
//     are goroutines of one Locker; stock mutexes and etcdctl take part.
//   - G6. Within the stated clock-rate error a holder whose process runs is told
//     of a lease that may expire before etcd can expire it.
//   - G9. A loss is told once, with its reason, and nothing here says "held"
//     after that.
//   - G12. After an unconfirmed release, a crash or a partition the name is free
//     when the lease has expired: the TTL after its last renewal, and what etcd
//     takes to notice. No key that nobody holds is renewed.
//   - G13. [Lock.Txn] applies nothing, of Then or of Else, for a former holder.
//
// # Not guaranteed
//
//   - N1. That a holder has stopped when the next one starts. A paused process
//     goes on where it was; so do requests under way. Only a fence, checked by
//     the resource in one step with the write, keeps them out.
//   - N3. Early notice (G6) when an operator deletes the key or revokes the lease
//     (that is told within milliseconds, after the fact, once the lock has been
//     held for a second), when an etcd leader that was just resumed from a pause
//     answers a renewal or revokes what was renewed elsewhere, through etcd's
//     grpc-proxy, which answers renewals itself, or on a machine that its
//     hypervisor paused.
//   - N5. Any order of tokens across a restore of etcd from a backup without
//     etcdutl snapshot restore --bump-revision. It is reported as
//     [ErrRevisionRegressed] if this process, or a fence, has seen higher
//     revisions; a process that has not cannot know.
//   - N6. Progress without a quorum of etcd.
//   - N7. That a job runs exactly once. Two holders after one another both run it;
//     [Locker.Once] leaves a mark against that, but what crashed before its mark
//     is started again.
//   - N8. Detection of deadlocks between names. Locks are not reentrant: see
//     [ErrReentrant].
//
// # Servers
//
// Use etcd 3.5.28, 3.6.9, 3.7.0 or later. With its first lock a Locker asks every
// endpoint, once and in the background, for its version, and logs a warning about
// older ones: they may answer a linearizable read from the past (etcd #20418).
// Nothing is refused. Tested with 3.6.16 and 3.7.3, and with 3.5.21, which is
// warned about.
//
// # Time
//
// etcd alone decides when a lock has ended. The local clock only ends it
// earlier: at the send time of the last renewal that was answered + TTL −
// safety margin ([WithSafetyMargin]). Any offset of the wall clock is
// tolerated, since it is not read; the margin covers a difference of clock
// rates; on Linux suspend and slew do not hide time. No safety argument of this
// module mentions time.
//
// # Errors
//
//	error                 held?    what next
//	ctx's error           no       as the caller likes
//	ErrLocked             no       TryLock only: try later
//	ErrLost               no more  stop; the next holder may be at work
//	ErrReleased           no more  a bug: used after Unlock
//	ErrUnknown            see it   of a release: free within the TTL; of Txn and Once: find out
//	ErrClosed             no       the Locker or the client is closed
//	ErrReentrant          yes      by the caller itself: see WithoutHold
//	ErrForeignKey         no       an operator must look at the named key
//	ErrRevisionRegressed  no       an operator must restore with a bump
//	*RequireError         yes      but not for as long as needed
//
// # Keys
//
// A key is <prefix><escaped name>/<lease id in hex>, the layout of etcd's
// concurrency.Mutex, its value the holder's identity. Names are escaped as in a
// URL path, so that no name's queue lies within another's: "jobs" and
// "jobs/billing" are independent. The lock queues with etcdctl lock and stock
// mutexes only for names that escaping leaves as they are: "/a/b/nightly" there
// is [WithPrefix]("/a/b/") and the name "nightly" here. A mismatch is two locks.
//
// # Costs
//
// An uncontended cycle is two commits. A process that waits has one key and one
// watch in etcd, and a second watch, on its own key, after a second; goroutines
// that wait behind another of their process cost a channel. A hold costs one
// renewal per third of its TTL on the Locker's one stream and, from about a
// second on, a watch of its key.
package etcdlock
