package fencing

import (
	"fmt"
	"math"
	"strconv"
)

// Token is a fencing token: the number an acquisition of a lock carries, which
// rises from holder to holder. With etcdlock it is the create revision of the
// lock's key in etcd.
//
// Valid tokens run from 1 to 2^63-1. They need all 63 bits: a float64 (every
// number in JavaScript, and in the Lua of Redis) confuses neighbours above 2^53.
// A Token therefore marshals as text, which makes it a string in JSON.
type Token int64

// None is the absence of a token. Every [Fence] refuses it with [ErrNoToken];
// none waves it through.
const None Token = 0

// tokenDigits is the number of decimal digits in the greatest token, 2^63-1.
const tokenDigits = 19

// ParseToken reads a token from 1 to 19 ASCII decimal digits, with or without
// leading zeros, so it accepts what [Token.String] and [Token.Padded] write for
// a valid token.
//
// Everything else is refused with an error matching [ErrNoToken]: an empty
// string, signs, spaces, other digits than 0 to 9, the number zero, a number
// above 2^63-1, and more than 19 bytes of anything. The error says what is allowed
// and quotes at most the first 24 bytes of s.
func ParseToken(s string) (Token, error) {
	if s == "" {
		return None, parseError(s, "empty input")
	}
	if len(s) > tokenDigits {
		return None, parseError(s, "input too long")
	}
	var n uint64 // 19 digits always fit: 10^19-1 is below 2^64
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c < '0' || c > '9' {
			return None, parseError(s, "not a digit at byte "+strconv.Itoa(i+1))
		}
		n = n*10 + uint64(c-'0')
	}
	if n == 0 {
		return None, parseError(s, "zero means none")
	}
	if n > math.MaxInt64 {
		return None, parseError(s, "number too large")
	}
	return Token(n), nil
}

func parseError(s, problem string) error {
	// The input may come from a stranger; a log line should not be theirs to fill.
	const most = 24
	rest := ""
	if len(s) > most {
		s, rest = s[:most], "..."
	}
	return fmt.Errorf("%w: %s: %q%s; want 1 to %d decimal digits, from 1 to %d",
		ErrNoToken, problem, s, rest, tokenDigits, int64(math.MaxInt64))
}

// Valid reports whether t is a token at all, that is, above zero. It says
// nothing about whether a fence would accept it.
func (t Token) Valid() bool { return t > None }

// String returns t in decimal without leading zeros. For [None] it is "0".
func (t Token) String() string { return strconv.FormatInt(int64(t), 10) }

// Padded returns t as exactly 19 decimal digits, with leading zeros, so that
// tokens compared as text order as they do as numbers. Stores whose numbers are
// float64 compare this form.
//
// An invalid token, zero or negative, yields 19 zeros: that sorts before every
// valid token, and [ParseToken] refuses it.
func (t Token) Padded() string {
	var digits [tokenDigits]byte
	n := max(t, None)
	for i := len(digits) - 1; i >= 0; i-- {
		digits[i] = '0' + byte(n%10)
		n /= 10
	}
	return string(digits[:])
}

// MarshalText returns the form of [Token.String]. An invalid token does not
// marshal: the error matches [ErrNoToken]. A JSON field that may hold [None]
// wants the omitzero option.
func (t Token) MarshalText() ([]byte, error) {
	if !t.Valid() {
		return nil, noTokenError(t)
	}
	return strconv.AppendInt(nil, int64(t), 10), nil
}

// UnmarshalText sets t to what [ParseToken] makes of text. On an error t keeps
// its value.
func (t *Token) UnmarshalText(text []byte) error {
	parsed, err := ParseToken(string(text))
	if err != nil {
		return err
	}
	*t = parsed
	return nil
}
