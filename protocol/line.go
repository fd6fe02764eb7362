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
// be reused for the next line. Its slices point into the scanned bytes and are
// valid as long as those.
type Line struct {
	Type          []byte // decoded; empty when missing
	ID            Value  // raw JSON string; nil when missing or null
	ReqID         Value  // raw JSON string; nil when missing or null
	CorrelationID Value  // raw JSON; nil when missing
	Timeout       Value  // raw JSON; nil when missing
	Streaming     Value  // raw JSON; nil when missing
	RPC           bool   // has a `jsonrpc` key or, if the line is not an object, that word in quotes

	raw     []byte
	object  Object
	scan    scanner
	stamps  [2]Value // a2e, version
	badType bool     // type is present but not a string
	badID   bool     // id or req_id is present but neither a string nor a number
}

// Scan checks raw, which must be one JSON object, and finds its envelope. The
// error is an *Error: `parse_error` if raw is not JSON, `invalid_message` if
// it is not an object or has a key twice. After an error the envelope and Object
// have the part of the message that can still be read; see outline.
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

// ErrArray is the error for a line that is a JSON array, such as a JSON-RPC batch.
var ErrArray = errors.New("the line is valid JSON but not an object")

// looks guesses whether a line that cannot be read as an object is JSON-RPC.
func (l *Line) looks() {
	l.RPC = l.RPC || len(l.Type) == 0 && bytes.Contains(l.raw, []byte(`"jsonrpc"`))
}

// envelope sets the envelope fields from the table of members.
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
	case '0': // some clients send numbers; the answer has the digits as a string
		return append(append(Value{'"'}, val...), '"')
	}
	l.badID = true
	return nil
}

// Check checks what every message must have: a type, valid ids, and version
// stamps of major version 1. The error is an *Error.
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

// Object returns the whole message as an object, including the envelope. After an error of Scan it has the members
// whose values can be read, and its Raw is the line.
func (l *Line) Object() Object { return l.object }

// Value is the raw JSON of one value, without white space around it. The zero
// Value means that the value is absent.
type Value []byte

// Kind returns the value's kind: 'n' null, 't' or 'f' a boolean, '"' a string, '0'
// a number, '{' an object, '[' an array, 0 an absent value.
func (v Value) Kind() byte {
	if len(v) == 0 {
		return 0
	}
	if c := v[0]; c == '-' || c-'0' < 10 {
		return '0'
	}
	return v[0]
}

// Str returns the text of a string value; ok reports whether the value is a string.
func (v Value) Str() (text string, ok bool) {
	b, ok := v.text()
	return string(b), ok
}

// Scalar returns the text of a string, or a number, true or false as it is written; ok is false for any other value.
func (v Value) Scalar() (text string, ok bool) {
	switch v.Kind() {
	case '"':
		return v.Str()
	case '0', 't', 'f':
		return string(v), true
	}
	return "", false
}

// Int returns an integer; ok reports whether the value is an integer that fits into
// an int. 30.0 and 3e1 are integers too, as in JSON Schema.
func (v Value) Int() (n int, ok bool) {
	const longest = 1 << 10           // bytes; parsing a number of megabytes takes tens of milliseconds
	if v == nil || len(v) > longest { // nil, as in most requests: Atoi would allocate an error
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

// text returns the text of a string value. It does not copy a text without escapes.
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
