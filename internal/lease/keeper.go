package lease

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/revfence/revfence/internal/call"
	"github.com/revfence/revfence/internal/clock"
)

// Config is what a Keeper works with.
type Config struct {
	Remote pb.LeaseClient // the user's connection
	// Endpoints and Dial reach single members when the connection is stuck.
	Endpoints func() []string
	Dial      func(endpoint string) (pb.LeaseClient, io.Closer, error)
	// StaticToken says that the client cannot fetch a new auth token, so that
	// an invalid one is the end.
	StaticToken bool
	// Broken, unless nil, is called when a stream has broken: the etcd that
	// answers on the next one may have been restored from a backup.
	Broken func()

	Clock  clock.Source
	Logger *zap.Logger
}

// A Keeper renews leases. It runs nothing while it has none.
type Keeper struct {
	Config

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	leases   map[int64]*Lease
	granting map[clientv3.LeaseID]*granting // under way, or failed and not yet revoked
	rounds   []*round                       // of streams, oldest first; several only while renewals go unanswered
	pulse    *time.Timer
	beaten   clock.Reading
}

// NewKeeper returns a Keeper with no lease.
func NewKeeper(c Config) *Keeper {
	k := &Keeper{Config: c, leases: make(map[int64]*Lease), granting: make(map[clientv3.LeaseID]*granting)}
	k.ctx, k.cancel = context.WithCancel(context.Background())
	return k
}

var errClosed = errors.New("lease: keeper closed")

// Grant asks for a lease and renews it from then on. The id is chosen here, so
// that after an error id says which one may exist all the same, and is to be
// revoked: 0 if none. margin is for ttl, and grows with it if etcd grants more.
// onEnd is called once, when the lease has ended without Stop.
func (k *Keeper) Grant(ctx context.Context, ttl, margin time.Duration, onEnd func(End, error)) (l *Lease, id clientv3.LeaseID, err error) {
	sent := k.Clock.Now()
	granted, id, err := k.GrantFixed(ctx, ttl)
	if err != nil {
		return nil, id, err
	}
	if granted <= margin {
		return nil, id, fmt.Errorf("lease: asked for %v, granted %v", ttl, granted)
	}
	l = &Lease{
		keeper: k, id: int64(id), want: ttl, margin: margin, onEnd: onEnd,
		done: make(chan struct{}), closed: make(chan *clientv3.LeaseKeepAliveResponse),
		ttl: granted, sent: sent, asked: sent,
	}
	if !k.add(l) {
		return nil, id, errClosed
	}
	l.tick()
	return l, id, nil
}

// GrantFixed asks for a lease that is not renewed, and ends by itself after the
// time that etcd granted. The id is as for Grant.
func (k *Keeper) GrantFixed(ctx context.Context, ttl time.Duration) (granted time.Duration, id clientv3.LeaseID, err error) {
	var resp *pb.LeaseGrantResponse
	for range maxIDs {
		req := &pb.LeaseGrantRequest{ID: rand.Int64N(1<<63-1) + 1, TTL: int64(ttl / time.Second)}
		id = clientv3.LeaseID(req.ID)
		var repeated bool
		resp, repeated, err = k.grant(ctx, req)
		if !repeated && call.Definite(err) {
			id = 0
		}
		if rpctypes.Error(err) != rpctypes.ErrLeaseExist {
			break
		}
		if repeated {
			// The first copy is ours, granted after the call began.
			resp, err = &pb.LeaseGrantResponse{ID: req.ID, TTL: req.TTL}, nil
			k.mu.Lock()
			delete(k.granting, id)
			k.mu.Unlock()
			break
		}
		// Somebody else's, who would hold the same key: to be left alone.
	}
	if err == nil && resp.Error != "" {
		err = fmt.Errorf("lease: not granted: %s", resp.Error)
	}
	if err != nil {
		return 0, id, err
	}
	return time.Duration(resp.TTL) * time.Second, id, nil
}

// A granting is a call for a lease.
type granting struct {
	answered chan struct{} // closed when it was, in whatever way
	unsure   bool          // then: a copy of it may still be under way
}

// maxIDs bounds the ids tried for one lease. Already the second is improbable.
const maxIDs = 3

// grant makes the call, which goes on when ctx has ended: a revoke that overtook
// it on the way would find nothing to revoke, and leave the lease for a TTL.
//
// clientv3 sends a grant again whose reply was lost. repeated says that it has,
// so that the lease may have been granted before the copy that was answered.
func (k *Keeper) grant(ctx context.Context, req *pb.LeaseGrantRequest) (resp *pb.LeaseGrantResponse, repeated bool, err error) {
	id, g := clientv3.LeaseID(req.ID), &granting{answered: make(chan struct{})}
	var tries call.Tries
	var out *pb.LeaseGrantResponse
	var failed error
	k.mu.Lock()
	if k.closed {
		k.mu.Unlock()
		return nil, false, errClosed
	}
	k.granting[id] = g
	k.wg.Go(func() {
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), call.Limit)
		defer cancel()
		defer context.AfterFunc(k.ctx, cancel)()
		out, failed = k.Remote.LeaseGrant(limited, req, tries.Option())
		failed = tries.Explain(clientv3.ContextError(limited, failed))
		g.unsure = tries.Unsure() || failed != nil && !call.Definite(failed)
		close(g.answered)
	})
	k.mu.Unlock()
	select {
	case <-g.answered:
		if failed == nil || call.Definite(failed) && !tries.Unsure() { // else whoever asked revokes it
			k.mu.Lock()
			delete(k.granting, id)
			k.mu.Unlock()
		}
		return out, tries.Unsure(), failed
	case <-ctx.Done():
		return nil, true, tries.Explain(ctx.Err())
	}
}

// Revoke revokes a lease, also one that is not known here. late, the first time,
// says that its grant failed in such a way that it may be granted after all, or
// again, when it was revoked already.
func (k *Keeper) Revoke(ctx context.Context, id clientv3.LeaseID) (late bool, err error) {
	k.mu.Lock()
	g := k.granting[id]
	k.mu.Unlock()
	if g != nil {
		<-g.answered // within call.Limit
		k.mu.Lock()
		delete(k.granting, id)
		k.mu.Unlock()
		late = g.unsure
	}
	ctx, cancel := context.WithTimeout(ctx, call.Limit)
	defer cancel()
	_, err = k.Remote.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: int64(id)})
	if rpctypes.Error(err) == rpctypes.ErrLeaseNotFound {
		return late, nil
	}
	return late, clientv3.ContextError(ctx, err)
}

func (k *Keeper) add(l *Lease) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return false
	}
	k.leases[l.id] = l
	l.timer = time.AfterFunc(time.Hour, l.tick) // tick arms it
	if k.pulse == nil {
		k.beaten = k.Clock.Now()
		k.pulse = time.AfterFunc(pulseEvery, k.beat)
	}
	return true
}

// drop forgets an ended lease; with the last one everything stops.
func (k *Keeper) drop(l *Lease) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.leases, l.id)
	if len(k.leases) == 0 {
		k.haltLocked()
	}
}

func (k *Keeper) haltLocked() {
	if k.pulse != nil {
		k.pulse.Stop()
		k.pulse = nil
	}
	for len(k.rounds) > 0 {
		k.closeLocked(0)
	}
}

// pulseEvery is how often the clocks are compared with Go's timers.
const pulseEvery = time.Second

// beat makes up for what timers do not see: they stand still during a suspend
// and follow a slewed clock.
func (k *Keeper) beat() {
	now := k.Clock.Now()
	k.mu.Lock()
	if k.pulse == nil {
		k.mu.Unlock()
		return
	}
	k.pulse.Reset(pulseEvery)
	var late []*Lease
	if now.Missed(k.beaten) > 10*time.Millisecond {
		late = k.allLocked()
	}
	k.beaten = now
	k.mu.Unlock()
	for _, l := range late {
		l.tick()
	}
}

// ask hands a due renewal to every stream.
func (k *Keeper) ask(l *Lease) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed || k.leases[l.id] != l {
		return
	}
	if len(k.rounds) == 0 {
		k.openLocked(nil)
	}
	for _, r := range k.rounds {
		r.main.enqueue(l)
		for _, s := range r.others {
			s.enqueue(l)
		}
	}
}

// unanswered lists the leases whose renewal is due.
func (k *Keeper) unanswered() []*Lease {
	k.mu.Lock()
	all := k.allLocked()
	k.mu.Unlock()
	return slices.DeleteFunc(all, func(l *Lease) bool { return !l.unanswered() })
}

func (k *Keeper) allLocked() []*Lease { return slices.Collect(maps.Values(k.leases)) }

// refused sorts an error that ended a stream. asked is the lease whose request
// the server was working on, nil if none.
func (k *Keeper) refused(asked *Lease, err error) {
	switch err := rpctypes.Error(err); err {
	case rpctypes.ErrPermissionDenied:
		// The server answers in order: the first request without an answer is
		// the one it refused.
		if asked != nil {
			asked.end(Denied, err)
		}
	case rpctypes.ErrInvalidAuthToken, rpctypes.ErrAuthOldRevision:
		if k.StaticToken {
			k.mu.Lock()
			all := k.allLocked()
			k.mu.Unlock()
			for _, l := range all {
				l.end(Unauthenticated, err)
			}
		}
	default:
		if k.Broken != nil {
			k.Broken()
		}
	}
}

// say logs beside what it is about: renewals do not wait for a logger. Not to be
// called once Close may have returned.
func (k *Keeper) say(level func(string, ...zap.Field), what string, fields ...zap.Field) {
	k.wg.Go(func() { level(what, fields...) })
}

// Close ends every lease without telling its owner, and waits until nothing
// of the Keeper runs any more.
func (k *Keeper) Close() {
	k.mu.Lock()
	k.closed = true
	all := k.allLocked()
	k.haltLocked()
	k.mu.Unlock()
	for _, l := range all {
		l.Stop()
	}
	k.cancel()
	k.wg.Wait()
}

// View returns base with KeepAlive answered by the Keeper, for
// concurrency.Session to run on.
func (k *Keeper) View(base clientv3.Lease) clientv3.Lease { return view{base, k} }

type view struct {
	clientv3.Lease
	k *Keeper
}

// KeepAlive returns a channel that is closed when the lease has ended. Nothing
// is sent on it: Session throws the answers away.
func (v view) KeepAlive(_ context.Context, id clientv3.LeaseID) (<-chan *clientv3.LeaseKeepAliveResponse, error) {
	v.k.mu.Lock()
	defer v.k.mu.Unlock()
	l := v.k.leases[int64(id)]
	if l == nil {
		return nil, rpctypes.ErrLeaseNotFound
	}
	return l.closed, nil
}
