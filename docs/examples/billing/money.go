package main

import (
	"errors"
	"fmt"
	"strings"
)

// maxDigits bounds the whole part of an amount, so that no sum over a batch can overflow an int64.
const maxDigits = 11

// parseCents reads a positive amount such as 1284.50 or 1284 as hundredths. Money is never a float here:
// 0.1 has no float64.
func parseCents(s string) (int64, error) {
	whole, frac, point := strings.Cut(s, ".")
	switch {
	case s == "":
		return 0, errors.New("is empty")
	case strings.HasPrefix(s, "-"):
		return 0, fmt.Errorf("%q is negative; amounts are positive", s)
	case whole == "" || !digits(whole) || point && (len(frac) != 2 || !digits(frac)):
		return 0, fmt.Errorf("%q is not an amount such as 1284.50 (digits, a point, two decimals)", s)
	case len(whole) > maxDigits:
		return 0, fmt.Errorf("%q has more than %d digits before the point", s, maxDigits)
	}
	var cents int64
	for _, d := range whole + (frac + "00")[:2] {
		cents = cents*10 + int64(d-'0')
	}
	if cents == 0 {
		return 0, fmt.Errorf("%q is zero; amounts are positive", s)
	}
	return cents, nil
}

func digits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return true
}

// formatCents is the inverse of parseCents.
func formatCents(c int64) string {
	sign := ""
	if c < 0 {
		sign, c = "-", -c
	}
	return fmt.Sprintf("%s%d.%02d", sign, c/100, c%100)
}
