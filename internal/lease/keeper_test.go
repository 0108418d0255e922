package lease

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/revfence/revfence/internal/call"
)

func TestWatchdogRenewsThroughAnotherMember(t *testing.T) {
	for _, ttl := range []time.Duration{2 * time.Second, 5 * time.Second, 15 * time.Second, 30 * time.Second} {
		t.Run(fmt.Sprint(ttl), func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rig) {
				r.other["stuck"] = &member{server: r.srv, stuck: true}
				r.other["healthy"] = &member{server: r.srv, there: 5 * time.Millisecond}
				var all []chan ended
				for range 20 {
					_, told := r.grant(t, ttl, ttl/10+100*time.Millisecond)
					all = append(all, told)
				}
				r.main.set(func(m *member) { m.stuck = true })
				time.Sleep(10 * ttl)
				for _, told := range all {
					none(t, told)
				}
				dials := r.dials
				if dials == 0 {
					t.Error("kept without dialling anybody")
				}
				// The stream that hung stays so: only a new one works.
				r.main.set(func(m *member) { m.stuck = false })
				r.other["healthy"].set(func(m *member) { m.stuck = true })
				time.Sleep(2 * ttl)
				for _, told := range all {
					none(t, told)
				}
				r.Keeper.mu.Lock()
				if len(r.rounds) != 1 || len(r.rounds[0].others) > 0 {
					t.Error("other streams are open although the main one works again")
				}
				r.Keeper.mu.Unlock()
				dials = r.dials
				time.Sleep(5 * ttl)
				if r.dials != dials {
					t.Errorf("%d dials after the main stream worked again", r.dials-dials)
				}
			})
		})
	}
}

func TestBrokenStreamIsReopened(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		_, told := r.grant(t, 6*time.Second, 700*time.Millisecond)
		r.main.set(func(m *member) { m.openErr = status.Error(codes.Unavailable, "down") })
		time.Sleep(4 * time.Second) // the renewal was due at 2 s, the deadline is at 5.3 s
		r.main.set(func(m *member) { m.openErr = nil })
		time.Sleep(time.Minute)
		none(t, told)
	})
}

// TestAnswersArePairedPerStream: what was asked on a stream that broke is not
// paired with the answers of the next.
func TestAnswersArePairedPerStream(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.main.set(func(m *member) { m.there = time.Second })
		l, told := r.grant(t, 30*time.Second, 3*time.Second) // sent at 0
		time.Sleep(9*time.Second + 500*time.Millisecond)     // asked at 10 s, under way
		r.main.cut()                                         // asked again within reopenWait and a half, answered a second later
		cut := time.Now()
		before := l.Remaining()
		for l.Remaining() <= before {
			time.Sleep(time.Millisecond)
		}
		if took, left := time.Since(cut), l.Remaining(); left < 26*time.Second-time.Millisecond || took < time.Second+reopenWait/2 {
			t.Errorf("renewed after %v, %v left: want 26 s, a second after the request on the new stream", took, left)
		}
		none(t, told)
	})
}

func TestOutOfOrderAnswerBreaksTheStream(t *testing.T) {
	s := &stream{k: &Keeper{}, queued: map[*Lease]bool{}}
	a, b := &Lease{id: 1}, &Lease{id: 2}
	s.pending = []request{{lease: a}, {lease: b}}
	if err := s.answer(&pb.LeaseKeepAliveResponse{ID: 2, TTL: 5}); !errors.Is(err, errOutOfOrder) {
		t.Errorf("answer out of order: %v", err)
	}
	if got := s.forget(); got != a {
		t.Errorf("oldest unanswered lease: %v", got)
	}
	if err := s.answer(&pb.LeaseKeepAliveResponse{ID: 1, TTL: 5}); !errors.Is(err, errOutOfOrder) {
		t.Errorf("answer nobody asked for: %v", err)
	}
}

func TestDeniedLeaseDoesNotTakeOthersAlong(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		var good []chan ended
		grant := func() *Lease { // due a millisecond after the one before
			time.Sleep(time.Millisecond)
			l, told := r.grant(t, 6*time.Second, 700*time.Millisecond)
			good = append(good, told)
			return l
		}
		for range 5 {
			grant()
		}
		bad := grant()
		told := good[5]
		good = good[:5]
		for range 5 {
			grant() // under way behind the one that is refused
		}
		r.main.set(func(m *member) { m.there = 20 * time.Millisecond })
		r.srv.deny(bad.id)
		time.Sleep(2500 * time.Millisecond)
		if e := <-told; e.why != Denied || rpctypes.Error(e.err) != rpctypes.ErrPermissionDenied {
			t.Errorf("told %v %v", e.why, e.err)
		}
		time.Sleep(time.Minute)
		for _, g := range good {
			none(t, g)
		}
	})
}

func TestInvalidTokenIsFinalOnlyIfStatic(t *testing.T) {
	invalid := status.Error(codes.Unauthenticated, rpctypes.ErrorDesc(rpctypes.ErrGRPCInvalidAuthToken))
	for _, static := range []bool{false, true} {
		bubble(t, func(t *testing.T, r *rig) {
			r.StaticToken = static
			_, told := r.grant(t, 30*time.Second, 3*time.Second)
			r.main.set(func(m *member) { m.openErr = invalid })
			time.Sleep(12 * time.Second)
			if !static {
				none(t, told)
				r.main.set(func(m *member) { m.openErr = nil })
				time.Sleep(time.Minute)
				none(t, told)
				return
			}
			select {
			case e := <-told:
				if e.why != Unauthenticated {
					t.Errorf("told %v", e.why)
				}
			default:
				t.Error("not told")
			}
		})
	}
}

// TestNothingRunsWithoutLeases: the stream and the pulse end with the last
// lease, and come back with the next.
func TestNothingRunsWithoutLeases(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		for range 3 {
			l, told := r.grant(t, 3*time.Second, 400*time.Millisecond)
			time.Sleep(10 * time.Second)
			none(t, told)
			l.Stop()
			synctest.Wait()
			r.Keeper.mu.Lock()
			if len(r.rounds) > 0 || r.pulse != nil {
				t.Error("something still runs without a lease")
			}
			r.Keeper.mu.Unlock()
		}
	})
}

func TestGrantErrors(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.main.set(func(m *member) { m.grantErr = status.Error(codes.Unavailable, "lost reply") })
		_, id, err := r.Grant(t.Context(), 5*time.Second, time.Second, nil)
		if err == nil || id == 0 || r.srv.leases[int64(id)] == nil {
			t.Fatalf("id %x, err %v: want the id of the lease that may exist", id, err)
		}
		if _, err := r.Revoke(t.Context(), id); err != nil || !r.srv.revoked[int64(id)] {
			t.Errorf("revoke: %v", err)
		}
		r.main.set(func(m *member) { m.stuck = true })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		if _, _, err := r.Grant(ctx, 5*time.Second, time.Second, nil); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("grant on a stuck server: %v after %v", err, time.Since(start))
		}
		start = time.Now()
		if _, _, err := r.Grant(t.Context(), 5*time.Second, time.Second, nil); err == nil || time.Since(start) != call.Limit {
			t.Errorf("grant without a deadline: %v after %v", err, time.Since(start))
		}
		r.Close()
		r.main.set(func(m *member) { m.stuck, m.grantErr = false, nil })
		if _, id, err := r.Grant(t.Context(), 5*time.Second, time.Second, nil); !errors.Is(err, errClosed) || id == 0 {
			t.Errorf("grant after Close: %x %v", id, err)
		}
	})
}

// TestSlowLinkIsNotCutOff: what may still answer is left alone, however often
// the watchdog barks.
func TestSlowLinkIsNotCutOff(t *testing.T) {
	for _, ttl := range []time.Duration{2 * time.Second, 6 * time.Second, 30 * time.Second} {
		for _, part := range []float64{0.1, 0.2, 0.3, 0.4, 0.5} {
			t.Run(fmt.Sprintf("TTL %v, trip %v of it", ttl, part), func(t *testing.T) {
				bubble(t, func(t *testing.T, r *rig) {
					r.other["stuck"] = &member{server: r.srv, stuck: true}
					var all []chan ended
					for range 5 {
						l, told := r.grant(t, ttl, ttl/10+100*time.Millisecond)
						all = append(all, told)
						if part*float64(ttl)+float64(l.dueAfter()) >= float64(l.window()) {
							return // no answer can come in time
						}
						time.Sleep(ttl / 20)
					}
					trip := time.Duration(part * float64(ttl))
					r.main.set(func(m *member) { m.there, m.back = trip/3, trip-trip/3 })
					time.Sleep(10 * ttl)
					for _, told := range all {
						none(t, told)
					}
					r.Keeper.mu.Lock()
					if len(r.rounds) > maxRounds {
						t.Errorf("%d rounds", len(r.rounds))
					}
					r.Keeper.mu.Unlock()
				})
			})
		}
	}
}

// TestLargeMargin: with the largest margin there is still time for a renewal,
// for the watchdog, and for starting on the lease.
func TestLargeMargin(t *testing.T) {
	for _, ttl := range []time.Duration{2 * time.Second, 6 * time.Second, 30 * time.Second, time.Hour} {
		for _, margin := range []time.Duration{10 * time.Millisecond, ttl/10 + 100*time.Millisecond, ttl / 3, ttl / 2} {
			l := &Lease{ttl: ttl, want: ttl, margin: margin, trip: ttl}
			least := l.window() - l.dueAfter() // left when the renewal is sent
			if l.dogAfter() <= l.dueAfter() || l.dogAfter() > l.window()-(l.window()-l.dueAfter())/3 {
				t.Errorf("TTL %v margin %v: watchdog at %v, due %v, deadline %v", ttl, margin, l.dogAfter(), l.dueAfter(), l.window())
			}
			if e := l.Enough(); e <= 0 || e > least*3/4 {
				t.Errorf("TTL %v margin %v: enough is %v, but only %v is left at a renewal", ttl, margin, e, least)
			}
		}
	}
}
