package etcdlock_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/fencing"
	"github.com/revfence/revfence/internal/etcdtest"
)

type fenceFunc func(ctx context.Context, t fencing.Token) error

func (f fenceFunc) Advance(ctx context.Context, t fencing.Token) error { return f(ctx, t) }

// TestFencesArmedBeforeLockReturns: in the order given, with the lock's token and its name in the context.
func TestFencesArmedBeforeLockReturns(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	l := clientLocker(t, srv)
	type key struct{}
	ctx := context.WithValue(testContext(t), key{}, "value")

	var order []int
	var tokens []fencing.Token
	record := func(i int) fencing.Fence {
		return fenceFunc(func(ctx context.Context, token fencing.Token) error {
			order, tokens = append(order, i), append(tokens, token)
			name, carried, ok := fencing.FromContext(ctx)
			if name != "x" || carried != token || !ok {
				t.Errorf("fence %d: context carries %q, %d, %t", i, name, carried, ok)
			}
			if ctx.Value(key{}) != "value" {
				t.Errorf("fence %d: the caller's values are missing", i)
			}
			return nil
		})
	}
	gate := fencing.NewGate("gate")
	k, err := l.Lock(ctx, "x", etcdlock.WithFences(record(1), record(2)), etcdlock.WithFences(gate, record(3)))
	if err != nil {
		t.Fatal(err)
	}
	defer mustUnlock(t, k)
	if !slices.Equal(order, []int{1, 2, 3}) {
		t.Errorf("fences raised in the order %v", order)
	}
	for _, token := range tokens {
		if token != k.Token() {
			t.Errorf("fence raised to %d by the lock with token %d", token, k.Token())
		}
	}
	if gate.HighWater() != k.Token() {
		t.Errorf("gate raised to %d by the lock with token %d", gate.HighWater(), k.Token())
	}
	// An earlier holder is kept out from the moment Lock returned, before the new one has done anything.
	if err := gate.Advance(ctx, k.Token()-1); !errors.Is(err, fencing.ErrStale) {
		t.Errorf("earlier token: %v", err)
	}
}

// TestFenceFails: Lock returns the fence's error, whatever it looks like, and the lock is free for others at once.
func TestFenceFails(t *testing.T) {
	t.Parallel()
	broken := errors.New("store down")
	for _, c := range []struct {
		what  string
		fence fenceFunc
		want  error
		text  string
	}{
		{"plain", func(context.Context, fencing.Token) error { return broken }, broken, "fence 1"},
		// A fence that speaks gRPC may fail as etcd does; that is no reason to lock again.
		{"status", func(context.Context, fencing.Token) error { return status.Error(codes.Unavailable, "no fence") }, nil, "no fence"},
		{"deadline of its own", func(context.Context, fencing.Token) error { return context.DeadlineExceeded }, context.DeadlineExceeded, "fence 1"},
		{"panic", func(context.Context, fencing.Token) error { panic("boo") }, nil, "boo"},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			srv := startClean(t, soon)
			l, other := clientLocker(t, srv), clientLocker(t, srv)
			calls := 0
			fence := fenceFunc(func(ctx context.Context, token fencing.Token) error {
				calls++
				return c.fence(ctx, token)
			})
			k, err := l.Lock(testContext(t), "x", etcdlock.WithFences(fence))
			if k != nil || err == nil {
				t.Fatalf("got lock %v, error %v", k, err)
			}
			if c.want != nil {
				wantIs(t, "Lock", err, c.want)
			}
			wantText(t, "Lock", err, c.text)
			if errors.Is(err, etcdlock.ErrLost) {
				t.Errorf("%v also says that a lock was lost", err)
			}
			if calls != 1 {
				t.Errorf("the fence was asked %d times", calls)
			}
			// Well before any TTL.
			ctx, cancel := context.WithTimeout(t.Context(), soon)
			defer cancel()
			k, err = other.Lock(ctx, "x")
			if err != nil {
				t.Fatalf("next holder: %v", err)
			}
			mustUnlock(t, k)
		})
	}
}

// TestFenceHangs: a fence that does not answer, and does not heed its context, keeps neither the caller nor the name.
func TestFenceHangs(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	l, other := clientLocker(t, srv), clientLocker(t, srv)
	stalls := etcdtest.Stalls(t)
	var hung sync.WaitGroup
	let := make(chan struct{})
	defer hung.Wait()
	defer close(let)
	hang := fenceFunc(func(context.Context, fencing.Token) error {
		hung.Add(1)
		defer hung.Done()
		<-let
		return nil
	})

	const timeout = 300 * time.Millisecond
	from := time.Now()
	_, err := l.Lock(testContext(t), "x", etcdlock.WithFences(hang), etcdlock.WithFenceTimeout(timeout))
	to := time.Now()
	wantIs(t, "Lock", err, context.DeadlineExceeded)
	wantText(t, "Lock", err, "fence 1")
	if took := to.Sub(from); took < timeout {
		t.Errorf("the fence was given %v, not %v", took, timeout)
	}
	stalls.Judge(t, "Lock with a fence that hangs", []etcdtest.Sample{{From: from, To: to, Value: to.Sub(from) - timeout}}, 1, time.Second)
	k := mustLock(t, other, "x")
	mustUnlock(t, k)

	// The caller's own end comes first, if it does.
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	_, err = l.Lock(ctx, "x", etcdlock.WithFences(hang))
	wantIs(t, "Lock under a short context", err, context.DeadlineExceeded)
	mustUnlock(t, mustLock(t, other, "x"))
}

// TestFenceTimeoutDefault: without WithFenceTimeout a fence is given a third of the TTL.
func TestFenceTimeoutDefault(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	l := clientLocker(t, srv, etcdlock.WithTTL(9*time.Second))
	var given time.Duration
	look := fenceFunc(func(ctx context.Context, _ fencing.Token) error {
		if deadline, ok := ctx.Deadline(); ok {
			given = time.Until(deadline)
		}
		return nil
	})
	mustUnlock(t, mustLock(t, l, "x", etcdlock.WithFences(look)))
	if given <= 2*time.Second || given > 3*time.Second {
		t.Errorf("a fence was given %v at a TTL of 9 s", given)
	}
}

// TestFenceStale: a fence that has seen a token that etcd may have handed out means that the lock was lost already.
func TestFenceStale(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	l := clientLocker(t, srv)
	var shown fencing.Token
	stale := fenceFunc(func(_ context.Context, token fencing.Token) error {
		shown = token
		put(t, srv, "later", "") // etcd's revision is beyond the token, as after a later grant
		return &fencing.StaleError{Resource: "res", Token: token, HighWater: token + 1}
	})
	_, err := l.Lock(testContext(t), "x", etcdlock.WithFences(stale))
	wantIs(t, "Lock", err, etcdlock.ErrLost, fencing.ErrStale)
	var lost *etcdlock.LostError
	if !errors.As(err, &lost) || lost.Reason != etcdlock.ReasonStale || lost.Token != shown || lost.Name != "x" {
		t.Errorf("Lock: %#v, want a *LostError with ReasonStale and token %d", err, shown)
	}
	if errors.Is(err, etcdlock.ErrRevisionRegressed) {
		t.Errorf("%v also says that revisions went backwards", err)
	}
	remove(t, srv, "later")
	mustUnlock(t, mustLock(t, l, "x"))
}

// TestFenceAheadOfEtcd: a mark that etcd has not reached says that etcd was set back, and what to do about it.
func TestFenceAheadOfEtcd(t *testing.T) {
	t.Parallel()
	srv := startClean(t, soon)
	l := clientLocker(t, srv)
	gate := fencing.NewGate("ledger")
	if err := gate.Advance(t.Context(), 1_000_000); err != nil {
		t.Fatal(err)
	}
	_, err := l.Lock(testContext(t), "x", etcdlock.WithFences(gate))
	wantIs(t, "Lock", err, etcdlock.ErrRevisionRegressed, fencing.ErrStale)
	if errors.Is(err, etcdlock.ErrLost) {
		t.Errorf("%v also says that a lock was lost", err)
	}
	wantText(t, "Lock", err, "etcdutl snapshot restore --bump-revision")
	wantText(t, "Lock", err, `"ledger"`)
	if gate.HighWater() != 1_000_000 {
		t.Errorf("gate at %d", gate.HighWater())
	}
	mustUnlock(t, mustLock(t, l, "x"))
}
