package httpd

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"a2e/protocol"
	rpc "a2e/protocol/jsonrpc"
)

// bom is the byte order mark, which some editors and shells write at the beginning of a text.
var bom = []byte("\ufeff")

// message is one message of a POST to /mcp.
type message struct {
	rpc.Request
	raw   []byte
	fault *rpc.Error // what is wrong with it; nil = the go-sdk accepts it
}

// messages reads the body of a POST. err is for a fault of the whole body.
func messages(r *http.Request) (all []message, isBatch bool, err error) {
	if r.Method != http.MethodPost {
		return nil, false, nil
	}
	body, err := io.ReadAll(r.Body)
	body = bytes.TrimSpace(bytes.TrimPrefix(body, bom))
	if err != nil {
		return []message{readMessage(body)}, false, err // the id may be readable in a body that is too long
	}
	if !bytes.HasPrefix(body, []byte{'['}) {
		return []message{readMessage(body)}, false, nil
	}
	items, ok := protocol.SplitArray(body)
	switch {
	case !ok:
		return nil, true, rpc.Errorf(rpc.CodeParse, "the body is not valid JSON")
	case len(items) == 0:
		return nil, true, rpc.Invalid("a batch has at least one message")
	case r.Header.Get(mcpVersion) > lastBatches:
		return nil, true, rpc.Invalid("batches are of the version " + lastBatches + "; send one message a request")
	}
	for i, item := range items {
		m := readMessage(item)
		if m.fault != nil && m.ID == nil {
			why := "message %d of the batch, whose id cannot be read: %s"
			return nil, true, rpc.Errorf(m.fault.Code, why, i+1, m.fault.Message)
		}
		all = append(all, m)
	}
	return all, true, nil
}

// lastBatches is the last version of MCP that has batches.
const lastBatches = "2025-03-26"

// readMessage reads one message and finds faults for which the go-sdk would refuse the whole body in plain text.
func readMessage(raw []byte) message {
	var line protocol.Line
	err := line.Scan(raw)
	m := message{raw: raw}
	m.Request, m.fault = rpc.Parse(line.Object())
	if m.ID.Kind() == 'n' {
		m.ID = nil
	}
	own, _ := errors.AsType[*protocol.Error](err)
	switch {
	case own != nil && own.Code == protocol.CodeParseError:
		m.fault = rpc.Errorf(rpc.CodeParse, "%s", own.Message)
	case !bytes.HasPrefix(raw, []byte{'{'}):
		m.fault = rpc.Invalid("a message is a JSON object")
	case own != nil:
		m.fault = rpc.Invalid(own.Message)
	case m.fault != nil:
	case !exactID(m.ID):
		m.fault = rpc.Invalid("an id must be a string, or a whole number of at most 2^53")
	case m.Answer:
		if _, err := jsonrpc.DecodeMessage(raw); err != nil {
			m.fault = rpc.Invalid(`an answer needs an "id", and a "result" or an "error" with a code and a message`)
		}
	case !m.Notification:
		m.fault = m.unserved()
	}
	if m.Answer && m.fault != nil { // its id is not that of a request
		m.ID = nil
	}
	return m
}

// The methods that the go-sdk accepts, with params and without.
const (
	methodsWith = "initialize tools/call prompts/get resources/read resources/subscribe resources/unsubscribe " +
		"completion/complete logging/setLevel subscriptions/listen"
	methodsWithout = "ping tools/list prompts/list resources/list resources/templates/list server/discover"
)

// unserved returns what is wrong with a request that the go-sdk would refuse in plain text; nil = nothing.
func (m *message) unserved() *rpc.Error {
	needs := slices.Contains(strings.Fields(methodsWith), m.Method)
	switch {
	case m.ID == nil:
		return rpc.Invalid(`"id" must be a string or a number; a notification has none`)
	case needs && m.Shape != '{':
		return rpc.Errorf(rpc.CodeInvalidParams, "%s needs params, an object", m.Method)
	case !needs && !slices.Contains(strings.Fields(methodsWithout), m.Method):
		return rpc.Errorf(rpc.CodeMethodNotFound, "unknown method %.64q", m.Method)
	}
	return nil
}

// passedOver reports whether a notification is dropped, because the go-sdk does not know it. It gets no answer.
func (m *message) passedOver() bool {
	switch m.Method {
	case "notifications/initialized", "notifications/roots/list_changed":
		return false
	case "notifications/cancelled", "notifications/progress":
		return m.Shape != '{'
	}
	return m.Notification
}

// exactID reports whether the go-sdk keeps an id as it is. The go-sdk converts numbers by floating point, so only whole
// numbers up to 2^53 are exact.
func exactID(id jsontext.Value) bool {
	n, err := strconv.ParseInt(string(id), 10, 64)
	return id.Kind() != '0' || err == nil && n <= 1<<53 && n >= -1<<53
}

// sdkID returns an exact id as the go-sdk stores it.
func sdkID(id jsontext.Value) any {
	if text, ok := protocol.Value(id).Str(); ok {
		return text
	}
	n, _ := strconv.ParseInt(string(id), 10, 64)
	return n
}

// fail answers a request to /mcp with a JSON-RPC error; a nil id becomes null.
func fail(w http.ResponseWriter, status int, id jsontext.Value, e *rpc.Error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(rpc.AppendFailure(nil, id, e.Code, e.Message, nil)) // fails if the client has gone
}

// failBody answers a POST to /mcp whose body cannot be read.
func failBody(w http.ResponseWriter, id jsontext.Value, err error) {
	fault, ok := errors.AsType[*rpc.Error](err)
	if ok {
		fail(w, http.StatusBadRequest, id, fault)
		return
	}
	status, why := bodyFault(err)
	fail(w, status, id, rpc.Invalid(why.Error()))
}

// refuse answers a message with its fault.
func (m *message) refuse(w http.ResponseWriter) {
	status := http.StatusOK
	if m.ID == nil || !exactID(m.ID) {
		status = http.StatusBadRequest
	}
	fail(w, status, m.ID, m.fault)
}
