package link

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"a2e/protocol"
)

// The bounds of one message.
const (
	maxLine     = 16 << 20 // bytes
	maxBranches = 1 << 18  // JSON objects and arrays: one of two bytes needs hundreds in memory
	maxDepth    = 1000     // levels of them, as for the SDK
	maxQuoted   = 100      // bytes of a message that an error shows
)

// errLong is the error for a message of more than maxLine bytes.
var errLong = errors.New("it is longer than 16 MiB, the limit for one message")

// The codes of errors that this side puts in place of an answer. No server uses them.
const (
	codeUnfit = math.MinInt64 + iota // the answer cannot be used
	codeLost                         // there will be no answer
)

// The methods of messages that this package inspects.
const (
	methodInitialize = "initialize"
	methodDiscover   = "server/discover"
	methodListen     = "subscriptions/listen"
	methodCancelled  = "notifications/cancelled"
	methodProgress   = "notifications/progress"
)

// message is a message of the server. The id of a request is the text of the id as it came: the SDK would
// change a number such as 1765432109876543210.
type message struct {
	jsonrpc.Message
	text []byte // as it came; nil = the SDK would read another message from it
	size int    // bytes, as it came
}

// encoded returns the text from which the SDK reads the message.
func (m *message) encoded() ([]byte, error) {
	if m.text != nil {
		return m.text, nil
	}
	return jsonrpc.EncodeMessage(m.Message)
}

// lenient returns the options for JSON of servers: some repeat names in an object, some cut characters in
// half.
func lenient() json.Options {
	return json.JoinOptions(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
}

// trim returns a text without a byte order mark and without the space around it.
func trim(text []byte) []byte {
	return bytes.TrimSpace(bytes.TrimPrefix(bytes.TrimSpace(text), []byte("\ufeff")))
}

// read decodes a text of the server: one message, or a batch of them. A part that is not a message is
// skipped alone; if it is an answer, its request gets an error. own is the id of the request that the text
// belongs to, if it is valid: an answer without an id of its own is the answer to that request.
func (c *conn) read(text []byte, own jsonrpc.ID) (all []message) {
	text = trim(text)
	parts, err := split(text)
	if err != nil {
		return c.unread(text, own, err)
	}
	for _, part := range parts {
		m, err := decode(part, own)
		if err != nil {
			all = append(all, c.unread(part, own, err)...)
			continue
		}
		if answer, ok := m.Message.(*jsonrpc.Response); ok && answer.Error == nil && answer.ID.Raw() == c.hello.Load() {
			m.text = nil
			result, err := introduction(jsontext.Value(answer.Result))
			if answer.Result = []byte(result); err != nil {
				answer.Error = unfit(answer.ID, err).Error
			}
		}
		all = append(all, m)
	}
	return all
}

// unread skips a text that cannot be decoded. It returns errors for the requests that the text answers.
func (c *conn) unread(text []byte, own jsonrpc.ID, why error) []message {
	c.skip(text, why)
	var e envelope
	e.take(text)
	return e.failed(own, why)
}

// split returns the messages of a text.
func split(text []byte) ([]jsontext.Value, error) {
	if len(text) > maxLine {
		return nil, errLong
	}
	switch branches, depth := measure(text); {
	case branches > maxBranches:
		return nil, fmt.Errorf("it has more than %d JSON objects and arrays", maxBranches)
	case depth > maxDepth:
		return nil, fmt.Errorf("it has more than %d levels of JSON objects and arrays", maxDepth)
	case len(text) == 0 || text[0] != '[':
		return []jsontext.Value{text}, nil
	}
	var parts []jsontext.Value
	err := json.Unmarshal(text, &parts, lenient())
	if err == nil && len(parts) == 0 {
		err = errors.New("it is a batch of no messages")
	}
	return parts, err
}

// measure counts the objects and arrays of a JSON text, and their levels.
func measure(text []byte) (branches, depth int) {
	inText, level := false, 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			inText = !inText
		case inText && c == '\\':
			i++
		case inText:
		case c == '{' || c == '[':
			branches++
			level++
			depth = max(depth, level)
		case c == '}' || c == ']':
			level--
		}
	}
	return branches, depth
}

// wire is a message with its members as they came.
type wire struct {
	Version jsontext.Value `json:"jsonrpc"`
	ID      jsontext.Value `json:"id"`
	Method  jsontext.Value `json:"method"`
	Params  jsontext.Value `json:"params"`
	Result  jsontext.Value `json:"result"`
	Error   jsontext.Value `json:"error"`
}

// decode reads one message.
func decode(text jsontext.Value, own jsonrpc.ID) (message, error) {
	if len(text) == 0 || text[0] != '{' {
		return message{}, errors.New("it is not a JSON object")
	}
	var w wire
	if err := json.Unmarshal(text, &w, lenient()); err != nil {
		return message{}, err
	}
	if string(w.Version) != `"2.0"` {
		return message{}, fmt.Errorf(`its "jsonrpc" is %s; it should be "2.0"`, quoted(w.Version))
	}
	m := message{size: len(text)}
	var err error
	if w.Method != nil && w.Method.Kind() != 'n' {
		m.Message, err = w.request()
	} else {
		m.Message, err = w.answer(own)
	}
	if err == nil && w.readsAlike(m.Message) {
		m.text = text
	}
	return m, err
}

// readsAlike reports whether the SDK reads the same message from the text as it came.
func (w *wire) readsAlike(m jsonrpc.Message) bool {
	switch m := m.(type) {
	case *jsonrpc.Request:
		return !m.IsCall() && m.Method != methodCancelled
	case *jsonrpc.Response:
		return w.Error == nil && w.Method == nil && string(w.ID) == fmt.Sprint(m.ID.Raw())
	}
	return false
}

// request reads a request or a notification.
func (w *wire) request() (jsonrpc.Message, error) {
	req := &jsonrpc.Request{Params: []byte(w.Params)}
	if json.Unmarshal(w.Method, &req.Method, lenient()) != nil || req.Method == "" {
		return nil, fmt.Errorf("its method is %s; it should be the name of one", quoted(w.Method))
	}
	switch w.ID.Kind() {
	case '"', '0':
		req.ID = textID(string(w.ID))
	case 0, 'n':
	default:
		return nil, fmt.Errorf("its id is %s; it should be a string or a number", quoted(w.ID))
	}
	if req.Method == methodCancelled { // requestId becomes the text of the id, as in message
		var params map[string]jsontext.Value
		if json.Unmarshal(w.Params, &params, lenient()) != nil || params["requestId"] == nil {
			return nil, errors.New("it cancels no request")
		}
		id, err := json.Marshal(string(params["requestId"]), lenient())
		if err != nil {
			return nil, err
		}
		req.Params, err = json.Marshal(map[string]jsontext.Value{"requestId": id})
		return req, err
	}
	return req, nil
}

// textID makes an id from a text.
func textID(text string) jsonrpc.ID {
	id, _ := jsonrpc.MakeID(text) // a text is always an id
	return id
}

// answer reads an answer. The SDK numbers its requests; some servers answer with "7" or 7.0 for 7.
func (w *wire) answer(own jsonrpc.ID) (jsonrpc.Message, error) {
	answer := &jsonrpc.Response{ID: own, Result: []byte(w.Result)}
	if number, ok := integer(w.ID); ok {
		answer.ID, _ = jsonrpc.MakeID(float64(number)) // a number is always an id
	} else if !own.IsValid() {
		return nil, fmt.Errorf("its id is %s; no request has it", quoted(w.ID))
	}
	switch w.Error.Kind() {
	case 0, 'n':
		if w.Result == nil {
			return nil, errors.New("it has neither a method nor a result nor an error")
		}
		return answer, nil
	case '{':
	default:
		return nil, fmt.Errorf("its error is %s; it should be an object", quoted(w.Error))
	}
	var e struct {
		Code    jsontext.Value `json:"code"`
		Message jsontext.Value `json:"message"`
		Data    jsontext.Value `json:"data"`
	}
	if err := json.Unmarshal(w.Error, &e, lenient()); err != nil {
		return nil, err
	}
	code, ok := integer(e.Code)
	if !ok {
		return nil, fmt.Errorf("its error is %s; the code in it should be an integer", quoted(w.Error))
	}
	answer.Result, answer.Error = nil, &jsonrpc.Error{Code: code, Message: words(e.Message), Data: []byte(e.Data)}
	return answer, nil
}

// unfit returns the answer that replaces one that cannot be used.
func unfit(id jsonrpc.ID, why error) *jsonrpc.Response {
	return &jsonrpc.Response{ID: id, Error: &jsonrpc.Error{Code: codeUnfit, Message: plain(why.Error())}}
}

// integer returns the whole number in a JSON number or in a string of digits; false = there is none.
func integer(v jsontext.Value) (int64, bool) {
	text := string(v)
	switch v.Kind() {
	case '"':
		text = strings.TrimSpace(words(v))
	case '0':
	default:
		return 0, false
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n, true
	}
	f, err := strconv.ParseFloat(text, 64)
	return int64(f), err == nil && f == math.Trunc(f) && math.Abs(f) < 1<<53
}

// words returns the text of a JSON string, any other value as it is written, and "" for null.
func words(v jsontext.Value) string {
	var text string
	switch {
	case v.Kind() == 'n':
		return ""
	case v.Kind() == '"' && json.Unmarshal(v, &text, lenient()) == nil:
		return text
	}
	return string(v)
}

// quoted returns the beginning of a value for an error.
func quoted(v jsontext.Value) string {
	if len(v) == 0 {
		return "missing"
	}
	return protocol.Clip(string(v), maxQuoted)
}

// encode returns the text of a message to the server: a request of Raw gets its own method, and an answer
// the id with which the request came.
func encode(msg jsonrpc.Message) ([]byte, error) {
	switch msg := msg.(type) {
	case *jsonrpc.Request:
		return jsonrpc.EncodeMessage(unwrap(msg))
	case *jsonrpc.Response:
		id, _ := msg.ID.Raw().(string)
		text, err := jsonrpc.EncodeMessage(&jsonrpc.Response{Result: msg.Result, Error: spoken(msg.Error)})
		if err != nil {
			return nil, err
		}
		return append([]byte(`{"id":`+id+`,`), text[1:]...), nil
	}
	return nil, fmt.Errorf("a message of an unknown kind: %T", msg)
}
