package main

import "testing"

func TestParseCents(t *testing.T) {
	for s, want := range map[string]int64{
		"1284.50": 128450, "86.4": -1, "86.40": 8640, "1284": 128400, "0.01": 1, "007.00": 700,
		"99999999999.99": 9999999999999, "100000000000": -1,
		"": -1, "0": -1, "0.00": -1, "-1.00": -1, "+1.00": -1, "1,50": -1, "1.234": -1, "1.": -1, ".50": -1,
		"1e3": -1, "1 000": -1, "１.00": -1, "NaN": -1, "1.5x": -1, "1..0": -1, "0x10": -1,
	} {
		got, err := parseCents(s)
		if want < 0 {
			if err == nil {
				t.Errorf("parseCents(%q) = %d, want an error", s, got)
			}
			continue
		}
		if err != nil || got != want {
			t.Errorf("parseCents(%q) = %d, %v; want %d", s, got, err, want)
		}
	}
}

func TestFormatCents(t *testing.T) {
	for c, want := range map[int64]string{0: "0.00", 1: "0.01", 128450: "1284.50", -205: "-2.05"} {
		if got := formatCents(c); got != want {
			t.Errorf("formatCents(%d) = %q, want %q", c, got, want)
		}
	}
}
