package jmes

import (
	"cmp"
	"errors"
	"math"
	"math/big"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/jmespath-community/go-jmespath/pkg/parsing"

	"a2e/protocol"
)

// Number is a JSON number that a float64 would write with other digits.
type Number struct {
	text string
	near float64
}

const (
	maxExact  = 1 << 53 // a float64 has all integers up to this one
	maxDigits = 400     // of an integer for exact arithmetic: more than any float64 has
)

// parseNumber returns the value of a JSON number: a float64 if that keeps the digits, else a Number.
func parseNumber(text string) any {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && len(text) < 16 && text[0] != '-' {
		return float64(n)
	}
	near, err := strconv.ParseFloat(text, 64)
	if err != nil { // beyond the range of float64; it may still pass through
		near = math.Copysign(math.MaxFloat64, near)
	} else if len(text) < 24 {
		var buf [32]byte
		if string(jsontext.AppendFloat(buf[:0], near, 64)) == text {
			return near
		}
	}
	return Number{text, near}
}

// isJSONNumber reports whether a text is a number as JSON writes it.
func isJSONNumber(text string) bool {
	raw := jsontext.Value(text)
	return raw.Kind() == '0' && raw.IsValid() && strings.TrimSpace(text) == text
}

func isNumber(v any) bool {
	_, ok := toFloat(v)
	return ok
}

// toFloat returns the float64 that is nearest to a number.
func toFloat(v any) (float64, bool) {
	switch v := v.(type) {
	case float64:
		return v, true
	case Number:
		return v.near, true
	}
	return 0, false
}

// compareNumbers orders two numbers by all their digits.
func compareNumbers(left, right any) int {
	a, isFloat := left.(float64)
	if b, both := right.(float64); isFloat && both {
		return cmp.Compare(a, b)
	}
	return protocol.CompareNumbers(digits(left), digits(right))
}

// digits returns a number as JSON writes it.
func digits(v any) string {
	if n, ok := v.(Number); ok {
		return n.text
	}
	f, _ := toFloat(v)
	return string(jsontext.AppendFloat(nil, f, 64))
}

// integer returns a number as an integer; nil = it has a fraction, an exponent or too many digits.
func integer(v any) *big.Int {
	switch v := v.(type) {
	case float64:
		if v == math.Trunc(v) && math.Abs(v) <= maxExact {
			return big.NewInt(int64(v))
		}
	case Number:
		if len(v.text) <= maxDigits {
			if n, ok := new(big.Int).SetString(v.text, 10); ok {
				return n
			}
		}
	}
	return nil
}

// fromInteger returns the value of an integer.
func fromInteger(n *big.Int) any {
	if n.IsInt64() && n.Int64() >= -maxExact && n.Int64() <= maxExact {
		return float64(n.Int64())
	}
	return parseNumber(n.String())
}

var errNoNumber = errors.New("computes a number that JSON does not have; perhaps it divides by zero")

// arithmetic computes with numbers, exactly with integers. It returns nil if an operand is not a number.
func arithmetic(tok parsing.TokType, left, right any) (any, error) {
	a, okA := toFloat(left)
	b, okB := toFloat(right)
	if !okA || !okB {
		return nil, nil
	}
	var n float64
	switch tok {
	case parsing.TOKPlus:
		n = a + b
	case parsing.TOKMinus:
		n = a - b
	case parsing.TOKStar, parsing.TOKMultiply:
		n = a * b
	case parsing.TOKDivide:
		n = a / b
	case parsing.TOKModulo:
		n = math.Mod(a, b)
	case parsing.TOKDiv:
		n = math.Floor(a / b)
	}
	if math.Abs(a) > maxExact/2 || math.Abs(b) > maxExact/2 || math.Abs(n) > maxExact/2 {
		if x, y := integer(left), integer(right); x != nil && y != nil {
			if exact := withIntegers(tok, x, y); exact != nil {
				return exact, nil
			}
		}
	}
	if math.IsNaN(n) || math.IsInf(n, 0) {
		return nil, errNoNumber
	}
	return n, nil
}

// withIntegers computes with integers; nil = the result is not an integer, or has too many digits.
func withIntegers(tok parsing.TokType, x, y *big.Int) any {
	n := new(big.Int)
	switch tok {
	case parsing.TOKPlus:
		n.Add(x, y)
	case parsing.TOKMinus:
		n.Sub(x, y)
	case parsing.TOKStar, parsing.TOKMultiply:
		n.Mul(x, y)
	default:
		if y.Sign() == 0 {
			return nil
		}
		rest := new(big.Int)
		n.QuoRem(x, y, rest)
		switch {
		case tok == parsing.TOKModulo: // with the sign of x, as math.Mod has it
			n = rest
		case tok == parsing.TOKDiv && rest.Sign() != 0 && rest.Sign() != y.Sign():
			n.Sub(n, big.NewInt(1))
		case tok == parsing.TOKDivide && rest.Sign() != 0:
			return nil
		}
	}
	if n.BitLen() > maxDigits*3 {
		return nil
	}
	return fromInteger(n)
}

// negated returns -v.
func negated(v any) any {
	n, isExact := v.(Number)
	if !isExact {
		f, _ := toFloat(v)
		return -f
	}
	text, negative := strings.CutPrefix(n.text, "-")
	if !negative {
		text = "-" + text
	}
	return Number{text, -n.near}
}

// absolute returns a number without its sign.
func absolute(v any) any {
	if f, _ := toFloat(v); f < 0 {
		return negated(v)
	}
	return v
}

// rounded returns a number rounded by round; an integer stays as it is.
func rounded(v any, round func(float64) float64) any {
	if integer(v) != nil {
		return v
	}
	f, _ := toFloat(v)
	return round(f)
}

// sum adds up a list of numbers.
func sum(_ *machine, args []any) (any, error) {
	var total any = 0.0
	for _, el := range args[0].([]any) {
		var err error
		if total, err = arithmetic(parsing.TOKPlus, total, el); err != nil {
			return nil, err
		}
	}
	return total, nil
}

// average returns the sum of a list divided by its length, or nil for an empty list.
func average(m *machine, args []any) (any, error) {
	count := len(args[0].([]any))
	if count == 0 {
		return nil, nil
	}
	total, err := sum(m, args)
	if err != nil {
		return nil, err
	}
	return arithmetic(parsing.TOKDivide, total, float64(count))
}

// literalMark begins the text that replaces a literal whose numbers need all their digits.
const literalMark = "\x00literal "

// exactLiterals replaces JSON literals (`…`) by marks, if the library's parser would change their digits.
// It returns the marked expression and the values of these literals.
func exactLiterals(text string) (marked string, values []any) {
	var out strings.Builder
	for i := 0; i < len(text); {
		end := PartEnd(text, i)
		part := text[i:end]
		if text[i] == '`' && len(part) > 2 {
			if v, exact := exactLiteral(part[1 : len(part)-1]); exact {
				mark, _ := jsontext.AppendQuote(nil, literalMark+strconv.Itoa(len(values)))
				part = "`" + string(mark) + "`"
				values = append(values, v)
			}
		}
		out.WriteString(part)
		i = end
	}
	return out.String(), values
}

// PartEnd returns the end of the quoted part of an expression that begins at from; any other byte is a part of its
// own.
func PartEnd(text string, from int) int {
	quote := text[from]
	if !strings.ContainsRune("'\"`", rune(quote)) {
		return from + 1
	}
	for i := from + 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case quote:
			return i + 1
		}
	}
	return len(text)
}

// exactLiteral decodes a JSON literal; exact = it contains a Number.
func exactLiteral(text string) (v any, exact bool) {
	v, _, err := Decode([]byte(strings.ReplaceAll(text, "\\`", "`")), maxText*cellBytes)
	return v, err == nil && hasNumber(v)
}

func hasNumber(v any) bool {
	switch v := v.(type) {
	case Number:
		return true
	case []any:
		for _, el := range v {
			if hasNumber(el) {
				return true
			}
		}
	case map[string]any:
		for _, el := range v {
			if hasNumber(el) {
				return true
			}
		}
	}
	return false
}

// literal returns the value of a literal of the tree, or of the literal that a mark replaced.
func (b *builder) literal(v any) any {
	text, _ := v.(string)
	if number, ok := strings.CutPrefix(text, literalMark); ok {
		if i, err := strconv.Atoi(number); err == nil && i < len(b.literals) {
			return b.literals[i]
		}
	}
	return v
}
