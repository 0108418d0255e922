package fencing

import (
	"errors"
	"math"
	"math/big"
	"testing"
)

// FuzzParseToken compares with big.Int, which knows no limits, and takes what is
// accepted through every text form and back.
func FuzzParseToken(f *testing.F) {
	for _, s := range []string{
		"", "0", "1", "42", "-1", "+1", " 1", "1 ", "1_0", "0x1", "007", "\u0661", "1\x00",
		"0000000000000000000", "0000000000000000001", "00000000000000000001",
		"9007199254740993", "9223372036854775807", "9223372036854775808", "9999999999999999999", "18446744073709551617",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		token, err := ParseToken(s)

		n, acceptable := new(big.Int), s != "" && len(s) <= 19
		for i := 0; i < len(s) && acceptable; i++ {
			acceptable = '0' <= s[i] && s[i] <= '9'
		}
		if acceptable {
			n.SetString(s, 10)
			acceptable = n.Sign() > 0 && n.IsInt64()
		}
		if !acceptable {
			if token != None || !errors.Is(err, ErrNoToken) {
				t.Fatalf("ParseToken(%q) = %d, %v, want an error matching ErrNoToken", s, token, err)
			}
			if len(err.Error()) > 300 {
				t.Fatalf("the error for %d bytes has %d", len(s), len(err.Error()))
			}
			kept := Token(7)
			if err := kept.UnmarshalText([]byte(s)); err == nil || kept != 7 {
				t.Fatalf("UnmarshalText(%q) left %d, %v", s, kept, err)
			}
			return
		}
		if err != nil || int64(token) != n.Int64() || !token.Valid() {
			t.Fatalf("ParseToken(%q) = %d, %v, want %v", s, token, err, n)
		}
		text, err := token.MarshalText()
		if err != nil {
			t.Fatalf("Token(%d).MarshalText: %v", token, err)
		}
		for _, form := range []string{token.String(), token.Padded(), string(text)} {
			var back Token
			if err := back.UnmarshalText([]byte(form)); err != nil || back != token {
				t.Fatalf("%q came back as %q and then as %d, %v", s, form, back, err)
			}
		}
	})
}

// FuzzPaddedOrder checks that the padded form orders as the numbers do and reads
// back, for any two 64-bit numbers.
func FuzzPaddedOrder(f *testing.F) {
	edges := []int64{math.MinInt64, -1, 0, 1, 9, 10, 1<<53 - 1, 1 << 53, 1<<53 + 1, math.MaxInt64 - 1, math.MaxInt64}
	for i, a := range edges {
		f.Add(a, edges[(i+1)%len(edges)])
		f.Add(a, a)
	}
	f.Fuzz(func(t *testing.T, x, y int64) {
		a, b := max(Token(x), None), max(Token(y), None) // invalid tokens are all alike
		pa, pb := Token(x).Padded(), Token(y).Padded()
		if len(pa) != 19 || len(pb) != 19 {
			t.Fatalf("Padded gave %q and %q, want 19 bytes each", pa, pb)
		}
		if (a < b) != (pa < pb) || (a == b) != (pa == pb) {
			t.Fatalf("%d and %d order otherwise than %q and %q", x, y, pa, pb)
		}
		var back Token
		err := back.UnmarshalText([]byte(pa))
		if x > 0 && (err != nil || back != a) {
			t.Fatalf("%q came back as %d, %v", pa, back, err)
		}
		if x <= 0 && !errors.Is(err, ErrNoToken) {
			t.Fatalf("%q, the form of %d, came back as %d, %v, want an error matching ErrNoToken", pa, x, back, err)
		}
	})
}
