package protocol

import (
	"maps"
	"slices"
	"strconv"
)

// The handshake is read and written without json/v2: json/v2 analyses a struct at its first use, which
// would take 4 % of the time from the start of the host to its first answer.

// DecodeLine implements LineDecoder. For a line with a wrong type, json/v2 makes the error.
func (r *HandshakeRequest) DecodeLine(obj Object) error {
	for key, val := range obj.All() {
		fits := true
		switch string(key) {
		case "agent_id":
			r.AgentID, fits = val.Str()
		case "agent_caps":
			var names []string
			names, fits = val.Strings()
			r.AgentCaps = make([]Capability, len(names))
			for i, name := range names {
				r.AgentCaps[i] = Capability(name)
			}
		case "auth_token":
			r.AuthToken, fits = val.Str()
		}
		if !fits {
			*r = HandshakeRequest{}
			return obj.Decode(r)
		}
	}
	return nil
}

// AppendJSON implements Appender. It writes the same bytes as json/v2.
func (r *HandshakeResponse) AppendJSON(dst []byte) ([]byte, error) {
	dst = AppendString(append(dst, `{"session_id":`...), r.SessionID)
	dst = append(dst, `,"accepted_caps":[`...)
	var err error
	for i := range r.AcceptedCaps {
		row := &r.AcceptedCaps[i]
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = AppendString(append(dst, `{"capability":`...), row.Capability)
		dst = strconv.AppendBool(append(dst, `,"enabled":`...), row.Enabled)
		if dst, err = appendMap(append(dst, `,"metadata":`...), row.Metadata); err != nil {
			return dst, err
		}
		dst = append(dst, '}')
	}
	dst = strconv.AppendInt(append(dst, `],"max_parallel":`...), int64(r.MaxParallel), 10)
	dst = strconv.AppendBool(append(dst, `,"ok":`...), r.OK)
	dst = AppendString(append(dst, `,"reason":`...), r.Reason)
	if len(r.Metadata) > 0 {
		if dst, err = appendMap(append(dst, `,"metadata":`...), r.Metadata); err != nil {
			return dst, err
		}
	}
	return append(dst, '}'), nil
}

// appendMap appends an object with sorted keys. It encodes values of common types without json/v2.
func appendMap(dst []byte, m map[string]any) ([]byte, error) {
	dst = append(dst, '{')
	var err error
	for i, key := range slices.Sorted(maps.Keys(m)) {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(AppendString(dst, key), ':')
		switch v := m[key].(type) {
		case string:
			dst = AppendString(dst, v)
		case bool:
			dst = strconv.AppendBool(dst, v)
		case int:
			dst = strconv.AppendInt(dst, int64(v), 10)
		case []string:
			dst = appendStrings(dst, v)
		default:
			if dst, err = AppendJSON(dst, v); err != nil {
				return dst, err
			}
		}
	}
	return append(dst, '}'), nil
}

func appendStrings(dst []byte, all []string) []byte {
	dst = append(dst, '[')
	for i, text := range all {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = AppendString(dst, text)
	}
	return append(dst, ']')
}
