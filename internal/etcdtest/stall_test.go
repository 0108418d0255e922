package etcdtest

import (
	"strings"
	"testing"
	"time"
)

func at(ms int) time.Time {
	return time.Unix(1_000_000, 0).Add(time.Duration(ms) * time.Millisecond)
}

// stalled returns a ticker that saw the process stall from 100 ms to 200 ms.
func stalled() *Ticker {
	t := newTicker(at(0))
	for ms := 2; ms <= 1000; ms += 2 {
		if ms <= 100 || ms >= 200 {
			t.wake(at(ms))
		}
	}
	return t
}

func TestOverlaps(t *testing.T) {
	s := stalled()
	for _, c := range []struct {
		from, to int
		want     bool
	}{
		{0, 99, false}, {0, 100, false}, {0, 101, true}, {120, 130, true}, {150, 300, true}, {199, 300, true},
		{200, 300, false}, {400, 500, false}, {0, 1000, true},
	} {
		if got := s.Overlaps(at(c.from), at(c.to)); got != c.want {
			t.Errorf("Overlaps(%d ms, %d ms) = %v", c.from, c.to, got)
		}
	}
}

func TestOverlapsWaitsForTheNextWake(t *testing.T) {
	s := newTicker(at(0))
	got := make(chan bool, 1)
	go func() { got <- s.Overlaps(at(10), at(20)) }()
	s.wake(at(500)) // the stall that began before the sample ended
	if !<-got {
		t.Error("a stall that was still going on at the sample's end was missed")
	}
}

// TestOverlapsEnds covers a sample judged when the ticker has stopped with its test: the answer must not wait for ever.
func TestOverlapsEnds(t *testing.T) {
	var s *Ticker
	t.Run("running", func(t *testing.T) {
		s = Stalls(t)
		now := time.Now()
		s.Overlaps(now, now)
		s.mu.Lock()
		last := s.last
		s.mu.Unlock()
		if last.Before(now) {
			t.Errorf("answered for %v having woken last at %v", now, last)
		}
	})
	later := time.Now().Add(time.Hour)
	if s.Overlaps(later, later) {
		t.Error("an hour that has not begun overlaps a stall")
	}
}

func TestJudge(t *testing.T) {
	sample := func(from, to int) Sample {
		return Sample{at(from), at(to), time.Duration(to-from) * time.Millisecond}
	}
	quick := func(n int) []Sample {
		var out []Sample
		for i := range n {
			out = append(out, sample(300+i, 301+i))
		}
		return out
	}
	for _, c := range []struct {
		name     string
		samples  []Sample
		quantile float64
		want     string // part of the error; empty means accepted
	}{
		{"all quick", quick(20), 1, ""},
		{"late without a stall", append(quick(20), sample(400, 450)), 1, "too late"},
		{"late in a stall", append(quick(20), sample(150, 250)), 1, ""},
		{"late beyond the quantile", append(quick(199), sample(400, 450)), 0.99, ""},
		{"late within the quantile", append(quick(97), sample(400, 450), sample(500, 550), sample(600, 650)), 0.99, "too late"},
		{"too many in stalls", append(quick(8), sample(150, 250), sample(160, 250)), 1, "too busy"},
		{"only stalls", []Sample{sample(150, 250)}, 1, "no samples"},
		{"none", nil, 1, "no samples"},
		{"quantile in percent", quick(5), 99, "quantile"},
	} {
		_, err := stalled().judge(c.samples, c.quantile, 10*time.Millisecond)
		if c.want == "" && err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: error %v, want %q", c.name, err, c.want)
		}
	}
}
