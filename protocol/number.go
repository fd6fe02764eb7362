package protocol

import (
	"cmp"
	"strconv"
	"strings"
)

// CompareNumbers compares two JSON numbers of any size exactly and returns -1, 0 or 1.
func CompareNumbers(a, b string) int {
	x, y := parseDecimal(a), parseDecimal(b)
	if x.sign != y.sign || x.sign == 0 {
		return cmp.Compare(x.sign, y.sign)
	}
	return x.sign * cmp.Or(cmp.Compare(x.exponent, y.exponent), strings.Compare(x.digits, y.digits))
}

// decimal is sign * 0.digits * 10^exponent; the digits neither begin nor end with a zero.
type decimal struct {
	sign     int // 0 = the number is zero
	digits   string
	exponent int64
}

func parseDecimal(text string) decimal {
	d := decimal{sign: 1}
	if rest, negative := strings.CutPrefix(text, "-"); negative {
		text, d.sign = rest, -1
	}
	if i := strings.IndexAny(text, "eE"); i >= 0 {
		// An exponent beyond 60 bits becomes the largest one: only two such numbers compare as equal.
		d.exponent, _ = strconv.ParseInt(text[i+1:], 10, 60)
		text = text[:i]
	}
	whole, fraction, _ := strings.Cut(text, ".")
	digits := strings.TrimLeft(whole+fraction, "0")
	d.exponent += int64(len(whole) - (len(whole+fraction) - len(digits)))
	d.digits = strings.TrimRight(digits, "0")
	if d.digits == "" {
		return decimal{}
	}
	return d
}
