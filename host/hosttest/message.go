package hosttest

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/hosttest/assert"
	"a2e/protocol"
)

// Message is one line that the host wrote.
type Message struct {
	Type  protocol.Type
	ID    string
	ReqID string
	Code  protocol.ErrorCode // of an `error`
	Line  []byte             // without its newline

	seq string // of a numbered event, else ""
}

// parse reads the fields of a line that a Pair needs.
func parse(line []byte) (Message, error) {
	var m struct {
		Type  protocol.Type      `json:"type"`
		ID    string             `json:"id"`
		ReqID string             `json:"req_id"`
		Code  protocol.ErrorCode `json:"code"`
		Seq   jsontext.Value     `json:"seq"`
	}
	err := json.Unmarshal(line, &m)
	msg := Message{Type: m.Type, ID: m.ID, ReqID: m.ReqID, Line: line, seq: string(m.Seq)}
	if m.Type == protocol.TypeError {
		msg.Code = m.Code
	}
	return msg, err
}

// IsEvent reports whether the message is an event. For a type that the protocol does not
// have, the end of its name decides.
func (m Message) IsEvent() bool {
	info, ok := protocol.Lookup(m.Type)
	if !ok {
		return strings.HasSuffix(string(m.Type), "/event") || strings.HasSuffix(string(m.Type), "/push")
	}
	return info.Direction == protocol.HostEvent
}

// IsRequest reports whether the message is a request of the host to the agent.
func (m Message) IsRequest() bool {
	info, ok := protocol.Lookup(m.Type)
	return ok && info.Direction == protocol.HostRequest
}

// Decode reads the message into a struct.
func (m Message) Decode(t testing.TB, dst any) {
	t.Helper()
	if err := json.Unmarshal(m.Line, dst); err != nil {
		t.Fatalf("%v in %s", err, m.Line)
	}
}

// Get returns the value at a JSON Pointer, such as "/data/tool_name", as text: a
// string without its quotes, other values as JSON, "" if there is no value.
func (m Message) Get(pointer string) string {
	var doc any
	if json.Unmarshal(m.Line, &doc, json.WithUnmarshalers(json.UnmarshalFromFunc(rawNumber))) != nil {
		return ""
	}
	for token := range jsontext.Pointer(pointer).Tokens() {
		switch at := doc.(type) {
		case map[string]any:
			doc = at[token]
		case []any:
			var i int
			if _, err := fmt.Sscan(token, &i); err != nil || i < 0 || i >= len(at) {
				return ""
			}
			doc = at[i]
		default:
			return ""
		}
	}
	switch v := doc.(type) {
	case nil:
		return ""
	case string:
		return v
	}
	b, _ := json.Marshal(doc, json.Deterministic(true))
	return string(b)
}

// Has fails the test unless Get returns the value of each pair. pairs are a pointer, its value, and so on.
func (m Message) Has(t testing.TB, pairs ...string) {
	t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		assert.Equal(t, m.Get(pairs[i]), pairs[i+1], "%s of %s", pairs[i], m.Line)
	}
}

// rawNumber keeps the digits of numbers.
func rawNumber(dec *jsontext.Decoder, v *any) error {
	if dec.PeekKind() != '0' {
		return errors.ErrUnsupported
	}
	val, err := dec.ReadValue()
	*v = val.Clone()
	return err
}

// String returns the line.
func (m Message) String() string { return string(m.Line) }

// Problem returns the path of a `schema_violation`'s first error.
func (m Message) Problem() string { return m.Get("/detail/errors/0/path") }
