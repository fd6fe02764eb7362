package protocol_test

import (
	"bytes"
	"math"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"

	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// TestHandshakeAnswerIsThatOfJSON: the handwritten encoder of the handshake writes the same bytes as
// json/v2.
func TestHandshakeAnswerIsThatOfJSON(t *testing.T) {
	type plain protocol.HandshakeResponse
	text := "\x00\t\"\\/<&>\u2028 ü€𝄞"
	for _, r := range []protocol.HandshakeResponse{
		{},
		{
			AcceptedCaps: []protocol.CapabilityRow{}, Metadata: map[string]any{}, MaxParallel: -4,
			Reason: protocol.ReasonNoCaps,
		},
		{SessionID: text, OK: true, MaxParallel: math.MaxInt32, AcceptedCaps: []protocol.CapabilityRow{
			{Capability: protocol.CapTools, Enabled: true, Metadata: map[string]any{
				"name": text, text: "", "b": true, "a": false, "n": -12, "none": []string(nil), "empty": []string{},
				"list": []string{text, ""},
				"nil":  nil, "float": 1.5e300, "int64": int64(math.MinInt64), "uint": uint8(7),
				"map":   map[string]any{"z": 1, "a": []any{"x", nil}},
				"typed": protocol.CapTools, "rows": []map[string]string{{"b": "", "a": ""}}, "pointer": new(int),
			}},
			{Capability: "x"},
		}, Metadata: map[string]any{protocol.MetaUnknownCaps: []string{"a"}, protocol.MetaAvailableCaps: []string{}}},
	} {
		want := must.Get(json.Marshal((*plain)(&r), json.Deterministic(true)))(t)
		got := must.Get(protocol.AppendJSON([]byte("before"), &r))(t)
		if diff := cmp.Diff(string(want), string(bytes.TrimPrefix(got, []byte("before")))); diff != "" {
			t.Error(diff)
		}
	}
	bad := protocol.HandshakeResponse{AcceptedCaps: []protocol.CapabilityRow{{Metadata: map[string]any{"f": func() {}}}}}
	if got, err := protocol.AppendBody([]byte("head"), &bad); err == nil || string(got) != "head" {
		t.Errorf("metadata that do not encode: %s, %v", got, err)
	}
	invalid := protocol.HandshakeResponse{SessionID: "a\xff"}
	if got := must.Get(protocol.AppendJSON(nil, &invalid))(t); !bytes.Contains(got, []byte("a\ufffd")) {
		t.Errorf("text that is no UTF-8: %s", got)
	}
}

// TestHandshakeRequestIsThatOfJSON: the handwritten decoder of the handshake returns the values and
// errors of json/v2.
func TestHandshakeRequestIsThatOfJSON(t *testing.T) {
	for _, line := range []string{
		`{}`,
		`{"agent_id":"a","agent_caps":["tools","\u0065nv","no such"],"auth_token":"AGENT_TOKEN\"\n"}`,
		` { "agent_caps" : [ ] , "agent_id" : "ü" , "other" : [ { "agent_id" : 1 } ] } `,
		`{"agent_id":null,"agent_caps":null,"auth_token":null}`,
		`{"agent_id":"a","agent_caps":["tools",null],"auth_token":"AGENT_TOKEN"}`,
		`{"agent_id":"a","agent_caps":["tools",{"a":1}],"auth_token":"AGENT_TOKEN"}`,
		`{"agent_id":"a","agent_caps":"tools"}`,
		`{"agent_id":1,"auth_token":"AGENT_TOKEN"}`,
		`{"agent_id":"a","auth_token":["AGENT_TOKEN"]}`,
	} {
		obj := must.Get(protocol.ParseObject([]byte(line)))(t)
		var got, want protocol.HandshakeRequest
		gotErr, wantErr := protocol.Decode(obj, nil, &got), obj.Decode(&want)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", line, diff)
		}
		if (gotErr == nil) != (wantErr == nil) || gotErr != nil && gotErr.Error() != wantErr.Error() {
			t.Errorf("%s: error %v, want %v", line, gotErr, wantErr)
		}
	}
}
