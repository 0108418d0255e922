package call

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestErrorClasses(t *testing.T) {
	for _, c := range []struct {
		err                 error
		transient, definite bool
	}{
		{rpctypes.ErrNoLeader, true, false},
		{rpctypes.ErrTimeout, true, false},
		{rpctypes.ErrLeaderChanged, true, false},
		{rpctypes.ErrTooManyRequests, true, true},
		{rpctypes.ErrNoSpace, false, true},
		{rpctypes.ErrPermissionDenied, false, true},
		{rpctypes.ErrLeaseNotFound, false, true},
		{rpctypes.ErrInvalidAuthToken, true, true},
		{rpctypes.ErrUserEmpty, false, true},
		{rpctypes.ErrCorrupt, false, false},
		{context.DeadlineExceeded, true, false},
		{context.Canceled, true, false},
		{status.Error(codes.Unavailable, "connection refused"), true, false},
		{status.Error(codes.DeadlineExceeded, "7 s are over"), true, false},
		{status.Error(codes.Internal, "stream broke"), true, false},
		{status.Error(codes.PermissionDenied, "by a proxy"), false, true},
		{status.Error(codes.Unimplemented, "not etcd"), false, false},
	} {
		if got := Transient(c.err); got != c.transient {
			t.Errorf("Transient(%v) = %v", c.err, got)
		}
		if got := Definite(c.err); got != c.definite {
			t.Errorf("Definite(%v) = %v", c.err, got)
		}
	}
}

func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b Backoff
		for _, middle := range []time.Duration{50, 100, 200, 400, 800, 1000, 1000} {
			middle *= time.Millisecond
			asked := time.Now()
			if !b.Wait(t.Context()) {
				t.Fatal("did not wait")
			}
			if took := time.Since(asked); took < middle/2 || took > middle*3/2 {
				t.Errorf("waited %v, want about %v", took, middle)
			}
		}
		b.Reset()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		asked := time.Now()
		if b.Wait(ctx) || time.Since(asked) != 0 {
			t.Error("waited although its context had ended")
		}
	})
}
