package faultkit

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

const (
	// quiet is how long a test watches for bytes that must not come.
	quiet = 100 * time.Millisecond
	soon  = 10 * time.Second
)

// server accepts connections and hands them to the test.
func server(t *testing.T) (addr string, conns chan *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	conns = make(chan *net.TCPConn, 100)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns <- c.(*net.TCPConn)
		}
	})
	t.Cleanup(func() {
		l.Close()
		wg.Wait()
		close(conns)
		for c := range conns {
			c.Close()
		}
	})
	return l.Addr().String(), conns
}

func dial(t *testing.T, p *Proxy) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c.(*net.TCPConn)
}

// pair connects through a new proxy and returns both ends.
func pair(t *testing.T) (p *Proxy, client, srv *net.TCPConn) {
	t.Helper()
	addr, conns := server(t)
	p = NewProxy(t, addr)
	client = dial(t, p)
	srv = <-conns
	t.Cleanup(func() { srv.Close() })
	return p, client, srv
}

func send(t *testing.T, c net.Conn, s string) {
	t.Helper()
	if _, err := io.WriteString(c, s); err != nil {
		t.Fatalf("send: %v", err)
	}
}

func receive(t *testing.T, c net.Conn, want string) {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(soon))
	buf := make([]byte, len(want))
	if n, err := io.ReadFull(c, buf); err != nil || string(buf) != want {
		t.Fatalf("received %q, %v, want %q", buf[:n], err, want)
	}
}

func receiveNothing(t *testing.T, c net.Conn) {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(quiet))
	buf := make([]byte, 100)
	var ne net.Error
	if n, err := c.Read(buf); !errors.As(err, &ne) || !ne.Timeout() {
		t.Fatalf("received %q, %v, want nothing", buf[:n], err)
	}
}

func receiveEnd(t *testing.T, c net.Conn) {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(soon))
	var ne net.Error
	if n, err := c.Read(make([]byte, 1)); err == nil || errors.As(err, &ne) && ne.Timeout() {
		t.Fatalf("%d bytes, %v, want the end of the connection", n, err)
	}
}

// refused checks that a new connection is reset, be it before or after the dial has returned.
func refused(t *testing.T, p *Proxy) {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		return
	}
	defer c.Close()
	receiveEnd(t, c)
}

func TestPass(t *testing.T) {
	p, client, srv := pair(t)
	send(t, client, "ping")
	receive(t, srv, "ping")
	send(t, srv, "pong")
	receive(t, client, "pong")
	if n := p.Conns(); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
	client.CloseWrite()
	receiveEnd(t, srv)
	send(t, srv, "rest") // half closed: the other direction still works
	receive(t, client, "rest")
	srv.Close()
	receiveEnd(t, client)
}

func TestBulk(t *testing.T) {
	p, client, srv := pair(t)
	p.Delay(time.Millisecond)
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<18) // 4 MiB
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := client.Write(data); err != nil {
			t.Error(err)
		}
		client.CloseWrite()
	})
	got, err := io.ReadAll(srv)
	wg.Wait()
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d of %d bytes arrived, or out of order; %v", len(got), len(data), err)
	}
}

func TestBlackHole(t *testing.T) {
	p, client, srv := pair(t)
	p.BlackHole(Up)
	send(t, client, "lost")
	receiveNothing(t, srv)
	send(t, srv, "down still works")
	receive(t, client, "down still works")
	p.Pass(Up)
	receiveEnd(t, client)
	receiveEnd(t, srv)
}

func TestBlackHoleHidesTheEnd(t *testing.T) {
	p, client, srv := pair(t)
	p.BlackHole()
	srv.Close()
	receiveNothing(t, client)
	p.Heal()
	receiveEnd(t, client)
}

func TestBlackHoleSparesIdleConnections(t *testing.T) {
	p, client, srv := pair(t)
	p.BlackHole()
	p.Heal()
	send(t, client, "ping")
	receive(t, srv, "ping")
}

func TestHold(t *testing.T) {
	p, client, srv := pair(t)
	p.Hold(Down)
	send(t, srv, "one ")
	send(t, srv, "two")
	srv.Close()
	receiveNothing(t, client)
	p.Pass(Down)
	receive(t, client, "one two")
	receiveEnd(t, client)
}

func TestDelay(t *testing.T) {
	p, client, srv := pair(t)
	const d = 50 * time.Millisecond
	p.Delay(d, Up)
	from := time.Now()
	send(t, client, "a")
	receive(t, srv, "a")
	if took := time.Since(from); took < d {
		t.Errorf("arrived after %v, want at least %v", took, d)
	}
	p.Delay(time.Hour)
	send(t, client, "kept back")
	receiveNothing(t, srv)
	// Ends with the proxy closed under a pending delay.
}

func TestCut(t *testing.T) {
	p, client, srv := pair(t)
	p.Cut()
	receiveEnd(t, client)
	receiveEnd(t, srv)
	refused(t, p)
	p.Heal()
	addr, conns := server(t)
	p.SetTarget(addr)
	c := dial(t, p)
	s := <-conns
	defer s.Close()
	send(t, c, "healed")
	receive(t, s, "healed")
	p.Drop()
	receiveEnd(t, c)
}

func TestCutAfter(t *testing.T) {
	addr, conns := server(t)
	p := NewProxy(t, addr)
	connect := func() (client, srv *net.TCPConn) {
		client = dial(t, p)
		srv = <-conns
		t.Cleanup(func() { srv.Close() })
		return client, srv
	}
	for _, n := range []int64{0, 1, 6, 7} {
		one, a := connect()
		two, b := connect()
		p.CutAfter(n, Up)
		send(t, b, "down is not counted")
		receive(t, two, "down is not counted")
		sent := ""
		for int64(len(sent)) < n-4 { // two connections count together
			send(t, two, "abc")
			receive(t, b, "abc")
			sent += "abc"
		}
		send(t, one, "longer than that")
		receive(t, a, "longer than that"[:n-int64(len(sent))])
		for _, c := range []net.Conn{one, two, a, b} {
			receiveEnd(t, c)
		}
	}
	client, srv := connect() // spent
	send(t, client, "passes again")
	receive(t, srv, "passes again")
	p.CutAfter(3)
	p.Heal()
	send(t, client, "healed")
	receive(t, srv, "healed")
}

func TestNoServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	refused(t, NewProxy(t, addr))
}

// TestConcurrentUse has every method called while connections come and go; the race detector and goleak judge it.
func TestConcurrentUse(t *testing.T) {
	addr, conns := server(t)
	p := NewProxy(t, addr)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for _, f := range []func(){
		func() { p.BlackHole(Up) }, func() { p.Hold(Down) }, func() { p.Pass() }, func() { p.Delay(time.Millisecond) },
		p.Drop, p.Cut, p.Heal, func() { p.SetTarget(addr) }, func() { p.Conns() },
	} {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Millisecond):
					f()
				}
			}
		})
	}
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			case c := <-conns:
				go func() {
					defer c.Close()
					io.Copy(c, c) // ends when the proxy resets the connection
				}()
			}
		}
	})
	for range 200 {
		c, err := net.Dial("tcp", p.Addr())
		if err != nil {
			continue // reset by a Cut at that moment
		}
		io.WriteString(c, "x")
		c.SetReadDeadline(time.Now().Add(5 * time.Millisecond))
		c.Read(make([]byte, 1))
		c.Close()
	}
	close(stop)
	wg.Wait()
	p.Close()
	if n := p.Conns(); n != 0 {
		t.Errorf("%d connections left after Close", n)
	}
}
