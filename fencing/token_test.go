package fencing

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
)

func TestParseToken(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want Token
	}{
		{"1", 1},
		{"9", 9},
		{"0000000000000000001", 1},
		{"007", 7},
		{"9007199254740993", 1<<53 + 1},
		{"0009007199254740993", 1<<53 + 1},
		{"9223372036854775807", math.MaxInt64},
	} {
		got, err := ParseToken(tt.in)
		if err != nil || got != tt.want {
			t.Errorf("ParseToken(%q) = %d, %v, want %d", tt.in, got, err, tt.want)
		}
	}
}

func TestParseTokenRefuses(t *testing.T) {
	for _, tt := range []struct{ name, in, says string }{
		{"empty", "", "empty input"},
		{"zero", "0", "zero means none"},
		{"padded zero", "0000000000000000000", "zero means none"},
		{"plus", "+1", "byte 1"},
		{"minus", "-1", "byte 1"},
		{"leading space", " 1", "byte 1"},
		{"trailing space", "1 ", "byte 2"},
		{"newline", "1\n", "byte 2"},
		{"inner space", "1 2", "byte 2"},
		{"underscore", "1_000", "byte 2"},
		{"hexadecimal", "0x10", "byte 2"},
		{"exponent", "1e3", "byte 2"},
		{"point", "1.0", "byte 2"},
		{"letter", "12a", "byte 3"},
		{"nul", "1\x00", "byte 2"},
		{"Arabic-Indic digits", "\u0661\u0662", "byte 1"},
		{"full-width digit", "\uff11", "byte 1"},
		{"not UTF-8", "1\xff", "byte 2"},
		{"one above the greatest", "9223372036854775808", "number too large"},
		{"greatest of 19 digits", "9999999999999999999", "number too large"},
		{"20 digits", "18446744073709551617", "input too long"}, // 1 modulo 2^64
		{"padded too far", "00000000000000000001", "input too long"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseToken(tt.in)
			if got != None || !errors.Is(err, ErrNoToken) || errors.Is(err, ErrStale) {
				t.Fatalf("ParseToken(%q) = %d, %v, want None and an error matching ErrNoToken only", tt.in, got, err)
			}
			for _, part := range []string{tt.says, "1 to 19 decimal digits", "9223372036854775807"} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %q does not mention %q", err, part)
				}
			}
		})
	}
}

func TestParseTokenErrorIsShort(t *testing.T) {
	for _, in := range []string{
		strings.Repeat("1", 1<<20),
		strings.Repeat("\x00", 1<<20),
		strings.Repeat("\u0661", 1<<20),
	} {
		_, err := ParseToken(in)
		if err == nil {
			t.Fatal("a million digits were accepted")
		}
		if n := len(err.Error()); n > 300 {
			t.Errorf("the error has %d bytes for an input of %d", n, len(in))
		}
		if !strings.Contains(err.Error(), "...") {
			t.Errorf("error %q does not show that the input goes on", err)
		}
	}
}

func TestTokenForms(t *testing.T) {
	for _, tt := range []struct {
		t              Token
		valid          bool
		string, padded string
	}{
		{None, false, "0", "0000000000000000000"},
		{-1, false, "-1", "0000000000000000000"},
		{math.MinInt64, false, "-9223372036854775808", "0000000000000000000"},
		{1, true, "1", "0000000000000000001"},
		{1234567890, true, "1234567890", "0000000001234567890"},
		{1<<53 + 1, true, "9007199254740993", "0009007199254740993"},
		{math.MaxInt64, true, "9223372036854775807", "9223372036854775807"},
	} {
		if got := tt.t.Valid(); got != tt.valid {
			t.Errorf("Token(%d).Valid() = %v, want %v", int64(tt.t), got, tt.valid)
		}
		if got := tt.t.String(); got != tt.string {
			t.Errorf("Token(%d).String() = %q, want %q", int64(tt.t), got, tt.string)
		}
		if got := tt.t.Padded(); got != tt.padded {
			t.Errorf("Token(%d).Padded() = %q, want %q", int64(tt.t), got, tt.padded)
		}
		text, err := tt.t.MarshalText()
		switch {
		case tt.valid && (err != nil || string(text) != tt.string):
			t.Errorf("Token(%d).MarshalText() = %q, %v, want %q", int64(tt.t), text, err, tt.string)
		case !tt.valid && (!errors.Is(err, ErrNoToken) || text != nil):
			t.Errorf("Token(%d).MarshalText() = %q, %v, want an error matching ErrNoToken", int64(tt.t), text, err)
		}
	}
}

func TestUnmarshalTextKeepsValueOnError(t *testing.T) {
	token := Token(7)
	if err := token.UnmarshalText([]byte("8x")); !errors.Is(err, ErrNoToken) {
		t.Errorf("UnmarshalText = %v, want an error matching ErrNoToken", err)
	}
	if token != 7 {
		t.Errorf("token is %d after a refused text, want the 7 it was", token)
	}
	if err := token.UnmarshalText([]byte("0000000000000000008")); err != nil || token != 8 {
		t.Errorf("UnmarshalText left %d, %v, want 8", token, err)
	}
}

func TestTokenInJSON(t *testing.T) {
	type message struct {
		Token Token `json:"token,omitzero"`
	}
	in := message{Token: 1<<53 + 1}
	text, err := json.Marshal(in)
	if want := `{"token":"9007199254740993"}`; err != nil || string(text) != want {
		t.Fatalf("json.Marshal = %s, %v, want %s", text, err, want)
	}
	var out message
	if err := json.Unmarshal(text, &out); err != nil || out != in {
		t.Errorf("json.Unmarshal = %v, %v, want %v", out, err, in)
	}
	if text, err := json.Marshal(message{}); err != nil || string(text) != "{}" {
		t.Errorf("json.Marshal of None under omitzero = %s, %v, want {}", text, err)
	}
	if _, err := json.Marshal(struct{ Token Token }{None}); !errors.Is(err, ErrNoToken) {
		t.Errorf("json.Marshal of None: %v, want an error matching ErrNoToken", err)
	}
	// A bare number has been through a float64 somewhere, or soon will be.
	if err := json.Unmarshal([]byte(`{"token":12}`), &out); err == nil {
		t.Error("json.Unmarshal accepted a token given as a number")
	}
}

func TestStaleError(t *testing.T) {
	var err error = &StaleError{Resource: "the ledger", Token: 41, HighWater: 42}
	if !errors.Is(err, ErrStale) || errors.Is(err, ErrNoToken) {
		t.Errorf("%v: want it to match ErrStale and not ErrNoToken", err)
	}
	if got, want := err.Error(), `fencing: stale token: 41 is below the high-water mark 42 of "the ledger"`; got != want {
		t.Errorf("Error() = %q, want %q", got, want)
	}
	err = &StaleError{Token: 41, HighWater: 42}
	if got, want := err.Error(), "fencing: stale token: 41 is below the high-water mark 42"; got != want {
		t.Errorf("Error() = %q, want %q", got, want)
	}
}
