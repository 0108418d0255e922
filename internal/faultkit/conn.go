package faultkit

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

const (
	chunkSize = 32 << 10
	// queued bounds what a held or delayed direction buffers; beyond it the sender meets TCP's own back pressure.
	queued = 1024
)

// conn is one forwarded connection. Each direction has a reader, which stamps what it reads, and a writer, which
// applies the proxy's mode; apart, so that a delay does not slow the rate down.
type conn struct {
	proxy *Proxy
	ends  [2]*net.TCPConn // client, server
	gone  chan struct{}   // closed when the ends are
	once  sync.Once
	lost  [2]bool // by direction: bytes or an end were discarded; guarded by proxy.mu
}

// chunk is what one read returned: data, or the reason why there is no more.
type chunk struct {
	data []byte
	err  error
	due  time.Time
}

// run forwards both directions until they have ended.
func (c *conn) run() {
	var wg sync.WaitGroup
	for _, dir := range []Direction{Up, Down} {
		q := make(chan chunk, queued)
		wg.Go(func() { c.read(dir, q) })
		wg.Go(func() { c.write(dir, q) })
	}
	wg.Wait()
	c.close(func(t *net.TCPConn) { t.Close() }) // not a reset: what was written last may still be on its way
}

// reset closes both ends at once with a TCP reset.
func (c *conn) reset() { c.close(reset) }

func (c *conn) close(how func(*net.TCPConn)) {
	c.once.Do(func() {
		close(c.gone)
		how(c.ends[0])
		how(c.ends[1])
	})
}

func reset(t *net.TCPConn) {
	// An error means that the peer closed first.
	_ = t.SetLinger(0)
	t.Close()
}

func (c *conn) read(dir Direction, q chan<- chunk) {
	defer close(q)
	src := c.ends[dir]
	for {
		buf := make([]byte, chunkSize)
		n, err := src.Read(buf)
		due := time.Now().Add(c.proxy.delay(dir))
		for _, k := range []chunk{{data: buf[:n], due: due}, {err: err, due: due}} {
			if len(k.data) == 0 && k.err == nil {
				continue
			}
			select {
			case q <- k:
			case <-c.gone:
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (c *conn) write(dir Direction, q <-chan chunk) {
	dst := c.ends[1-dir]
	broken := false // dst is gone; keep draining, its own end is reported by the other direction
	for k := range q {
		m, alive := c.wait(dir, k)
		if !alive {
			return
		}
		switch {
		case m == hole && k.err != nil:
			<-c.gone // the other side must not learn of the end: keep the connection until it is reset
			return
		case m == hole || broken:
		case k.err == nil:
			n, cut := c.proxy.take(dir, len(k.data))
			_, err := dst.Write(k.data[:n])
			broken = err != nil
			if cut {
				c.proxy.Drop()
				return
			}
		case errors.Is(k.err, io.EOF):
			broken = dst.CloseWrite() != nil
		default:
			c.reset()
			return
		}
	}
}

// wait returns once k may be dealt with, and the direction's mode then. It notes a loss under the same lock that mode
// changes take, so that a change never misses it.
func (c *conn) wait(dir Direction, k chunk) (mode, bool) {
	if d := time.Until(k.due); d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
		case <-c.gone:
			return pass, false
		}
	}
	p := c.proxy
	for {
		p.mu.Lock()
		m, changed := p.modes[dir], p.changed
		if m == hole {
			c.lost[dir] = true
		}
		p.mu.Unlock()
		if m != hold {
			return m, true
		}
		select {
		case <-changed:
		case <-c.gone:
			return pass, false
		}
	}
}

func (p *Proxy) delay(dir Direction) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.delays[dir]
}
