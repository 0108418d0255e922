// Package fencing is the resource's side of a lock: it refuses the write of a
// holder that has been overtaken.
//
// It imports the standard library only, so a service that merely checks tokens
// links no etcd client.
//
// # Model
//
// A holder of a lock can be paused, cut off or wrong about the time, and go on
// writing after the lock has passed to another. No lock can prevent that from
// where it stands; the resource can. Every acquisition of a lock carries a
// [Token], a number higher than that of every acquisition before it. The
// resource keeps the highest token it has seen, its high-water mark. It accepts
// a write whose token is the mark or above, raising the mark, and refuses one
// below with a [*StaleError].
//
// A [Fence] is whatever keeps such a mark. [Gate] keeps one in memory; the
// packages below this one keep theirs in a particular kind of store. A token
// travels in a context ([NewContext], [FromContext]) or as text ([Token.String],
// [ParseToken]). Package fencingtest checks a fence of your own.
//
// # Rules for a fence
//
//  1. Accept a token equal to the mark or above it, refuse one below. Equal must
//     pass: it is the holder's second write.
//  2. Check and write are one atomic step of the resource: one SQL transaction,
//     one script, one critical section. A check that succeeded a moment before the
//     write has checked nothing.
//  3. The new holder shows its token before it reads. Otherwise a late write of
//     the old holder lands between its read and its write, and is lost without
//     anyone being refused. [Fence].Advance is for this.
//  4. One mark protects what one lock name protects. A token carries no name, and
//     shown to another lock's fence it can shut the rightful holder out.
//  5. The mark is as durable as the data, lives in the same store, and never
//     expires. Restoring the data without the mark reopens the door.
//  6. No token, zero or a negative one is refused, not waved through, and is told
//     apart from stale.
//  7. Tokens compare as 64-bit integers, or as text in the form of [Token.Padded].
//     A float64 confuses neighbours above 2^53.
//  8. An operator can reset a mark that a bogus token has raised out of reach, by
//     compare-and-set, and the reset is logged. See [Gate.Reset].
//
// # Guaranteed
//
//   - Only tokens decide what is accepted. No clock, TTL or health signal does, so a
//     pause of any length, anywhere, changes no answer; contexts only end waits.
//   - Inside a [Gate] there is one token at a time, and the tokens that get in never
//     go down, unless Reset is called.
//   - When [Gate.Advance] or [Gate.Enter] returns nil, no lower token is inside, and
//     none gets in afterwards, again unless Reset is called.
//   - A refusal that is stale, for want of a token, or for a context already done
//     leaves the mark as it was.
//   - Nothing here panics on a token or text of any value, and nothing starts a
//     goroutine.
//
// # Not guaranteed
//
//   - That Advance protects a write. It only arms the fence; the write must show
//     its token again.
//   - Anything about a Gate beyond its process. After a restart its mark is gone, and
//     a second replica has a mark of its own.
//   - Protection from a writer that does not show a token. A fence holds when every
//     way to write goes through it.
//   - That tokens rise. Whoever issues them sees to that; with etcdlock it is etcd's
//     revision, which a restore from a backup can set back.
//   - That a token was rightfully obtained. It is a number, not a secret. Between
//     parties that do not trust each other it needs authentication around it.
//   - That a step is done once. A token orders holders; the same holder that retries
//     shows the same token and is accepted again. Where a retry must not count twice,
//     give each step a key made of lock, token and step, and let the resource refuse a
//     key it has; work that a later holder must not repeat needs a key without the token.
//   - That the lock is still held when a write is accepted, only that the resource has
//     not yet seen a later holder.
//
// # Errors
//
//   - [ErrStale], as [*StaleError]: a later holder has been seen. Stop; a retry with
//     this token cannot succeed.
//   - [ErrNoToken]: what was shown is no token. A fault of the caller, not a lost lock.
//   - The context's own error and its cause: the context was done before the token
//     was shown, or ended while waiting. With a lock's context the cause is the loss.
//   - Anything else comes from the store behind a fence. Whether the token was seen, or
//     the write applied, is then unknown.
package fencing
