package exec

import (
	"strconv"

	"a2e/protocol"
)

// ended says how a child ended.
type ended struct {
	how   string
	words string // the end of its stderr
}

// Error implements error.
func (e *ended) Error() string {
	if e.words == "" {
		return "the child ended: " + e.how
	}
	return "the child ended: " + e.how + "; its stderr ends with: " + e.words
}

// number reads an id that the plugin gave.
func number(id protocol.Value) (uint64, bool) {
	text, ok := id.Str()
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(text, 10, 64)
	return n, err == nil
}

// appendMembers appends the members of a message that are no envelope, each behind a
// comma.
func appendMembers(dst []byte, obj protocol.Object, but ...string) []byte {
	for key, val := range obj.All() {
		switch string(key) {
		case "a2e", "version", "type", "id", "ts", "req_id":
			continue
		}
		if len(but) > 0 && string(key) == but[0] {
			continue
		}
		dst = append(protocol.AppendString(append(dst, ','), key), ':')
		dst = append(dst, val...)
	}
	return dst
}

// bodyOf gives a message without its envelope, in memory of its own.
func bodyOf(obj protocol.Object, but ...string) []byte {
	body := append(appendMembers(make([]byte, 0, len(obj.Raw())), obj, but...), '}')
	if len(body) == 1 {
		return []byte("{}")
	}
	body[0] = '{'
	return body
}
