package link

import (
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

const (
	maxToken = 300 // bytes of a name or an id that are kept
	maxHeads = 64  // messages of a batch that are looked at
)

// envelope finds the ids of answers in a text that cannot be decoded, such as one that is too long
// to be kept. It takes the text piece by piece.
type envelope struct {
	top     int    // the level of a message: 1, or 2 in a batch
	level   int    // of objects and arrays
	inText  bool   // within a string
	escaped bool   // behind a backslash
	token   []byte // the string or number under way at the level of a message
	name    string // the last name there; "" = a name comes next
	heads   []head // of the messages so far
}

// head is what is known of one message.
type head struct {
	id                    jsontext.Value
	version, call, closed bool
	answer                bool // it has a result or an error
}

// Write implements io.Writer. It returns no error.
func (e *envelope) Write(p []byte) (int, error) {
	e.take(p)
	return len(p), nil
}

// take reads a piece of the text.
func (e *envelope) take(p []byte) {
	for _, c := range p {
		switch {
		case e.escaped:
			e.escaped = false
		case e.inText && c == '\\':
			e.escaped = true
		case c == '"':
			e.inText = !e.inText
		case !e.inText && strings.IndexByte("{}[]:,", c) >= 0:
			e.structure(c)
			continue
		}
		if e.level == e.top && len(e.token) < maxToken && (e.inText || c > ' ') {
			e.token = append(e.token, c)
		}
	}
}

// structure handles a character that is not part of a string or a number.
func (e *envelope) structure(c byte) {
	if e.level == 0 && c == '[' && e.top == 0 {
		e.top = 2
	} else if e.top == 0 {
		e.top = 1
	}
	switch c {
	case '{', '[':
		if e.level++; e.level == e.top && c == '{' && len(e.heads) < maxHeads {
			e.heads, e.name, e.token = append(e.heads, head{}), "", nil
		}
	case ':':
		e.named()
	case ',', '}', ']':
		if e.level == e.top {
			e.valued(c == '}')
		}
		if c != ',' {
			e.level--
		}
	}
}

// named handles the name of a member.
func (e *envelope) named() {
	if e.level != e.top || len(e.heads) == 0 || e.name != "" {
		return
	}
	h := &e.heads[len(e.heads)-1]
	e.name, e.token = string(e.token), nil
	switch e.name {
	case `"jsonrpc"`:
		h.version = true
	case `"method"`:
		h.call = true
	case `"result"`, `"error"`:
		h.answer = true
	}
}

// valued handles the value of a member.
func (e *envelope) valued(last bool) {
	if len(e.heads) == 0 {
		return
	}
	h := &e.heads[len(e.heads)-1]
	if e.name == `"id"` && len(e.token) < maxToken {
		h.id = jsontext.Value(e.token)
	}
	h.closed = h.closed || last
	e.name, e.token = "", nil
}

// failed returns errors for the requests that the text answers. own is the request of an answer without an
// id.
func (e *envelope) failed(own jsonrpc.ID, why error) (all []message) {
	for _, h := range e.heads {
		if !h.version || h.call || !h.answer && !h.closed {
			continue
		}
		id := own
		if number, ok := integer(h.id); ok {
			id, _ = jsonrpc.MakeID(float64(number)) // a number is always an id
		}
		if id.IsValid() {
			all = append(all, message{Message: unfit(id, why)})
		}
	}
	return all
}
