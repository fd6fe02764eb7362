package jmes

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/protocol"
)

// Decode makes a value from JSON text. cost is about how many bytes the value takes in memory; if that is
// more than limit, the error is ErrTooLarge.
func Decode(raw []byte, limit int) (v any, cost int, err error) {
	d := decoder{dec: jsontext.NewDecoder(bytes.NewBuffer(raw), jsontext.AllowDuplicateNames(true),
		jsontext.AllowInvalidUTF8(true)), limit: limit}
	if v, err = d.value(); err != nil {
		return nil, 0, err
	}
	if _, err := d.dec.ReadToken(); err != io.EOF {
		return nil, 0, errBroken
	}
	return v, d.cost, nil
}

var errBroken = errors.New("it is not JSON")

// maxJSONDepth bounds the nesting of text that nobody checked; it is more than the wire allows.
const maxJSONDepth = 2000

type decoder struct {
	dec         *jsontext.Decoder
	cost, limit int
}

func (d *decoder) value() (any, error) {
	if d.cost += cellBytes; d.cost > d.limit {
		return nil, ErrTooLarge
	}
	tok, err := d.dec.ReadToken()
	if err != nil || d.dec.StackDepth() > maxJSONDepth {
		return nil, errBroken
	}
	switch tok.Kind() {
	case '"':
		text := tok.String()
		d.cost += len(text)
		return text, nil
	case '0':
		n := parseNumber(tok.String())
		if exact, ok := n.(Number); ok {
			d.cost += len(exact.text)
		}
		return n, nil
	case 't', 'f':
		return tok.Bool(), nil
	case '{':
		d.cost += entryBytes
		return d.object()
	case '[':
		d.cost += cellBytes
		return d.list()
	}
	return nil, nil
}

func (d *decoder) list() (any, error) {
	list := []any{}
	for d.dec.PeekKind() != ']' {
		el, err := d.value()
		if err != nil {
			return nil, err
		}
		list = append(list, el)
	}
	_, err := d.dec.ReadToken()
	return list, err
}

func (d *decoder) object() (any, error) {
	object := map[string]any{}
	for d.dec.PeekKind() != '}' {
		key, err := d.dec.ReadToken()
		if err != nil {
			return nil, errBroken
		}
		name := key.String()
		if object[name], err = d.value(); err != nil {
			return nil, err
		}
		d.cost += entryBytes + len(name)
	}
	_, err := d.dec.ReadToken()
	return object, err
}

// maxNesting bounds the nesting of a value that Append writes; a message allows little more.
const maxNesting = 900

// Append appends a value as JSON, with the members of objects in the order of their keys. The error says
// that it takes more than limit bytes, or which part is not JSON.
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
	if len(e.dst)-e.start > e.limit { // a part that a value contains many times counts each time
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
		e.dst = jsontext.AppendFloat(e.dst, v, 64)
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
		return errors.New("is an expression (&…), which is not a value")
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
