package exec

import (
	"testing"

	"a2e/host/hosttest"
	"a2e/protocol"
)

// The example in Python, as the README shows it: it does one thing after the other.
func TestPythonExample(t *testing.T) {
	f := newField(t)
	s := newStage(t, f.plugin("words", "", Options{Command: []string{"python3", f.example("word_tools.py")}}))
	list := s.Call(protocol.TypeToolListReq, `{}`)
	s.must(list, "/tools/0/name", "word_count")
	s.must(list, "/tools/1/name", "shout")
	s.must(s.tool("word_count", `{"text":"one two three"}`), "/data/data/words", "3")
	id := s.Go(protocol.TypeToolCallReq, `{"tool_name":"shout","arguments":{"text":"hello you"},"streaming":true}`)
	s.must(s.Answer(id), "/data/data/text", "HELLO YOU")
	events := eventsOf(s.Messages(), id)
	if len(events) != 2 {
		t.Fatalf("events: %v", events)
	}
	s.must(events[0], "/data/message", "HELLO")
	s.must(events[1], "/data/pct", "50")
	s.refused(s.tool("nothing", `{}`), protocol.CodeUnknownTool, `nothing`)
}

// The example in JavaScript.
func TestNodeExample(t *testing.T) {
	f := newField(t)
	s := newStage(t, f.plugin("hashes", "", Options{Command: []string{"node", f.example("hash_tools.mjs")}}))
	s.must(s.Call(protocol.TypeToolListReq, `{}`), "/tools/1/name", "uuid")
	s.must(s.tool("sha256", `{"text":"abc"}`), "/data/data/hex", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
	if m := s.tool("uuid", `{}`); len(m.Get("/data/data/uuid")) != 36 {
		t.Errorf("%s", m)
	}
	s.refused(s.tool("__proto__", `{}`), protocol.CodeUnknownTool, "__proto__")
}

func eventsOf(all []hosttest.Message, id string) (events []hosttest.Message) {
	for _, m := range all {
		if m.ReqID == id && m.IsEvent() {
			events = append(events, m)
		}
	}
	return events
}
