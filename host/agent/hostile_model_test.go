package agent

import (
	"fmt"
	"strings"
	"testing"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// A text of very many calls is read in proportion to its length, and only as many are kept
// as are made.
func TestTextOfManyCallsIsReadOnce(t *testing.T) {
	said, calls := callsIn("first\n" + strings.Repeat("{\"tool\":\"x\",\"arguments\":{}}\n\n", 300_000))
	assert.That(t, said == "first" && len(calls) == maxCalls+1, "%.40q, %d calls", said, len(calls))
	if said, calls = callsIn(strings.Repeat("\n", 1<<20) + "{\"tool\":\"x\"}"); said != "" || len(calls) != 1 {
		t.Errorf("%.40q, %d calls", said, len(calls))
	}
}

// What a model sends besides the arguments stays in the conversation too: a name and an id
// of megabytes would be sent along with each turn, and stand in its events.
func TestNamesAndIDsOfCallsAreBounded(t *testing.T) {
	model, long := &canned{}, strings.Repeat("n", 2<<20)
	for range 3 {
		model.replies = append(model.replies, Reply{Calls: []ToolCall{
			{ID: long, Name: long, Arguments: object(`{"a":1}`)}, {ID: strings.Repeat("i", 1000), Name: "add", Arguments: object(`{"a":1}`)},
		}})
	}
	model.replies = append(model.replies, Reply{Text: "done"})
	r, lines, b, err := looped(t, Turns{Prompt: "p", Tools: benchTools("add"), Model: model})
	if err != nil || r.Text != "done" || len(b.calls) != 3 {
		t.Fatalf("%v %+v, %d calls", err, r, len(b.calls))
	}
	for i, line := range lines {
		assert.That(t, len(line) <= 64<<10, "event %d has %d bytes: %.100s", i, len(line), line)
	}
	held := 0
	for _, m := range model.seen[len(model.seen)-1].Messages {
		held += len(m.Text) + len(m.Of.ID) + len(m.Of.Name)
		for _, c := range m.Calls {
			held += len(c.ID) + len(c.Name)
		}
	}
	assert.That(t, held <= 64<<10, "the conversation holds %d bytes", held)
	of := model.seen[1].Messages[3].Of
	assert.That(t, of.Name == "add" && len(of.ID) == 1000, "the id of a call is not its own: %.50s %d", of.Name, len(of.ID))
}

// The arguments of calls stand in the conversation once. What is taken out of it to save
// room must not be held by the results of the calls.
func TestArgumentsOfCallsAreNotHeldTwice(t *testing.T) {
	model := &canned{}
	for i := range 4 {
		call := ToolCall{ID: fmt.Sprint(i), Name: "add", Arguments: object(`{"a":"` + strings.Repeat("y", 60<<10) + `"}`)}
		model.replies = append(model.replies, Reply{Calls: []ToolCall{call}})
	}
	model.replies = append(model.replies, Reply{Text: "done"})
	_, _, _, err := looped(t, Turns{Prompt: "p", Tools: benchTools("add"), Model: model})
	must.That(t, err == nil, "%v", err)
	for _, m := range model.seen[len(model.seen)-1].Messages {
		if m.Role == RoleTool && (m.Of.Arguments.Len() != 0 || m.Of.ID == "") {
			t.Errorf("a result holds %d bytes of arguments of the call %q", len(m.Of.Arguments.Raw()), m.Of.ID)
		}
	}
}

// An error of a model's arguments is no longer than the result of a tool.
func TestWrongArgumentsAreToldInShort(t *testing.T) {
	model := &canned{replies: []Reply{{Calls: []ToolCall{{Name: "add", Invalid: strings.Repeat("x", 1<<20)}}}, {Text: "done"}}}
	_, _, _, err := looped(t, Turns{Prompt: "p", Tools: benchTools("add"), Model: model})
	must.That(t, err == nil, "%v", err)
	text := model.seen[1].Messages[2].Text
	assert.That(t, len(text) <= maxToolResult+100, "%d bytes", len(text))
	_, wrong := argumentsOf(protocol.Value(strings.Repeat("[", 1<<20)))
	assert.That(t, len(wrong) != 0 && len(wrong) <= 1000, "%d bytes: %.200s", len(wrong), wrong)
}
