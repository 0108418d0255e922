package etcdtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
)

const (
	// bindAttempts bounds the retries when another process takes a port between its choice and etcd's bind.
	bindAttempts = 20
	readyTimeout = 20 * time.Second
	// adminTimeout bounds every call a check of this package makes.
	adminTimeout = 10 * time.Second
)

// Server is one etcd member that runs inside the test process.
type Server struct {
	cfg    memberConfig
	client string // host:port of the client listener
	peer   string // host:port of the peer listener
	admin  *clientv3.Client

	mu   sync.Mutex
	etcd *embed.Etcd // nil while closed
}

type memberConfig struct {
	name    string
	dir     string
	initial string // value of --initial-cluster; empty means this member alone
	fsync   bool
	base    string // parent of a fresh data directory; empty means dir is used
	edits   []func(*embed.Config)
}

// Option changes how a server is started.
type Option func(*memberConfig)

// WithFsync makes the server sync its log and its database to disk as production does.
// The data goes to a fresh directory below dir, which has to be on a real disk for the timing to mean anything;
// it is removed when the server is closed. With an empty dir the server's usual directory is used. Default: no fsync.
func WithFsync(dir string) Option {
	return func(c *memberConfig) { c.fsync, c.base = true, dir }
}

// WithEmbedConfig lets edit change etcd's configuration just before every start.
func WithEmbedConfig(edit func(*embed.Config)) Option {
	return func(c *memberConfig) { c.edits = append(c.edits, edit) }
}

// Start runs a single-member etcd until the end of the test.
func Start(tb testing.TB, opts ...Option) *Server {
	tb.Helper()
	s, err := Run(tb.TempDir(), opts...)
	if err != nil {
		tb.Fatalf("etcdtest: %v", err)
	}
	tb.Cleanup(s.Close)
	return s
}

// Run starts a single-member etcd with its data in dir, for callers without a testing.TB. The caller must Close it.
// A dir that already holds a member's data (a copy of a closed server's Dir, say) is continued from there.
func Run(dir string, opts ...Option) (*Server, error) {
	cfg := memberConfig{name: "solo", dir: dir}
	for _, o := range opts {
		o(&cfg)
	}
	if cfg.base != "" {
		d, err := os.MkdirTemp(cfg.base, "etcdtest-")
		if err != nil {
			return nil, fmt.Errorf("data directory: %w", err)
		}
		cfg.dir = d
	}
	s, err := runMember(cfg)
	if err != nil && cfg.base != "" {
		os.RemoveAll(cfg.dir)
	}
	return s, err
}

func runMember(cfg memberConfig) (*Server, error) {
	var err error
	for range bindAttempts {
		var ports []string
		if ports, err = FreeAddrs(2); err != nil {
			return nil, err
		}
		s := &Server{cfg: cfg, client: ports[0], peer: ports[1]}
		if err = s.boot(); errors.Is(err, syscall.EADDRINUSE) {
			continue
		} else if err != nil {
			return nil, err
		}
		if err = s.ready(); err != nil {
			s.Close()
			return nil, err
		}
		return s, nil
	}
	return nil, fmt.Errorf("no free port after %d attempts: %w", bindAttempts, err)
}

// boot starts the server on its addresses without waiting for it to join a cluster.
func (s *Server) boot() error {
	cu := url.URL{Scheme: "http", Host: s.client}
	pu := url.URL{Scheme: "http", Host: s.peer}
	c := embed.NewConfig()
	c.Name, c.Dir = s.cfg.name, s.cfg.dir
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{cu}, []url.URL{cu}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{pu}, []url.URL{pu}
	if c.InitialCluster = s.cfg.initial; c.InitialCluster == "" {
		c.InitialCluster = s.cfg.name + "=" + pu.String()
	}
	c.UnsafeNoFsync = !s.cfg.fsync
	c.EnableGRPCGateway = false // nothing here speaks HTTP/JSON, and the gateway keeps a connection of its own
	c.LogLevel = "panic"
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	for _, edit := range s.cfg.edits {
		edit(c)
	}
	e, err := embed.StartEtcd(c)
	if err != nil {
		return fmt.Errorf("start etcd: %w", err)
	}
	s.mu.Lock()
	s.etcd = e
	s.mu.Unlock()
	return nil
}

// ready waits until the member serves and warms the shared client up, so that its connection is not mistaken for
// something a test left behind.
func (s *Server) ready() error {
	if err := s.elected(); err != nil {
		return err
	}
	if s.admin == nil {
		admin, err := clientv3.New(clientConfig([]string{s.client}))
		if err != nil {
			return fmt.Errorf("shared client: %w", err)
		}
		s.admin = admin
	}
	s.admin.ActiveConnection().ResetConnectBackoff() // it may have been down for long
	ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
	defer cancel()
	if _, err := s.admin.MemberList(ctx); err != nil {
		return fmt.Errorf("first call: %w", err)
	}
	return nil
}

// elected waits until the member serves. A member that is alone is told to stand for election at once: by itself it
// waits a random time of up to a second first, which would be most of the run time of a short test.
func (s *Server) elected() error {
	e := s.running()
	id := uint64(e.Server.MemberID())
	urge := &raftpb.Message{Type: raftpb.MsgTimeoutNow.Enum(), To: &id, From: &id}
	ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-e.Server.ReadyNotify():
			return nil
		case <-e.Server.StopNotify():
			return errors.New("etcd stopped while starting")
		case err := <-e.Err():
			return fmt.Errorf("etcd failed while starting: %w", err)
		case <-ctx.Done():
			return fmt.Errorf("etcd not ready within %v", readyTimeout)
		case <-tick.C:
			// Nor before it has caught up with its log, which raft reads to see whether it may: that part may be
			// compacted.
			if s.cfg.initial != "" || e.Server.AppliedIndex() < e.Server.CommittedIndex() {
				continue
			}
			// Not before the member has applied that it is one; a leader ignores it.
			if err := e.Server.Process(ctx, urge); err != nil {
				return fmt.Errorf("stand for election: %w", err)
			}
		}
	}
}

func (s *Server) running() *embed.Etcd {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.etcd
}

// Endpoint returns the host:port clients connect to. It stays the same over Stop and Restart.
func (s *Server) Endpoint() string { return s.client }

// Dir returns the data directory, which may be copied while the server is stopped.
func (s *Server) Dir() string { return s.cfg.dir }

// Admin returns a client that all callers share, connected straight to the server. It lives until Close, so a watch or
// a kept-alive lease on it outlives the test that made it: use Client for those.
func (s *Server) Admin() *clientv3.Client { return s.admin }

// Stop ends the server and keeps its data and address for Restart. Open streams of clients delay it by up to 7 s.
func (s *Server) Stop() {
	s.mu.Lock()
	e := s.etcd
	s.etcd = nil
	s.mu.Unlock()
	if e != nil {
		e.Close()
	}
}

// Restart starts a stopped server again on the same address and data.
func (s *Server) Restart() error {
	if s.running() != nil {
		return errors.New("etcdtest: restart of a running server")
	}
	var err error
	for deadline := time.Now().Add(readyTimeout); time.Now().Before(deadline); {
		if err = s.boot(); !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
		pause(20 * time.Millisecond)
	}
	if err != nil {
		return err
	}
	return s.ready()
}

// Close stops the server for good, with the shared client. Closing twice is a no-op.
func (s *Server) Close() {
	if s.admin != nil {
		s.admin.Close()
	}
	s.Stop()
	if s.cfg.base != "" {
		os.RemoveAll(s.cfg.dir)
	}
}

// FreeAddrs returns n distinct loopback addresses that were free a moment ago.
func FreeAddrs(n int) ([]string, error) {
	var addrs []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("free port: %w", err)
		}
		defer l.Close() // held until all are chosen, so that they differ
		addrs = append(addrs, l.Addr().String())
	}
	return addrs, nil
}

// pause spaces out polls.
func pause(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	<-t.C
}
