package faultkit

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"
)

// Direction is one of the two ways bytes take through a Proxy.
type Direction int

// The two directions. Calls that take directions mean both when given none.
const (
	Up   Direction = iota // from the client to the server
	Down                  // from the server to the client
)

type mode int

const (
	pass mode = iota
	hole
	hold
)

// Proxy forwards TCP connections to a server and can disturb each direction on its own. It starts by passing everything
// on. It is safe for concurrent use; a change applies to open connections as well as to new ones.
type Proxy struct {
	listener net.Listener
	stop     context.CancelFunc // ends dials under way
	ctx      context.Context
	wg       sync.WaitGroup

	mu      sync.Mutex
	target  string
	cut     bool
	modes   [2]mode
	delays  [2]time.Duration
	quota   [2]int64      // bytes until the cut of CutAfter; negative for none
	changed chan struct{} // closed and replaced when modes changes
	conns   map[*conn]struct{}
}

// NewProxy starts a proxy to the server at dst (host:port) that runs until the end of the test.
func NewProxy(tb testing.TB, dst string) *Proxy {
	tb.Helper()
	p, err := Listen(dst)
	if err != nil {
		tb.Fatalf("faultkit: %v", err)
	}
	tb.Cleanup(p.Close)
	return p
}

// Listen starts a proxy to the server at dst for callers without a testing.TB. The caller must Close it.
func Listen(dst string) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("proxy: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	p := &Proxy{
		listener: l, ctx: ctx, stop: stop, target: dst,
		changed: make(chan struct{}), conns: map[*conn]struct{}{}, quota: noQuota,
	}
	p.wg.Go(p.accept)
	return p, nil
}

// Addr returns the host:port clients connect to.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// SetTarget makes new connections go to the server at dst. Open ones stay; Drop closes them.
func (p *Proxy) SetTarget(dst string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = dst
}

// Conns returns the number of connections open through the proxy.
func (p *Proxy) Conns() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns)
}

// Pass lets bytes through again. What was held is delivered; a connection that lost bytes in a black hole is closed,
// since what came after the gap would make no sense to either side.
func (p *Proxy) Pass(dirs ...Direction) { p.set(pass, dirs) }

// BlackHole reads and discards bytes while connections stay up. The end of a connection is not passed on either.
func (p *Proxy) BlackHole(dirs ...Direction) { p.set(hole, dirs) }

// Hold keeps bytes back, and the end of a connection with them, until Pass or Heal delivers all in order.
func (p *Proxy) Hold(dirs ...Direction) { p.set(hold, dirs) }

// Delay makes bytes read from now on arrive d after they were sent, in order. Zero ends it.
func (p *Proxy) Delay(d time.Duration, dirs ...Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, dir := range both(dirs) {
		p.delays[dir] = d
	}
}

// Drop resets the open connections. New ones are accepted.
func (p *Proxy) Drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop()
}

// Cut resets the open connections and every new one until Heal.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = true
	p.drop()
}

// CutAfter resets the open connections, once, when n more bytes have been passed on in a direction, counted over all of
// them: those n are still delivered. With 0 the next byte is not. Of several directions each counts for itself, and the
// first to be through counts. It is taken back by Heal.
func (p *Proxy) CutAfter(n int64, dirs ...Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, dir := range both(dirs) {
		p.quota[dir] = n
	}
}

var noQuota = [2]int64{-1, -1}

// take returns how many of n bytes may still be passed on in a direction, and whether the connections are to be reset
// after that.
func (p *Proxy) take(dir Direction, n int) (int, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	left := p.quota[dir]
	if left < 0 {
		return n, false
	}
	if int64(n) < left {
		p.quota[dir] -= int64(n)
		return n, false
	}
	// With 0 left it takes a byte to set it off.
	p.quota = noQuota
	return int(left), true
}

// Heal ends every disturbance in both directions: Cut, CutAfter, BlackHole, Hold and Delay.
func (p *Proxy) Heal() {
	p.mu.Lock()
	p.cut = false
	p.delays, p.quota = [2]time.Duration{}, noQuota
	p.mu.Unlock()
	p.Pass()
}

// Close resets all connections, stops listening and waits until nothing of the proxy runs any more.
func (p *Proxy) Close() {
	p.stop()
	p.listener.Close()
	p.Cut()
	p.wg.Wait()
}

func (p *Proxy) set(m mode, dirs []Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, dir := range both(dirs) {
		p.modes[dir] = m
		if m == hole {
			continue
		}
		for c := range p.conns {
			if c.lost[dir] {
				c.reset()
			}
		}
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *Proxy) drop() {
	for c := range p.conns {
		c.reset()
	}
}

func both(dirs []Direction) []Direction {
	if len(dirs) == 0 {
		return []Direction{Up, Down}
	}
	return dirs
}

func (p *Proxy) accept() {
	for {
		in, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		p.wg.Go(func() { p.serve(in.(*net.TCPConn)) })
	}
}

func (p *Proxy) serve(client *net.TCPConn) {
	p.mu.Lock()
	target, cut := p.target, p.cut
	p.mu.Unlock()
	if cut {
		reset(client)
		return
	}
	var d net.Dialer
	out, err := d.DialContext(p.ctx, "tcp", target)
	if err != nil {
		reset(client)
		return
	}
	c := &conn{proxy: p, ends: [2]*net.TCPConn{client, out.(*net.TCPConn)}, gone: make(chan struct{})}
	p.mu.Lock()
	cut = p.cut // Cut may have come during the dial
	if !cut {
		p.conns[c] = struct{}{}
	}
	p.mu.Unlock()
	if cut {
		c.reset()
		return
	}
	c.run()
	p.mu.Lock()
	delete(p.conns, c)
	p.mu.Unlock()
}
