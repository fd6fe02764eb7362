package chains

import (
	"strings"
	"testing"
)

// Nodes may be called by numbers, and lists have places all the same.
func TestNumbersAsIDsLeavePlacesAlone(t *testing.T) {
	odd := map[string]bool{"0": true, "1": true, "-1": true, "read-file": true}
	for text, want := range map[string]string{
		"input.xs | [0]":      "input.xs | [0]",
		"[ 1 ]":               "[ 1 ]",
		"input.xs[-1]":        "input.xs[-1]",
		"input.xs[0:1]":       "input.xs[0:1]",
		"input.xs[:1]":        "input.xs[:1]",
		"input.xs[::-1]":      "input.xs[::-1]",
		"0.text":              `"0".text`,
		"[0, 1]":              `["0", "1"]`,
		"{a: 0, b: 1}":        `{a: "0", b: "1"}`,
		"read-file[0].x OR 1": `"read-file"[0].x || "1"`,
	} {
		if got := forgiving(text, odd); got != want {
			t.Errorf("%s becomes %s, want %s", text, got, want)
		}
	}
	s := newStage(t, Options{}, ".")
	r := s.run(strings.TrimSuffix(nodes(
		`"node_id":"0","kind":"tool","name":"echo","input_map":{"v":"input.xs | [0]"}`,
		`"node_id":"1","kind":"tool","name":"echo","input_map":{"v":"0.v"}`,
	), "}") + `,"initial_input":{"xs":["first"]}}`)
	if !r.Success || string(r.FinalOutput) != `{"v":"first"}` {
		t.Errorf("%+v", r)
	}
}

// What a map that failed has held is free again for those that come after it.
func TestMapThatFailedHoldsNothing(t *testing.T) {
	s := newStage(t, Options{MaxStateBytes: 1 << 20}, ".")
	r := s.run(strings.TrimSuffix(nodes(
		`"node_id":"m","kind":"map","items_path":"input.items","map_node":"i","max_parallel":1,"on_error":"after"`,
		`"node_id":"i","kind":"tool","name":"maybe","input_map":{"fail":"index == `+"`8`"+`","text":"input.text"}`,
		`"node_id":"after","kind":"tool","name":"large","input":{"n":400000}`,
	), "}") + `,"initial_input":{"items":[0,1,2,3,4,5,6,7,8],"text":"` + strings.Repeat("x", 100_000) + `"}}`)
	if len(r.Outputs["after"]) < 400_000 {
		t.Errorf("%+v", r.Error)
	}
}
