package etcdlock_test

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/revfence/revfence/internal/etcdtest"
	"github.com/revfence/revfence/internal/faultkit"
)

// A callKind is what a call of etcd is for, as far as its request tells.
type callKind string

const (
	grantCall    callKind = "grant"
	revokeCall   callKind = "revoke"
	lookCall     callKind = "look"             // who holds the name?
	queueCall    callKind = "queue"            // the whole queue
	keyCall      callKind = "read key"         // one key: is it still there?
	createCall   callKind = "create"           // queue up
	freeCall     callKind = "create if free"   // TryLock
	placeCall    callKind = "place"            // predecessor and own key
	deleteCall   callKind = "delete"           // guarded by the create revision
	scrubCall    callKind = "scrub"            // guarded by the lease
	touchCall    callKind = "touch"            // Check
	userCall     callKind = "user transaction" // Lock.Txn, and what Once reads and writes
	versionCall  callKind = "version"
	renewKind    callKind = "renewals" // stream
	watchKind    callKind = "watches"  // stream
	unnamedCalls          = "unnamed"
)

// kindOf names a call. A request of a shape that it does not know is "unnamed", and so fails TestFaultTable.
func kindOf(method string, req any) callKind {
	switch r := req.(type) {
	case *pb.LeaseGrantRequest:
		return grantCall
	case *pb.LeaseRevokeRequest:
		return revokeCall
	case *pb.StatusRequest:
		return versionCall
	case *pb.RangeRequest:
		switch {
		case len(r.RangeEnd) == 0:
			return keyCall
		case r.Limit == 1 && r.SortTarget == pb.RangeRequest_CREATE && r.SortOrder == pb.RangeRequest_ASCEND:
			return lookCall
		case r.Limit == 0 && r.SortTarget == pb.RangeRequest_CREATE:
			return queueCall
		}
	case *pb.TxnRequest:
		if k := kindOfTxn(r); k != "" {
			return k
		}
	}
	return callKind(fmt.Sprintf("%s: %s %v", unnamedCalls, method, req))
}

func kindOfTxn(r *pb.TxnRequest) callKind {
	if len(r.Compare) == 0 {
		if len(r.Success) == 2 && r.Success[0].GetRequestRange() != nil && r.Success[1].GetRequestRange() != nil {
			return placeCall
		}
		return ""
	}
	guard, first := r.Compare[0], r.Success[0]
	switch {
	case len(r.Compare) != 1:
	case guard.Target == pb.Compare_LEASE && first.GetRequestDeleteRange() != nil:
		return scrubCall
	case guard.Target != pb.Compare_CREATE:
	case guard.GetCreateRevision() == 0 && first.GetRequestPut() != nil && len(guard.RangeEnd) > 0:
		return freeCall
	case guard.GetCreateRevision() == 0 && first.GetRequestPut() != nil:
		return createCall
	case first.GetRequestDeleteRange() != nil:
		return deleteCall
	case first.GetRequestTxn() != nil:
		return userCall
	case first.GetRequestPut() != nil && first.GetRequestPut().IgnoreLease:
		return touchCall
	}
	return ""
}

// callsOf returns a Match for calls of the given kinds.
func callsOf(kinds ...callKind) faultkit.Match {
	return func(method string, req any) bool {
		k := kindOf(method, req)
		for _, want := range kinds {
			if k == want {
				return true
			}
		}
		return false
	}
}

// A record has the calls of one client by kind, and the leases it asked for.
type record struct {
	mu     sync.Mutex
	calls  map[callKind]int
	leases map[clientv3.LeaseID]bool
}

func newRecord() *record {
	return &record{calls: map[callKind]int{}, leases: map[clientv3.LeaseID]bool{}}
}

func (r *record) note(k callKind) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls[k]++
}

func (r *record) count(k callKind) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls[k]
}

// all returns a copy of the counts.
func (r *record) all() map[callKind]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.calls)
}

// asked reports whether the client has asked for a lease.
func (r *record) asked(id clientv3.LeaseID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.leases[id]
}

func (r *record) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	r.note(kindOf(method, req))
	if g, ok := req.(*pb.LeaseGrantRequest); ok {
		r.mu.Lock()
		r.leases[clientv3.LeaseID(g.ID)] = true
		r.mu.Unlock()
	}
	return invoke(ctx, method, req, reply, cc, opts...)
}

func (r *record) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	r.note(kindOfStream(method))
	return open(ctx, desc, cc, method, opts...)
}

func kindOfStream(method string) callKind {
	switch strings.TrimPrefix(method, "/etcdserverpb.") {
	case etcdtest.KeepAlive:
		return renewKind
	case etcdtest.Watch:
		return watchKind
	}
	return callKind(unnamedCalls + ": " + method)
}
