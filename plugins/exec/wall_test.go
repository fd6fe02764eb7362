package exec

import (
	"strings"
	"testing"
	"time"

	"a2e/host/hosttest"
	"a2e/protocol"
)

// The wire has no null where the protocol has none, whatever a child writes: it is mended,
// or the answer is refused by the plugin's name.
func TestWallNullsOfChildren(t *testing.T) {
	f := newField(t)
	s := newStage(t, f.plugin("nullish", "null-list", Options{}))
	t.Run("data", func(t *testing.T) {
		m := s.tool("null-data", `{}`)
		if says := m.Get("/message"); m.Code != protocol.CodeRuntimeError || !strings.Contains(says, `plugin "nullish"`) || !strings.Contains(says, "/data") {
			t.Errorf("%s", m)
		}
	})
	t.Run("fields", func(t *testing.T) {
		m := s.tool("null-fields", `{}`)
		if text := string(m.Line); m.Get("/data/success") != "true" || !strings.Contains(text, `"data":{"mine":null}`) || !strings.Contains(text, `"events":[]`) ||
			!strings.Contains(text, `"own":null`) {
			t.Errorf("%s", m)
		}
	})
	t.Run("list", func(t *testing.T) {
		if m := s.Call(protocol.TypeToolListReq, `{}`); !strings.Contains(string(m.Line), `"tools":[]`) {
			t.Errorf("%s", m)
		}
	})
	t.Run("event", func(t *testing.T) {
		id := s.Go(protocol.TypeToolCallReq, `{"tool_name":"null-event","arguments":{},"streaming":true}`)
		s.must(s.Answer(id), "/data/success", "true")
		for _, e := range eventsOf(s.Messages(), id) {
			if strings.Contains(string(e.Line), "null") {
				t.Errorf("%s", e)
			}
		}
	})
}

// A child that never gives its list keeps the lists of others waiting once, and its tools
// are back as soon as it gives one.
func TestWallSilentList(t *testing.T) {
	f := newField(t)
	now := time.Now()
	sleepy := f.plugin("sleepy", "asleep", Options{Timeout: 300 * time.Millisecond}, func(p *Plugin) { p.env.Now = func() time.Time { return now } })
	s := newStage(t, sleepy, builtin(t))
	list := func() string { return string(s.Call(protocol.TypeToolListReq, `{}`).Line) }
	for range 20 {
		if text := list(); !strings.Contains(text, `"echo"`) || strings.Contains(text, `"say"`) {
			t.Fatalf("the list: %s", text)
		}
	}
	if asked := s.tool("wake", `{}`).Get("/data/data/asked"); asked != "1" && asked != "2" { // the plugin itself asks at its start
		t.Errorf("it was asked %s times", asked)
	}
	hosttest.Eventually(t, "its tools to be back", func() bool { return strings.Contains(list(), `"say"`) })
}

// What the child has in its environment and prints stands in no error and no log.
func TestEnvironmentIsNotShown(t *testing.T) {
	f := newField(t)
	script := `read -r line
echo "junk with $API_KEY"
printf '%0190d%s\n' 0 "$API_KEY"
printf '%04090d%s%08000d\n' 0 "$API_KEY" 0 >&2
echo "I have $API_KEY, and
$TWO_LINES" >&2
exit 3`
	p := f.plugin("x", "", Options{Capabilities: []protocol.Capability{protocol.CapTools}, Command: []string{"sh", "-c", script}, Env: map[string]string{"API_KEY": "sesame-open", "TWO_LINES": "mellon-1\nmellon-2", "N": "1"}})
	s := newStage(t, p)
	m := s.tool("any", `{}`)
	s.refused(m, protocol.CodeRuntimeError, "I have [redacted], and\n[redacted]")
	for where, text := range map[string]string{"the answer": m.String(), "the log": f.log.String()} {
		for _, part := range []string{"ses", "mellon"} {
			if strings.Contains(text, part) {
				t.Errorf("%s has %q: %s", where, part, text)
			}
		}
	}
	if !strings.Contains(f.log.String(), "junk with [redacted]") {
		t.Errorf("the log: %s", f.log)
	}
}
