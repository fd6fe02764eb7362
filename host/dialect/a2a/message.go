package a2a

import (
	"cmp"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"a2e/protocol"
	"a2e/protocol/fleet"
)

// message is a message as the client wrote it, in any spelling.
type message struct {
	Role      string          `json:"role"`
	Parts     []part          `json:"parts"`
	MessageID string          `json:"messageId"`
	ContextID string          `json:"contextId"`
	TaskID    string          `json:"taskId"`
	Metadata  protocol.Object `json:"metadata"`
}

// part is a text or data; files are refused.
type part struct {
	Kind      string         `json:"kind,omitzero"` // of 0.3: text, data, file
	Text      *string        `json:"text,omitzero"`
	Data      jsontext.Value `json:"data,omitzero"`
	File      jsontext.Value `json:"file,omitzero"`      // of 0.3
	Raw       jsontext.Value `json:"raw,omitzero"`       // of a file, in 1.0
	URL       jsontext.Value `json:"url,omitzero"`       // of a file, in 1.0
	MediaType string         `json:"mediaType,omitzero"` // of 1.0
}

// maxID is the largest length of an id that a client chooses, in bytes.
const maxID = 256

// check returns what is wrong with a message. It gives an id to a message without one.
func (m *message) check() *rpcError {
	switch {
	case len(m.Parts) == 0:
		return invalid("message.parts is empty; it should hold a text, such as [{\"text\":\"what is to be done\"}]")
	case len(m.MessageID) > maxID || len(m.ContextID) > maxID || len(m.TaskID) > maxID:
		return invalid("messageId, contextId and taskId may have %d bytes each", maxID)
	case strings.ContainsRune(m.ContextID, 0):
		return invalid("message.contextId has a NUL character; should be text without any")
	case m.Role != "" && m.Role != "user" && m.Role != "ROLE_USER":
		return invalid("message.role is %.32q; a message to an agent has the role user (ROLE_USER in A2A 1.0)", m.Role)
	}
	for i, p := range m.Parts {
		if given(p.File) || given(p.Raw) || given(p.URL) {
			return &rpcError{
				Code: codeContentType,
				Message: "message.parts: files are not taken; send their text, or name files of the " +
					"worker's workspace in a text",
			}
		}
		if p.Text == nil && !given(p.Data) {
			return invalid("message.parts[%d] has neither text nor data", i)
		}
	}
	if m.MessageID == "" {
		m.MessageID = uuid.NewString()
	}
	return nil
}

// given reports whether a member is present and not null.
func given(v jsontext.Value) bool { return len(v) > 0 && v.Kind() != 'n' }

// text returns all parts of the message as one text.
func (m *message) text() string {
	var texts []string
	for _, p := range m.Parts {
		if p.Text != nil {
			texts = append(texts, *p.Text)
			continue
		}
		texts = append(texts, string(p.Data))
	}
	return strings.Join(texts, "\n\n")
}

// dispatch returns the task that a message asks for. The text is a TASK_DISPATCH in JSON or a brief, which may have the
// inline form. A task without an id gets taskID.
func (m *message) dispatch(taskID, token string) (*fleet.Dispatch, *rpcError) {
	d := &fleet.Dispatch{Type: fleet.TypeDispatch, ProtocolVersion: fleet.Version, Brief: m.text()}
	if text := strings.TrimSpace(d.Brief); strings.HasPrefix(text, "{") {
		var line protocol.Line
		if err := line.Scan([]byte(text)); err == nil && protocol.Type(line.Type) == fleet.TypeDispatch {
			d = new(fleet.Dispatch)
			if err := protocol.Decode(line.Object(), nil, d); err != nil {
				return nil, invalid("the %s does not fit the protocol: %v", fleet.TypeDispatch, err)
			}
		}
	}
	if strings.TrimSpace(d.Brief) == "" {
		return nil, invalid("the message has no text: it should say what to do")
	}
	if inline := *d; inline.ReadInline() == nil { // else the host reports what is wrong with the inline form
		d = &inline
	}
	d.Task.TaskID = cmp.Or(d.Task.TaskID, taskID)
	if d.AuthToken == "" {
		d.AuthToken = token
	}
	d.Task.ContextID = m.ContextID
	return d, nil
}

// handshakeContext begins the contextId of a greeting.
const handshakeContext = "handshake:"

// handshakeText begins the answer to a greeting. A SESSION_ANNOUNCE of the worker follows.
const handshakeText = "[A2A HANDSHAKE ACK v1]"
