package etcdlock

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/revfence/revfence/fencing"
	"github.com/revfence/revfence/internal/clock"
	"github.com/revfence/revfence/internal/keyspace"
)

const (
	defaultTTL    = 30 * time.Second
	defaultPrefix = "/revfence/"

	minTTL        = 2 * time.Second // etcd raises a shorter one to this, with its default election timeout
	maxTTL        = 24 * time.Hour
	maxNameLen    = 1024
	maxPrefixLen  = 1024
	maxIdentity   = 256
	maxSharedLock = 100_000
)

// An Option configures New.
type Option interface{ apply(*config) error }

type optionFunc func(*config) error

func (f optionFunc) apply(c *config) error { return f(c) }

type config struct {
	ttl      time.Duration
	prefix   string
	log      *zap.Logger
	margin   time.Duration
	marginOK bool
	identity string
	observer Observer
	share    int
	clock    clock.Source // tests replace it
}

func newConfig(opts []Option) (config, error) {
	c := config{ttl: defaultTTL, prefix: defaultPrefix, log: zap.NewNop(), share: 1, clock: clock.System{}}
	for _, o := range opts {
		if o == nil {
			return c, errors.New("etcdlock: nil Option")
		}
		if err := o.apply(&c); err != nil {
			return c, err
		}
	}
	if !c.marginOK {
		c.margin = c.ttl/10 + 100*time.Millisecond
	}
	if c.margin > c.ttl/2 {
		return c, fmt.Errorf("etcdlock: safety margin %v leaves no time between renewals at a TTL of %v: at most half of the TTL, %v, is allowed", c.margin, c.ttl, c.ttl/2)
	}
	if c.identity == "" {
		c.identity = defaultIdentity()
	}
	return c, nil
}

// defaultIdentity is host/pid/random: enough to find the process, and to tell
// it from an earlier one with the same pid.
func defaultIdentity() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	id := fmt.Sprintf("/%d/%s", os.Getpid(), rand.Text()[:8])
	return host[:min(len(host), maxIdentity-len(id))] + id
}

// WithTTL sets for how long a holder that crashed can keep others out: the TTL
// of its lease. The default is 30 s. It is rounded up to whole seconds, as etcd
// counts; below 2 s or above 24 h is an error. etcd may grant more, and what it
// granted is what counts.
//
// A TTL below about 15 s may not survive an etcd leader that is stuck and comes
// back: see docs/operations.md.
func WithTTL(d time.Duration) Option {
	return optionFunc(func(c *config) error {
		if d < minTTL || d > maxTTL {
			return fmt.Errorf("etcdlock: TTL %v: must be between %v and %v", d, minTTL, maxTTL)
		}
		c.ttl = (d + time.Second - 1).Truncate(time.Second)
		return nil
	})
}

// WithPrefix sets what every lock's key starts with, "/revfence/" by default.
// The key is prefix, escaped name, "/" and lease id: to share a lock with
// etcdctl or a concurrency.Mutex at "/a/b/nightly", use the prefix "/a/b/" and
// the name "nightly". Nothing is put between prefix and name, so end it in "/";
// New warns its log of one that does not. At most 1024 bytes, without "%done/", below which Once keeps its marks. A prefix
// must not lie below a lock of another prefix; such keys are reported as
// ErrForeignKey.
func WithPrefix(prefix string) Option {
	return optionFunc(func(c *config) error {
		if len(prefix) > maxPrefixLen {
			return fmt.Errorf("etcdlock: prefix of %d bytes: at most %d are allowed", len(prefix), maxPrefixLen)
		}
		if strings.Contains(prefix, keyspace.Marks) {
			return fmt.Errorf("etcdlock: prefix %q: must not contain %q, where the marks of Once are", prefix, keyspace.Marks)
		}
		c.prefix = prefix
		return nil
	})
}

// WithLogger sets where state changes are logged; nothing is by default. Names,
// tokens and identities are logged, never values.
func WithLogger(l *zap.Logger) Option {
	return optionFunc(func(c *config) error {
		if l == nil {
			return errors.New("etcdlock: nil logger: leave WithLogger out for silence")
		}
		c.log = l
		return nil
	})
}

// WithSafetyMargin sets how long before its possible expiry a lock is given
// up. It must cover what the server's clock may run faster than this machine's
// over one TTL, and the time that work needs to stop after its context was
// cancelled. The default, TTL/10 + 100 ms, covers a clock slewed by 8.3 %, the
// most that chrony does. It must be above 0 and at most half of the TTL. Where
// etcd grants a longer TTL than was asked for, the margin grows with it.
func WithSafetyMargin(d time.Duration) Option {
	return optionFunc(func(c *config) error {
		if d <= 0 {
			return fmt.Errorf("etcdlock: safety margin %v: must be above 0", d)
		}
		c.margin, c.marginOK = d, true
		return nil
	})
}

// WithIdentity sets the text by which Queue and LockedError show the holder:
// host/pid/random by default. It is stored as the value of the lock's key, in
// 1 to 256 bytes.
func WithIdentity(id string) Option {
	return optionFunc(func(c *config) error {
		if id == "" || len(id) > maxIdentity {
			return fmt.Errorf("etcdlock: identity of %d bytes: 1 to %d are allowed", len(id), maxIdentity)
		}
		c.identity = id
		return nil
	})
}

// WithObserver sets what is told of acquisitions, releases and losses.
func WithObserver(o Observer) Option {
	return optionFunc(func(c *config) error {
		if o == nil {
			return errors.New("etcdlock: nil Observer: leave WithObserver out instead")
		}
		c.observer = o
		return nil
	})
}

// WithSharedLeases lets up to n locks of different names share one lease, for
// a service that holds thousands at once: renewals are per lease. The default
// is 1, a lease of its own for every lock; 1 to 100 000 are allowed.
//
// What they share is their fate: when the lease is lost, so are all its locks.
// A lock whose release was not confirmed makes its lease take no new names; it
// is revoked when its last lock goes.
func WithSharedLeases(n int) Option {
	return optionFunc(func(c *config) error {
		if n < 1 || n > maxSharedLock {
			return fmt.Errorf("etcdlock: %d locks to a lease: must be between 1 and %d", n, maxSharedLock)
		}
		c.share = n
		return nil
	})
}

// A LockOption configures one Lock, TryLock, Do or Once.
type LockOption interface {
	OnceOption
	apply(*lockConfig) error
}

type lockOptionFunc func(*lockConfig) error

func (f lockOptionFunc) apply(c *lockConfig) error { return f(c) }

func (f lockOptionFunc) applyOnce(c *onceConfig) error {
	c.lock = append(c.lock, f)
	return nil
}

type lockConfig struct {
	fences       []fencing.Fence
	fenceTimeout time.Duration
	maxHold      time.Duration
}

func newLockConfig(ttl time.Duration, opts []LockOption) (lockConfig, error) {
	c := lockConfig{fenceTimeout: ttl / 3}
	for _, o := range opts {
		if o == nil {
			return c, errors.New("etcdlock: nil LockOption")
		}
		if err := o.apply(&c); err != nil {
			return c, err
		}
	}
	return c, nil
}

// WithFences raises the high-water mark of each fence to the new lock's token
// before Lock returns, in the order given. That way the resource refuses an
// earlier holder's late write before the new holder has read anything; a fence
// that is raised by the first write only still loses updates.
//
// A fence that has seen a higher token means that the lock is lost already:
// Lock then returns a *LostError with ReasonStale, or ErrRevisionRegressed if
// the fence has seen more than etcd has written. A fence that fails, or does
// not answer in time, makes Lock give the lock back, in the background, and return
// its error.
func WithFences(fences ...fencing.Fence) LockOption {
	return lockOptionFunc(func(c *lockConfig) error {
		for _, f := range fences {
			if f == nil {
				return errors.New("etcdlock: nil Fence")
			}
		}
		c.fences = append(c.fences, fences...)
		return nil
	})
}

// WithFenceTimeout sets how long each fence of WithFences is given: a third of
// the TTL by default. It must be above 0.
func WithFenceTimeout(d time.Duration) LockOption {
	return lockOptionFunc(func(c *lockConfig) error {
		if d <= 0 {
			return fmt.Errorf("etcdlock: fence timeout %v: must be above 0", d)
		}
		c.fenceTimeout = d
		return nil
	})
}

// WithMaxHold ends the lock d after it was acquired, for work that might hang:
// the lock is lost with ReasonMaxHold, and free for others when its TTL has
// passed after that. There is no maximum by default; d must be above 0.
func WithMaxHold(d time.Duration) LockOption {
	return lockOptionFunc(func(c *lockConfig) error {
		if d <= 0 {
			return fmt.Errorf("etcdlock: maximum hold %v: must be above 0", d)
		}
		c.maxHold = d
		return nil
	})
}
