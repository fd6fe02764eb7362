package run

import (
	"math"
	"testing"

	"a2e/protocol"
)

// What a run took reaches whoever called the skill.
func TestLoopTellsWhatItTook(t *testing.T) {
	call := []ToolCall{{Name: "add", Arguments: object(`{"a":1}`)}}
	for _, c := range []struct {
		replies []Reply
		turns   int
		want    string
	}{
		{[]Reply{{Calls: call, Tokens: Tokens{Input: 100, Output: 7}}, {Text: "done", Tokens: Tokens{Input: 120, Output: 3}}}, 0, "turns: 2, tool calls: 1, tokens read: 220, written: 10"},
		{[]Reply{{Text: "four"}}, 0, "turns: 1, tool calls: 0, tokens read: about 22, written: about 1"},
		{[]Reply{{Calls: call, Tokens: Tokens{Input: 1, Output: 1}}}, 1, "turns: 1, tool calls: 1, tokens read: 1, written: 1"},
	} {
		r, _, _, err := looped(t, Turns{System: "s", Prompt: "p", Tools: benchTools("add"), MaxTurns: c.turns, Model: &canned{replies: c.replies}})
		if err != nil || r.Summary != c.want {
			t.Errorf("%v: %q, want %q", err, r.Summary, c.want)
		}
	}
}

// A server may report any number.
func TestReportedTokensAddUp(t *testing.T) {
	if n := reported(math.MaxInt); n+n+n < n {
		t.Errorf("%d overflows", n)
	}
	if n := reported(-5); n != 0 {
		t.Errorf("%d", n)
	}
	if _, err := readChat(protocol.Value(`{"choices":[{"message":{"content":"x"}}],"usage":{"prompt_tokens":9223372036854775807}}`), newWireNames(nil)); err != nil {
		t.Error(err)
	}
}
