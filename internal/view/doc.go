// Package view composes the etcd client that concurrency.Session and
// concurrency.Mutex run on, unchanged.
//
// It is the pattern of etcd's own namespace package: a client without a
// connection whose KV, Lease and Watcher are ours and call the user's. That is
// where the faults of the stock lock are mended without forking it:
//
//   - reads inside a wait are repeated until the context ends (one failed read
//     makes the stock Mutex.Lock delete its key and lose its place);
//   - the create transaction also fetches the predecessor and writes who is
//     asking; after a deletion, one read transaction serves both reads of the
//     stock code;
//   - a wait for a deletion starts its watch from now instead of from a
//     revision in the past, which etcd would serve from its 100 ms catch-up
//     loop; it survives compaction, lost leaders and closed streams, and does
//     not depend on one event;
//   - the clean-up of the stock code, by key name and without a deadline, is
//     left out: whoever called Lock cleans up, bounded and guarded by the
//     create revision;
//   - every answer's revision is compared with the highest seen before its
//     request was sent.
//
// Which acquisition a call belongs to is in its context: an Attempt.
package view
