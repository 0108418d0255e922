package clock

import (
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSinceAddsSuspendAndIgnoresSlew(t *testing.T) {
	for _, c := range []struct {
		name                string
		from, to            Reading
		since, susp, missed time.Duration
	}{
		{"steady", Reading{10, 20, 30}, Reading{15, 25, 35}, 5, 0, 0},
		{"suspended", Reading{10, 20, 30}, Reading{15, 85, 35}, 65, 60, 60},
		{"monotonic slewed slow", Reading{0, 0, 0}, Reading{100, 92, 92}, 100, 0, 8},
		{"monotonic slewed fast", Reading{0, 0, 0}, Reading{100, 108, 108}, 100, 0, -8},
		{"boot read before monotonic", Reading{0, 0, 0}, Reading{10, 9, 11}, 10, 0, -1},
	} {
		if got := c.to.Since(c.from); got != c.since {
			t.Errorf("%s: Since = %d, want %d", c.name, got, c.since)
		}
		if got := c.to.Suspended(c.from); got != c.susp {
			t.Errorf("%s: Suspended = %d, want %d", c.name, got, c.susp)
		}
		if got := c.to.Missed(c.from); got != c.missed {
			t.Errorf("%s: Missed = %d, want %d", c.name, got, c.missed)
		}
	}
}

func TestSystemAdvances(t *testing.T) {
	a := System{}.Now()
	<-time.After(30 * time.Millisecond)
	b := System{}.Now()
	if d := b.Since(a); d < 25*time.Millisecond || d > 10*time.Second {
		t.Errorf("30 ms later the clock says %v passed", d)
	}
	if s := b.Suspended(a); s > 5*time.Millisecond {
		t.Errorf("a machine that did not sleep shows %v of suspend", s)
	}
}

func TestFakeFollowsABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := NewFake()
		a := f.Now()
		time.Sleep(time.Minute)
		if d := f.Now().Since(a); d != time.Minute {
			t.Errorf("after a minute: %v", d)
		}
		f.Suspend(time.Hour)
		f.Slew(time.Second)
		b := f.Now()
		if d := b.Since(a); d != time.Hour+time.Minute+time.Second {
			t.Errorf("after suspend and slew: %v", d)
		}
		if d := b.Missed(a); d != time.Hour+time.Second {
			t.Errorf("timers missed %v", d)
		}
	})
}

func BenchmarkSystemNow(b *testing.B) {
	for b.Loop() {
		System{}.Now()
	}
}
