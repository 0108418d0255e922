package fencing

import "context"

// hold is one lock that a context carries, and a link to those around it.
type hold struct {
	ctx   context.Context // as given to NewContext; the hold is live until it is done
	lock  string
	token Token
	outer *hold
}

type holdKey struct{}

func (h *hold) live() bool { return h.ctx.Err() == nil }

// NewContext returns a context that carries token t of the named lock, for code
// further down to show to its fence. The hold counts as live until ctx, the very
// context given here, is done; contexts derived from the result may end sooner
// without changing that. Holds that ctx already carries stay: they nest.
//
// With an invalid t, such as [None], the result carries no hold at all, neither
// a new one nor those of ctx.
//
// Locks from etcdlock do this for their own contexts. Call it where a token
// arrives by other means, such as in a request.
func NewContext(ctx context.Context, lock string, t Token) context.Context {
	if !t.Valid() {
		return context.WithValue(ctx, holdKey{}, (*hold)(nil))
	}
	outer, _ := ctx.Value(holdKey{}).(*hold)
	return context.WithValue(ctx, holdKey{}, &hold{ctx: ctx, lock: lock, token: t, outer: outer})
}

// FromContext returns the lock and the token that ctx carries.
//
//   - One live hold: that one. The same lock with the same token counts once,
//     however often it is carried.
//   - Several live holds: not ok. Which token belongs to the write at hand is a
//     thing only the caller knows, and the wrong one could shut out another
//     resource's holder; take the token from the lock itself.
//   - Holds of one lock, none live: the innermost, and ok. Refusing its write is
//     the task of the fence, which needs to see the stale token for that.
//   - Holds of several locks, none live: not ok, as if they were. A lock that is
//     being shut down may still be held.
//   - Nothing carried: not ok.
//
// When ok is false, lock is empty and t is [None]. That ok is true is no promise
// that the lock is still held.
func FromContext(ctx context.Context) (lock string, t Token, ok bool) {
	innermost, _ := ctx.Value(holdKey{}).(*hold)
	if innermost == nil {
		return "", None, false
	}
	var found *hold
	oneLock := true
	for h := innermost; h != nil; h = h.outer {
		oneLock = oneLock && h.lock == innermost.lock
		switch {
		case !h.live():
		case found == nil:
			found = h
		case h.lock != found.lock || h.token != found.token:
			return "", None, false
		}
	}
	if found == nil {
		if !oneLock {
			return "", None, false
		}
		found = innermost
	}
	return found.lock, found.token, true
}
