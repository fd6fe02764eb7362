package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/google/jsonschema-go/jsonschema"

	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// TestMessagesAreDescribed: every message type and each of its fields has a description, and the schemas accept the
// sample messages.
func TestMessagesAreDescribed(t *testing.T) {
	schemas := map[string]*jsonschema.Resolved{}
	for _, m := range must.Get(messageSchemas())(t) {
		assert.That(t, strings.HasSuffix(m.Schema.Description, "."), "%s: %q is not a sentence", m.Type,
			m.Schema.Description)
		sentences(t, string(m.Type), m.Schema)
		schemas[string(m.Type)] = must.Get(m.Schema.Resolve(nil))(t)
	}
	for line := range bytes.Lines(hosttest.ReadTestdata(t, "wire/samples.ndjson")) {
		var message map[string]any
		must.OK(t, json.Unmarshal(line, &message))
		err := schemas[message["type"].(string)].Validate(message)
		assert.That(t, err == nil, "%s: %v", line, err)
	}
	page := must.Get(protocolReference())(t)
	for _, want := range []string{"### `tool/call/req`", "| `timeout` | integer | `30` | Time limit of the call, in " +
		"seconds. |", "| `arguments` | object | required |", `| "working", "episodic", "semantic" |`} {
		assert.Contains(t, page, want)
	}
	assert.Equal(t, strings.Count(page, "\n### `"), len(protocol.Types()))
}

func sentences(t *testing.T, path string, s *jsonschema.Schema) {
	t.Helper()
	for name, p := range s.Properties {
		assert.That(t, strings.HasSuffix(p.Description, "."), "%s.%s: %q is not a sentence", path, name, p.Description)
		sentences(t, path+"."+name, p)
	}
	for _, inner := range []*jsonschema.Schema{s.Items, s.AdditionalProperties} {
		if inner != nil {
			sentences(t, path+"[]", inner)
		}
	}
}
