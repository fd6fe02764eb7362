package protocol

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// Version is the protocol version this host writes and the major it accepts.
const Version = "1.0"

// Line is one scanned line: its envelope, and where its members are. A Line can
// be scanned again for the next line; its slices point into the bytes scanned,
// so they are valid as long as those are.
type Line struct {
	Type          []byte // decoded; empty when missing
	ID            Value  // raw JSON string; nil when missing or null
	ReqID         Value  // raw JSON string; nil when missing or null
	CorrelationID Value  // raw JSON; nil when missing
	Timeout       Value  // raw JSON; nil when missing
	Streaming     Value  // raw JSON; nil when missing
	RPC           bool   // has a `jsonrpc` key; of a line that is no object: has that word in quotes

	raw     []byte
	object  Object
	scan    scanner
	stamps  [2]Value // a2e, version
	badType bool     // type is there and no string
	badID   bool     // id or req_id is there and no string
}

// Scan checks raw, which must hold one JSON object, and finds its envelope. The
// error is an *Error: `parse_error` when raw is no JSON, `invalid_message` when
// it is no object or names a key twice. After an error the envelope and Object
// are what can be told of the message all the same; see outline.
func (l *Line) Scan(raw []byte) error {
	s := &l.scan
	s.reset(raw)
	err := s.document()
	l.raw, l.object, l.stamps = raw, Object{}, [2]Value{}
	l.Type, l.ID, l.ReqID = nil, nil, nil
	l.CorrelationID, l.Timeout, l.Streaming = nil, nil, nil
	l.RPC, l.badType, l.badID = false, false, false
	if err != nil {
		l.object = Object{text: raw, at: span{0, uint32(len(raw))}, members: outline(raw)}
		l.envelope()
		l.looks()
		if s.dup {
			return Errorf(CodeInvalidMessage, "%w; each key may appear once", err)
		}
		return Errorf(CodeParseError, "the line is not valid JSON: %w", err)
	}
	switch l.object = whole(raw, s.members); raw[l.object.at.from] {
	case '{':
		l.envelope()
		return nil
	case '[':
		l.looks()
		return Errorf(CodeInvalidMessage, "%w; send one object with a \"type\" per line", ErrArray)
	}
	return Errorf(CodeInvalidMessage, "the line is valid JSON but not an object; send one object with a \"type\" "+
		"per line")
}

// ErrArray is what is wrong with a line that is a JSON array, such as a JSON-RPC batch.
var ErrArray = errors.New("the line is valid JSON but not an object")

// looks guesses at the protocol of a line that cannot be read as an object.
func (l *Line) looks() {
	l.RPC = l.RPC || len(l.Type) == 0 && bytes.Contains(l.raw, []byte(`"jsonrpc"`))
}

// envelope picks the envelope's fields out of the table.
func (l *Line) envelope() {
	for i := 0; i < len(l.object.members); i += l.object.members[i].step() {
		m := &l.object.members[i]
		val := Value(m.val.of(l.raw))
		switch string(m.key.text(l.raw)) {
		case "type":
			text, ok := val.text()
			l.Type, l.badType = text, !ok
		case "id":
			l.ID = l.ident(val)
		case "req_id":
			l.ReqID = l.ident(val)
		case "correlation_id":
			l.CorrelationID = val
		case "timeout":
			l.Timeout = val
		case "streaming":
			l.Streaming = val
		case "a2e":
			l.stamps[0] = val
		case "version":
			l.stamps[1] = val
		case "jsonrpc":
			l.RPC = true
		}
	}
}

func (l *Line) ident(val Value) Value {
	switch val.Kind() {
	case '"':
		return val
	case 'n':
		return nil
	case '0': // some clients count; the answer carries the digits as a text
		return append(append(Value{'"'}, val...), '"')
	}
	l.badID = true
	return nil
}

// Check looks at what every message must have: a type, string ids, and version
// stamps of major 1. The error is an *Error.
func (l *Line) Check() error {
	switch {
	case l.badType || l.badID:
		return Errorf(CodeInvalidMessage, `"type" must be a string, "id" and "req_id" a string or a number`)
	case len(l.Type) == 0:
		return Errorf(CodeInvalidMessage, "the message has no \"type\"; send one of the protocol's types, such as "+
			"\"handshake/req\"")
	}
	for _, stamp := range l.stamps {
		if stamp == nil || stamp.Kind() == 'n' {
			continue
		}
		text, ok := stamp.Str()
		if major, _, _ := strings.Cut(text, "."); !ok || major != "1" {
			return Errorf(CodeVersionMismatch, "the message says version %.32s; this host speaks %s", stamp, Version)
		}
	}
	return nil
}

// Raw returns the bytes scanned.
func (l *Line) Raw() []byte { return l.raw }

// Object returns the whole message as an object, envelope included. After an error of Scan it has those members whose
// value can be read, and its Raw is the line.
func (l *Line) Object() Object { return l.object }

// Value is the raw JSON of one value, without white space around it. The zero
// Value means that there is none.
type Value []byte

// Kind returns the value's kind: 'n' null, 't' or 'f' a boolean, '"' a string, '0'
// a number, '{' an object, '[' an array, 0 no value.
func (v Value) Kind() byte {
	if len(v) == 0 {
		return 0
	}
	if c := v[0]; c == '-' || c-'0' < 10 {
		return '0'
	}
	return v[0]
}

// Str returns the text of a string value; ok reports whether it is one.
func (v Value) Str() (text string, ok bool) {
	b, ok := v.text()
	return string(b), ok
}

// Int returns an integer; ok reports whether the value is one that fits. 30.0 and
// 3e1 are integers too, as JSON Schema has it.
func (v Value) Int() (n int, ok bool) {
	const longest = 1 << 10           // bytes; to read one of megabytes takes tens of milliseconds
	if v == nil || len(v) > longest { // none, as in most requests: Atoi would allocate an error
		return 0, false
	}
	n, err := strconv.Atoi(string(v))
	if err == nil || v.Kind() != '0' {
		return n, err == nil
	}
	f, err := strconv.ParseFloat(string(v), 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
		return 0, false
	}
	return int(f), true
}

// text returns the text of a string value without a copy where it has no escapes.
func (v Value) text() ([]byte, bool) {
	if v.Kind() != '"' {
		return nil, false
	}
	inner := v[1 : len(v)-1]
	if plain(inner) == len(inner) {
		return inner, true
	}
	return unquote(v), true
}

// unquote decodes a valid JSON string.
func unquote(quoted []byte) []byte {
	text, err := jsontext.AppendUnquote(nil, quoted)
	if err != nil {
		panic(fmt.Sprintf("protocol: unquote of an unchecked string: %v", err))
	}
	return text
}
