package jmes

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"a2e/protocol"
)

// maxNesting is how deep a value may be that leaves as JSON; a message bears little more.
const maxNesting = 900

// Append appends a value as JSON, the members of objects in the order of their keys. The
// error says that it takes more than limit bytes, or what part of it is no JSON.
func Append(dst []byte, v any, limit int) ([]byte, error) {
	e := encoder{dst: dst, start: len(dst), limit: limit}
	err := e.value(v, 0)
	return e.dst, err
}

// ErrTooLarge is the error of Append and Decode for a value beyond their limit.
var ErrTooLarge = errors.New("is too large")

type encoder struct {
	dst          []byte
	start, limit int
}

func (e *encoder) value(v any, deep int) error {
	if len(e.dst)-e.start > e.limit { // parts that stand in a value many times add up
		return fmt.Errorf("%w: more than %d bytes as JSON", ErrTooLarge, e.limit)
	}
	if deep > maxNesting {
		return fmt.Errorf("is nested deeper than %d", maxNesting)
	}
	switch v := v.(type) {
	case nil:
		e.dst = append(e.dst, "null"...)
	case bool:
		e.dst = strconv.AppendBool(e.dst, v)
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return errors.New("is a number that JSON does not have")
		}
		e.dst = appendFloat(e.dst, v)
	case Number:
		e.dst = append(e.dst, v.text...)
	case string:
		if len(v) > e.limit {
			return fmt.Errorf("%w: more than %d bytes as JSON", ErrTooLarge, e.limit)
		}
		e.dst = protocol.AppendString(e.dst, v)
	case []any:
		return e.list(v, deep)
	case map[string]any:
		return e.object(v, deep)
	default:
		return errors.New("is an expression (&…), which is no value")
	}
	return nil
}

func (e *encoder) list(list []any, deep int) error {
	e.dst = append(e.dst, '[')
	for i, el := range list {
		if i > 0 {
			e.dst = append(e.dst, ',')
		}
		if err := e.value(el, deep+1); err != nil {
			return err
		}
	}
	e.dst = append(e.dst, ']')
	return nil
}

func (e *encoder) object(object map[string]any, deep int) error {
	if len(object) == 0 {
		e.dst = append(e.dst, "{}"...)
		return nil
	}
	e.dst = append(e.dst, '{')
	for i, key := range slices.Sorted(maps.Keys(object)) {
		if i > 0 {
			e.dst = append(e.dst, ',')
		}
		e.dst = append(protocol.AppendString(e.dst, key), ':')
		if err := e.value(object[key], deep+1); err != nil {
			return err
		}
	}
	e.dst = append(e.dst, '}')
	return nil
}

// appendFloat appends a number as JSON, as ECMAScript writes it.
func appendFloat(dst []byte, f float64) []byte {
	if n := int64(f); float64(n) == f && n > -1e15 && n < 1e15 && (n != 0 || !math.Signbit(f)) {
		return strconv.AppendInt(dst, n, 10)
	}
	format := byte('f')
	if abs := math.Abs(f); abs != 0 && (abs < 1e-6 || abs >= 1e21) {
		format = 'e'
	}
	from := len(dst)
	dst = strconv.AppendFloat(dst, f, format, -1, 64)
	// e-09 is e-9 there
	if n := len(dst); format == 'e' && n-from >= 4 && dst[n-4] == 'e' && dst[n-2] == '0' {
		dst[n-2] = dst[n-1]
		dst = dst[:n-1]
	}
	return dst
}
