package protocol_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/protocol"
)

var update = flag.Bool("update", false, "write testdata/wire/samples.ndjson anew")

const samplesFile = "../testdata/wire/samples.ndjson"

// TestSamples makes one full message of each type, validates it, reads it back,
// and compares all of them with samples.ndjson.
func TestSamples(t *testing.T) {
	var all []byte
	for i, w := range loadWire(t) {
		info, _ := protocol.Lookup(protocol.Type(w.Type))
		body := info.New()
		fill(t, w.Type, "", reflect.ValueOf(body).Elem())
		line := sampleLine(t, i, w, body)
		w.validate(t, line)
		all = append(append(all, line...), '\n')

		obj, err := protocol.ParseObject(line)
		if err != nil {
			t.Fatal(err)
		}
		back := info.New()
		if err := protocol.Decode(obj, info.Required, back); err != nil {
			t.Errorf("%s: %v\n%s", w.Type, err, line)
			continue
		}
		if again := sampleLine(t, i, w, back); !bytes.Equal(again, line) {
			t.Errorf("%s came back as\n%s\nshould be\n%s", w.Type, again, line)
		}
	}
	if *update {
		if err := os.WriteFile(samplesFile, all, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(samplesFile)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(all, want) {
		t.Errorf("%s is out of date: run this test with -update", samplesFile)
	}
}

func sampleLine(t *testing.T, i int, w wireType, body any) []byte {
	t.Helper()
	var reqID protocol.Value
	if w.Schema["properties"].(map[string]any)["req_id"] != nil {
		reqID = protocol.Value(fmt.Sprintf(`"%032x"`, 0xa2e0000+i))
	}
	id := fmt.Appendf(nil, "%032x", i+1)
	line := protocol.AppendHeader(nil, protocol.Type(w.Type), id, time.Unix(1767225600+int64(i), 0), reqID)
	line, err := protocol.AppendBody(line, body)
	if err != nil {
		t.Fatalf("%s: %v", w.Type, err)
	}
	return line
}

// fill returns every field a value that a real message could have.
func fill(t *testing.T, msg, name string, v reflect.Value) {
	t.Helper()
	switch v.Interface().(type) {
	case protocol.Object:
		obj, err := protocol.ParseObject([]byte(sampleObject(msg, name)))
		if err != nil {
			t.Fatal(err)
		}
		v.Set(reflect.ValueOf(obj))
		return
	case jsontext.Value:
		v.SetBytes([]byte(`{"text":"hello","n":9007199254740993}`))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		fillStruct(t, msg, v)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, msg, name, v.Elem())
	case reflect.Slice:
		switch name {
		case "cmd":
			v.Set(reflect.ValueOf([]string{"echo", "hello"}))
			return
		case "agent_caps":
			v.Set(reflect.ValueOf([]protocol.Capability{"skill", "tools", "toolkits", "env", "proc", "memory",
				"learning", "chains", "mcp", "multi_agent", "planning", "test"}))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(t, msg, name, v.Index(0))
	case reflect.Array:
		v.Index(1).SetInt(5)
	case reflect.Map:
		fillMap(t, msg, name, v)
	case reflect.String:
		v.SetString(sampleText(msg, name, v.Type()))
	case reflect.Bool:
		v.SetBool(name != "streaming" && name != "terminal")
	case reflect.Int, reflect.Int64:
		v.SetInt(5)
	case reflect.Float64:
		v.SetFloat(0.5)
	default:
		t.Fatalf("%s: nothing to put into %q of %v", msg, name, v.Type())
	}
}

func fillStruct(t *testing.T, msg string, v reflect.Value) {
	t.Helper()
	for i := range v.NumField() {
		field := v.Type().Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if !field.IsExported() || name == "-" {
			continue
		}
		fill(t, msg, name, v.Field(i))
	}
}

func fillMap(t *testing.T, msg, name string, v reflect.Value) {
	t.Helper()
	v.Set(reflect.MakeMap(v.Type()))
	elem := reflect.New(v.Type().Elem()).Elem()
	switch elem.Kind() {
	case reflect.Interface:
		elem.Set(reflect.ValueOf("hello"))
	case reflect.String:
		elem.SetString("hello")
	default: // ToolParameter holds itself: one level is enough
		elem.FieldByName("Name").SetString("inner")
		elem.FieldByName("Type").SetString("string")
	}
	v.SetMapIndex(reflect.ValueOf("text"), elem)
}

// sampleText returns the text of a field by its name.
func sampleText(msg, name string, typ reflect.Type) string {
	if typ == reflect.TypeFor[protocol.SubagentStatus]() {
		return string(protocol.SubagentRunning)
	}
	if typ == reflect.TypeFor[protocol.SkillStatus]() {
		return string(protocol.SkillPublished)
	}
	switch name {
	case "strategy":
		if msg == "SUBAGENT_MERGE_REQ" {
			return "hierarchical_summary"
		}
	case "type":
		return sampleType(msg)
	case "status":
		return sampleStatus(msg)
	case "auth_token", "reason", "error", "comment", "query", "cwd", "cursor", "filter_kind", "status_filter":
		return ""
	}
	if text, ok := sampleTexts()[name]; ok {
		return text
	}
	return strings.ReplaceAll(name, "_", "-") + "-1"
}

// sampleType returns the `type` of what stands inside a message.
func sampleType(msg string) string {
	switch msg {
	case "tool/call/resp":
		return "tool/event"
	case "skill/call/resp":
		return "skill/event"
	case "env/batch_step/resp":
		return "env/step/resp"
	}
	return "string"
}

func sampleStatus(msg string) string {
	switch {
	case strings.HasPrefix(msg, "planning/"):
		return "backlog"
	case strings.HasPrefix(msg, "proc/"):
		return "running"
	}
	return "ok"
}

func sampleTexts() map[string]string {
	return map[string]string{
		"capability": "tools", "capabilities": "tools", "code": "tool_error", "error_code": "tool_error",
		"message": "a message", "kind": "status", "tool_name": "echo", "tools": "echo", "version": "1.0.0",
		"env_name": "counter", "mode": "text", "event_type": "changed", "stdin_mode": "pipe", "stream_type": "stdout",
		"signal": "SIGTERM", "state": "running", "data": "hello\n", "namespace": "default", "tier": "episodic", "polarity": "corrective",
		"dimension": "helpfulness", "correction": "Paris", "source": "human", "strategy": "softmax", "scope": "local",
		"risk_level": "low", "phase": "start", "uri": "file:///README.md", "method": "notifications/message",
		"include_context": "none", "role": "assistant", "columns": "backlog", "model": "default",
		"memory_scope": "shared", "tool_scope": "restricted", "title": "write the test",
	}
}

// sampleObject returns a free object by the name of its field.
func sampleObject(msg, name string) string {
	if text, ok := map[string]string{
		"arguments":     `{"text":"hello"}`,
		"action":        `{"type":"inc"}`,
		"actions":       `{"type":"inc"}`,
		"env":           `{"LANG":"C"}`,
		"entries":       `{"key":{"name":"capital"},"value":"Paris","tags":["geo"],"tier":"working"}`,
		"keys":          `{"name":"capital"}`,
		"nodes":         `{"id":"a","kind":"tool","name":"echo","input_map":{"text":"input.text"}}`,
		"initial_input": `{"text":"hello"}`,
		"config":        `{"server_id":"s1","command":["true"]}`,
		"messages":      `{"role":"user","content":{"type":"text","text":"hello"}}`,
		"content":       `{"type":"text","text":"hello"}`,
		"roots":         `{"uri":"file:///src","name":"src"}`,
	}[name]; ok {
		return text
	}
	return `{"note":"` + msg + `","n":9007199254740993}`
}
