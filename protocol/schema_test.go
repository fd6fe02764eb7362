package protocol_test

import (
	"bytes"
	"os"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"a2e/protocol"
)

// wireType is one line of messages.json.
type wireType struct {
	Type       string         `json:"type"`
	Capability string         `json:"capability"`
	Direction  string         `json:"direction"`
	Schema     map[string]any `json:"schema"`

	compiled *jsonschema.Schema
}

// envelope names the fields that the host splices in around a struct.
var envelope = map[string]bool{"a2e": true, "version": true, "type": true, "id": true, "ts": true, "req_id": true}

// loadWire reads messages.json and compiles its schemas.
func loadWire(t *testing.T) []wireType {
	t.Helper()
	raw, err := os.ReadFile("../testdata/wire/messages.json")
	if err != nil {
		t.Fatal(err)
	}
	var rows []wireType
	if err := json.Unmarshal(raw, &rows); err != nil {
		t.Fatal(err)
	}
	docs, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	for i, doc := range docs.([]any) {
		url := "a2e:" + rows[i].Type
		if err := compiler.AddResource(url, doc.(map[string]any)["schema"]); err != nil {
			t.Fatal(err)
		}
		if rows[i].compiled, err = compiler.Compile(url); err != nil {
			t.Fatal(err)
		}
	}
	return rows
}

// validate holds one line against the schema of its type.
func (w *wireType) validate(t *testing.T, line []byte) {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(line))
	if err != nil {
		t.Fatalf("%s: %v in %s", w.Type, err, line)
	}
	if err := w.compiled.Validate(doc); err != nil {
		t.Errorf("%s: %v\n%s", w.Type, err, line)
	}
}

// message builds the line of a struct as the host does.
func message(t *testing.T, info *protocol.Info, body any) []byte {
	t.Helper()
	var reqID protocol.Value
	switch info.Direction {
	case protocol.AgentResponse, protocol.HostResponse, protocol.HostEvent:
		reqID = protocol.Value(`"0000000000000000000000000000a2e0"`)
	}
	id := []byte("0123456789abcdef0123456789abcdef")
	line := protocol.AppendHeader(nil, info.Type, id, time.Unix(1767225600, 500_000_000), reqID)
	line, err := protocol.AppendBody(line, body)
	if err != nil {
		t.Fatalf("%s: %v", info.Type, err)
	}
	return line
}
