// Package lease renews etcd leases and knows for how long each may be
// believed.
//
// A Keeper renews all leases of one Locker on one KeepAlive stream of its own.
// It stands in for clientv3's lessor under concurrency.Session (see
// Keeper.View) because three things that decide when a holder must stop are
// not to be had from the lessor:
//
//   - when the request that was answered had been sent. The server's count
//     starts at some moment between send and answer; counting from the answer,
//     as the lessor does, ends up to the round trip too late;
//   - the stream's real error, so that a refused renewal is told at once;
//   - a deadline that is a timer, not a poll each second, and that is the TTL
//     from the first moment on, not the dial timeout.
//
// # Trust window
//
// A lease is believed until
//
//	sent(last answered renewal, or the grant) + granted TTL − margin
//
// measured on internal/clock. Then it has ended, for good, even if an answer
// comes later. An ended lease is never renewed again: etcd blocks the renewal
// of an expired lease until its revoke has gone through, and every other
// lease on the stream with it.
//
// # Watchdog
//
// A lease whose renewal is due and has had no answer for up to 2 s makes the
// Keeper open another round of streams: a new one on the user's connection, and
// one through each endpoint on a connection of its own. The older streams stay:
// a slow link may still answer. Whichever answers counts. Once a stream on the
// user's connection answers, the others are closed. Losing a stream is not
// losing a lease.
//
// Safety does not rest on this package: it makes trouble rare and known.
package lease
