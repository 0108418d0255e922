//go:build unix

package members_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/revfence/revfence/etcdlock"
	"github.com/revfence/revfence/internal/etcdtest"
	"github.com/revfence/revfence/internal/faultkit"
	"github.com/revfence/revfence/internal/locktest"
)

// What a TTL is good for. The default run tries one TTL in an outage that no other test has; the table of
// docs/operations.md comes from
//
//	go test ./integration/members -run TestSurvivableOutage -outages -parallel 3 -timeout 60m -v

var outages = flag.Bool("outages", false, "make TestSurvivableOutage try every outage with every TTL at several phases")

// An outage is something that happens to a cluster while locks are renewed through one of its members.
type outage struct {
	name  string
	used  role
	start func(c *faultkit.Cluster, used, leader int)
	end   func(c *faultkit.Cluster, used, leader int) // nil: it does not end
	lasts time.Duration
}

// role says which member locks are renewed through.
type role bool

const (
	follower role = false
	leader   role = true
)

func allOutages() []outage {
	all := []outage{
		{name: "follower in use killed", start: func(c *faultkit.Cluster, used, _ int) { c.Member(used).Kill() }},
		{name: "follower in use silent", start: func(c *faultkit.Cluster, used, _ int) { c.Member(used).Proxy.BlackHole() }},
		{name: "follower in use stopped", start: func(c *faultkit.Cluster, used, _ int) { c.Member(used).Stop() }},
		{name: "leader killed", start: killLeader},
		{
			name: "leader stopped for 7 s", start: stopLeader, lasts: 7 * time.Second,
			end: func(c *faultkit.Cluster, _, leader int) { c.Member(leader).Cont() },
		},
		{name: "leader stopped for good", start: stopLeader},
		leaderInUseKilled,
		{name: "leader in use stopped for good", used: leader, start: stopLeader},
	}
	for _, s := range []time.Duration{2, 4, 6, 9, 13, 18, 24} {
		all = append(all, quorumLost(s*time.Second))
	}
	return all
}

func stopLeader(c *faultkit.Cluster, _, leader int) { c.Member(leader).Stop() }

func killLeader(c *faultkit.Cluster, _, leader int) { c.Member(leader).Kill() }

var leaderInUseKilled = outage{name: "leader in use killed", used: leader, start: killLeader}

// quorumLost stops two of three members, of which one is in use.
func quorumLost(d time.Duration) outage {
	var resume func()
	return outage{
		name:  fmt.Sprintf("no quorum for %v", d),
		start: func(c *faultkit.Cluster, used, _ int) { resume = withoutQuorum(c, used) },
		end:   func(*faultkit.Cluster, int, int) { resume() },
		lasts: d,
	}
}

// A subject is one lock in an outage, which begins when its latest renewal is phase, as a part of the time between two
// renewals, old.
type subject struct {
	ttl   time.Duration
	phase float64
	lost  *etcdlock.LostError
	least time.Duration // of Remaining
	err   error

	seen   renewals
	client *clientv3.Client
	locker *etcdlock.Locker
}

// beforeDue is the worst phase: so shortly before a renewal is due.
const beforeDue = 150 * time.Millisecond

func subjects(ttls []time.Duration, phases ...float64) []*subject {
	var all []*subject
	for _, ttl := range ttls {
		worst := 1 - float64(beforeDue)/float64(ttl/3)
		for _, phase := range append(phases, worst) {
			all = append(all, &subject{ttl: ttl, phase: phase})
		}
	}
	return all
}

// lead is how long before the outage the lock has to be taken: one renewal goes well.
func (s *subject) lead() time.Duration { return time.Duration((1 + s.phase) * float64(s.ttl/3)) }

// window is how old a renewal may become.
func (s *subject) window() time.Duration { return s.ttl - s.ttl/10 - 100*time.Millisecond }

// prepare makes what the lock is taken with. It may fail the test, which live, on a goroutine of its own, must not.
func (s *subject) prepare(t *testing.T, c *faultkit.Cluster, used int) {
	s.seen.more = make(chan struct{})
	s.client = c.Client(t, etcdtest.Via(c.Member(used).Proxy.Addr()), etcdtest.Stream(s.seen.stream))
	s.locker = locktest.New(t, s.client, etcdlock.WithTTL(s.ttl))
}

// live takes a lock in time for an outage at begin, and looks at it until the end.
func (s *subject) live(t *testing.T, c *faultkit.Cluster, begin, end time.Time) {
	ctx := locktest.Context(t)
	pass(time.Until(begin.Add(-s.lead())))
	k, err := s.locker.Lock(ctx, fmt.Sprintf("%v-%v", s.ttl, s.phase))
	if err != nil {
		s.err = err
		return
	}
	defer func() { _ = k.Unlock(locktest.Context(t)) }() // it may be lost
	select {
	case <-s.seen.after():
		s.client.SetEndpoints(c.Proxied()...)
	case <-time.After(time.Until(begin)):
		s.err = errors.New("no lock ready in time for the outage: the machine is too busy")
		return
	}
	s.least = k.Remaining()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for now := range tick.C {
		left := k.Remaining()
		if now.After(begin) {
			s.least = min(s.least, left)
		}
		if left == 0 {
			<-k.Context().Done() // a moment later
			errors.As(context.Cause(k.Context()), &s.lost)
			return
		}
		if now.After(end) {
			return
		}
	}
}

// suffer has the subjects live through an outage.
func (o outage) suffer(t *testing.T, all []*subject) {
	c := startCluster(t, 3)
	lead, used := c.Leader(t), c.Follower(t)
	if o.used == leader {
		used = lead
	}
	var longest, most time.Duration
	for _, s := range all {
		s.prepare(t, c, used)
		longest, most = max(longest, s.lead()), max(most, s.ttl)
	}
	begin := time.Now().Add(longest + 2*time.Second)
	end := begin.Add(o.lasts + most)
	var wg sync.WaitGroup
	for _, s := range all {
		wg.Go(func() { s.live(t, c, begin, end) })
	}
	pass(time.Until(begin))
	o.start(c, used, lead)
	if o.end != nil {
		pass(time.Until(begin.Add(o.lasts)))
		o.end(c, used, lead)
	}
	wg.Wait()
	c.Member(used).Proxy.Heal()
	for i := range c.Len() {
		if m := c.Member(i); !m.Running() {
			m.Restart()
			m.Await()
		}
	}
}

// TestSurvivableOutage finds out what TTL survives what outage.
func TestSurvivableOutage(t *testing.T) {
	t.Parallel()
	const s = time.Second
	ttls, phases, rounds := []time.Duration{10 * s}, []float64{}, 1
	tried := []outage{leaderInUseKilled}
	if *outages {
		ttls, phases, rounds = []time.Duration{5 * s, 10 * s, 15 * s, 20 * s, 30 * s}, []float64{0.1, 0.4, 0.7}, 2
		tried = allOutages()
	}
	results := make([][]*subject, len(tried))
	t.Run("outages", func(t *testing.T) {
		for i := range tried {
			for range rounds {
				all := subjects(ttls, phases...)
				results[i] = append(results[i], all...)
				o := tried[i]
				if *outages {
					o = allOutages()[i] // rounds run side by side
				}
				t.Run(o.name, func(t *testing.T) {
					t.Parallel()
					o.suffer(t, all)
					for _, s := range all {
						switch {
						case s.err != nil && *outages: // one sample less
							t.Logf("TTL %v, phase %.2f: %v", s.ttl, s.phase, s.err)
						case s.err != nil:
							t.Errorf("TTL %v: %v", s.ttl, s.err)
						case s.lost != nil && *outages:
							t.Logf("TTL %v, phase %.2f: %v", s.ttl, s.phase, s.lost)
						case s.lost != nil:
							t.Errorf("TTL %v: %v", s.ttl, s.lost)
						}
					}
				})
			}
		}
	})
	t.Log("\n" + table(tried, ttls, results))
}

// table shows for each outage and TTL how many locks were lost, and else how old a renewal became at most.
func table(tried []outage, ttls []time.Duration, results [][]*subject) string {
	var b strings.Builder
	b.WriteString("| outage |")
	for _, ttl := range ttls {
		fmt.Fprintf(&b, " TTL %v (%.1f) |", ttl, (&subject{ttl: ttl}).window().Seconds())
	}
	b.WriteString("\n| --- |" + strings.Repeat(" --- |", len(ttls)) + "\n")
	for i, o := range tried {
		fmt.Fprintf(&b, "| %s |", o.name)
		for _, ttl := range ttls {
			mine := slices.DeleteFunc(slices.Clone(results[i]), func(s *subject) bool { return s.ttl != ttl || s.err != nil })
			lost, revoked, oldest := 0, "", time.Duration(0)
			for _, s := range mine {
				if s.lost != nil {
					lost++
					if s.lost.Reason != etcdlock.ReasonDeadline {
						revoked = ", revoked"
					}
				}
				oldest = max(oldest, s.window()-s.least)
			}
			switch {
			case len(mine) == 0: // by -run
				b.WriteString(" |")
			case lost == 0:
				fmt.Fprintf(&b, " %.1f s |", oldest.Seconds())
			default:
				fmt.Fprintf(&b, " lost %d of %d%s |", lost, len(mine), revoked)
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}
