package client

import (
	"fmt"
	"strconv"

	"a2e/protocol"
)

// Message is one message from the host.
type Message struct {
	Type  protocol.Type // "" on a line that has none, such as JSON-RPC
	ID    string
	ReqID string // the id of the request that it belongs to; "" = none
	Seq   int    // of an event: 0,1,2… within its request
	Raw   []byte // the whole line; the Message owns it

	object protocol.Object
}

// Decode reads the message into dst, a pointer to the struct of its type or to
// any other struct with json tags. Absent fields get the schema's defaults.
func (m Message) Decode(dst any) error {
	if err := protocol.Decode(m.object, nil, dst); err != nil {
		return fmt.Errorf("client: %s from the host: %w", m.Type, err)
	}
	return nil
}

// Field returns the raw JSON of one field.
func (m Message) Field(name string) (protocol.Value, bool) { return m.object.Get(name) }

// parse reads a line as a message that keeps it.
func parse(raw []byte) (Message, error) {
	var line protocol.Line
	if err := line.Scan(raw); err != nil {
		return Message{}, fmt.Errorf("it wrote a line that is no message (%.80q): %w", raw, err)
	}
	m := Message{Type: protocol.Type(line.Type), Raw: raw, object: line.Object()}
	m.ID, _ = line.ID.Str()
	m.ReqID, _ = line.ReqID.Str()
	if seq, ok := m.object.Get("seq"); ok {
		m.Seq, _ = strconv.Atoi(string(seq)) // what is no integer counts as 0
	}
	return m, nil
}
