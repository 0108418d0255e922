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
				if r.rescue != nil {
					t.Error("rescue goes on although the main stream works again")
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
		r.Keeper.mu.Lock()
		s := r.Keeper.main
		r.Keeper.mu.Unlock()
		s.restart() // asked again at 10.5 s, answered at 11.5 s
		time.Sleep(1001 * time.Millisecond)
		if left := l.Remaining(); left != 27*time.Second-1001*time.Millisecond {
			t.Errorf("%v left, want 27 s since the second request", left)
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
		for range 5 {
			_, told := r.grant(t, 6*time.Second, 700*time.Millisecond)
			good = append(good, told)
		}
		bad, told := r.grant(t, 6*time.Second, 700*time.Millisecond)
		for range 5 {
			_, told := r.grant(t, 6*time.Second, 700*time.Millisecond)
			good = append(good, told)
		}
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
			if r.Keeper.main != nil || r.pulse != nil || r.rescue != nil {
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
		if err := r.Revoke(t.Context(), id); err != nil || !r.srv.revoked[int64(id)] {
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
		if _, _, err := r.Grant(t.Context(), 5*time.Second, time.Second, nil); err == nil || time.Since(start) != callLimit {
			t.Errorf("grant without a deadline: %v after %v", err, time.Since(start))
		}
		r.Close()
		r.main.set(func(m *member) { m.stuck, m.grantErr = false, nil })
		if _, id, err := r.Grant(t.Context(), 5*time.Second, time.Second, nil); !errors.Is(err, errClosed) || id == 0 {
			t.Errorf("grant after Close: %x %v", id, err)
		}
	})
}
