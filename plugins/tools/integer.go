package tools

import (
	"bytes"
	"strconv"

	"a2e/protocol"
)

// maxWholeDigits bounds the integers taken from a number with a fraction or an
// exponent: "1e999999999" must not become a gigabyte of zeros.
const maxWholeDigits = 18

// plainInteger tells whether a number is written as digits alone.
func plainInteger(number []byte) bool { return !bytes.ContainsAny(number, ".eE") }

// wholeNumber gives the digits of a JSON number that is written with a fraction
// or an exponent and is an integer all the same, exactly: 3.0, 1e2, 1.50e1.
func wholeNumber(number []byte) ([]byte, bool) {
	mantissa, exponent := number, 0
	if i := bytes.IndexAny(number, "eE"); i >= 0 {
		n, err := strconv.Atoi(string(number[i+1:]))
		if err != nil {
			return nil, false
		}
		mantissa, exponent = number[:i], n
	}
	negative := mantissa[0] == '-'
	whole, fraction, _ := bytes.Cut(bytes.TrimPrefix(mantissa, []byte("-")), []byte("."))
	fraction = bytes.TrimRight(fraction, "0")
	digits := bytes.TrimLeft(append(bytes.Clone(whole), fraction...), "0")
	exponent -= len(fraction)
	for exponent < 0 && len(digits) > 0 && digits[len(digits)-1] == '0' {
		digits, exponent = digits[:len(digits)-1], exponent+1
	}
	switch {
	case len(digits) == 0:
		return []byte("0"), true
	case exponent < 0 || exponent > maxWholeDigits || len(digits)+exponent > maxWholeDigits:
		return nil, false
	}
	digits = append(digits, bytes.Repeat([]byte("0"), exponent)...)
	if negative {
		digits = append([]byte("-"), digits...)
	}
	return digits, true
}

// respellObject appends o, checked before, with each integer written as digits
// alone.
func respellObject(dst []byte, ps params, o protocol.Object) []byte {
	dst = append(dst, '{')
	for key, v := range o.All() {
		if dst[len(dst)-1] != '{' {
			dst = append(dst, ',')
		}
		dst = append(protocol.AppendString(dst, key), ':')
		dst = respellValue(dst, &ps[ps.find(key)], v)
	}
	return append(dst, '}')
}

func respellValue(dst []byte, p *param, v protocol.Value) []byte {
	if p.typ == typeInteger && !plainInteger(v) {
		if digits, ok := wholeNumber(v); ok {
			return append(dst, digits...)
		}
	}
	if len(p.nested) > 0 {
		if o, err := protocol.ParseObject(v); err == nil {
			return respellObject(dst, p.nested, o)
		}
	}
	return append(dst, v...)
}
