package lease

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// server is an etcd's lease half in a synctest bubble: leases that expire on
// the bubble's clock. It is a seam for model tests; the same is tested on real
// etcd in package etcdlock.
type server struct {
	pb.LeaseClient

	mu       sync.Mutex
	leases   map[int64]*served
	denied   map[int64]bool
	requests map[int64]int
	revoked  map[int64]bool
	opened   int
}

type served struct {
	ttl     time.Duration
	expires time.Time
}

func newServer() *server {
	return &server{leases: map[int64]*served{}, denied: map[int64]bool{}, requests: map[int64]int{}, revoked: map[int64]bool{}}
}

func (s *server) expires(id int64) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leases[id].expires
}

func (s *server) sent(id int64) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests[id]
}

func (s *server) deny(id int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.denied[id] = true
}

func (s *server) delete(id int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.leases, id)
}

// renew is what the server does on a request.
func (s *server) renew(id int64) (*pb.LeaseKeepAliveResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests[id]++
	if s.denied[id] {
		return nil, status.Error(codes.PermissionDenied, rpctypes.ErrorDesc(rpctypes.ErrGRPCPermissionDenied))
	}
	l := s.leases[id]
	if l == nil || time.Now().After(l.expires) {
		return &pb.LeaseKeepAliveResponse{ID: id, TTL: 0}, nil
	}
	l.expires = time.Now().Add(l.ttl)
	return &pb.LeaseKeepAliveResponse{ID: id, TTL: int64(l.ttl / time.Second)}, nil
}

// member is one way to the server, with delays and faults of its own.
type member struct {
	*server
	mu       sync.Mutex
	there    time.Duration // request under way
	back     time.Duration // answer under way
	stuck    bool          // nothing gets through, and nothing fails
	openErr  error
	grantErr error
	cuts     []context.CancelFunc // of the open streams
}

// cut breaks the open streams.
func (m *member) cut() {
	m.set(func(m *member) {
		for _, c := range m.cuts {
			c()
		}
		m.cuts = nil
	})
}

func (m *member) set(f func(m *member)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f(m)
}

func (m *member) get() (there, back time.Duration, stuck bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.there, m.back, m.stuck
}

func (m *member) Close() error { return nil }

var _ io.Closer = (*member)(nil)

func (m *member) LeaseGrant(ctx context.Context, in *pb.LeaseGrantRequest, _ ...grpc.CallOption) (*pb.LeaseGrantResponse, error) {
	there, back, stuck := m.get()
	if stuck {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	time.Sleep(there)
	m.server.mu.Lock()
	ttl := time.Duration(in.TTL) * time.Second
	m.leases[in.ID] = &served{ttl, time.Now().Add(ttl)}
	m.server.mu.Unlock()
	time.Sleep(back)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.grantErr != nil {
		return nil, m.grantErr
	}
	return &pb.LeaseGrantResponse{ID: in.ID, TTL: in.TTL}, nil
}

func (m *member) LeaseRevoke(_ context.Context, in *pb.LeaseRevokeRequest, _ ...grpc.CallOption) (*pb.LeaseRevokeResponse, error) {
	m.server.mu.Lock()
	defer m.server.mu.Unlock()
	m.revoked[in.ID] = true
	delete(m.leases, in.ID)
	return &pb.LeaseRevokeResponse{}, nil
}

func (m *member) LeaseKeepAlive(ctx context.Context, _ ...grpc.CallOption) (grpc.BidiStreamingClient[pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse], error) {
	m.mu.Lock()
	err := m.openErr
	m.mu.Unlock()
	if err != nil {
		return nil, err
	}
	m.server.mu.Lock()
	m.opened++
	m.server.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	m.set(func(m *member) { m.cuts = append(m.cuts, cancel) })
	st := &fakeStream{m: m, ctx: ctx, out: make(chan reply, 1000)}
	st.in = make(chan arriving, 1000)
	go st.serve()
	return st, nil
}

type arriving struct {
	id int64
	at time.Time
}

type reply struct {
	resp *pb.LeaseKeepAliveResponse
	err  error
	at   time.Time
}

// fakeStream answers in order, as etcd does.
type fakeStream struct {
	m   *member
	ctx context.Context
	in  chan arriving
	out chan reply
}

func (f *fakeStream) serve() {
	for {
		select {
		case a := <-f.in:
			_, back, stuck := f.m.get()
			if stuck {
				<-f.ctx.Done()
				return
			}
			if !f.sleep(time.Until(a.at)) {
				return
			}
			resp, err := f.m.renew(a.id)
			f.out <- reply{resp, err, time.Now().Add(back)}
			if err != nil {
				return
			}
		case <-f.ctx.Done():
			return
		}
	}
}

func (f *fakeStream) sleep(d time.Duration) bool {
	if d <= 0 {
		return f.ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-f.ctx.Done():
		return false
	}
}

func (f *fakeStream) Send(r *pb.LeaseKeepAliveRequest) error {
	there, _, _ := f.m.get()
	select {
	case f.in <- arriving{r.ID, time.Now().Add(there)}:
		return nil
	case <-f.ctx.Done():
		return io.EOF
	}
}

func (f *fakeStream) Recv() (*pb.LeaseKeepAliveResponse, error) {
	select {
	case r := <-f.out:
		if !f.sleep(time.Until(r.at)) {
			return nil, f.ctx.Err()
		}
		return r.resp, r.err
	case <-f.ctx.Done():
		return nil, status.FromContextError(f.ctx.Err()).Err()
	}
}

func (f *fakeStream) Header() (metadata.MD, error) { return nil, nil }
func (f *fakeStream) Trailer() metadata.MD         { return nil }
func (f *fakeStream) CloseSend() error             { return nil }
func (f *fakeStream) Context() context.Context     { return f.ctx }
func (f *fakeStream) SendMsg(any) error            { return errors.ErrUnsupported }
func (f *fakeStream) RecvMsg(any) error            { return errors.ErrUnsupported }
