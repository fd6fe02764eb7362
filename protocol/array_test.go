package protocol_test

import (
	"errors"
	"slices"
	"testing"

	"a2e/protocol"
)

// A batch is read by hand: it must be what json/v2 makes of it.
func TestBatchStepFromALine(t *testing.T) {
	for _, tc := range []struct {
		line    string
		ids     []string
		actions []string
		wrong   []string // paths of the problems
	}{
		{line: `{"episode_ids":[],"actions":[]}`},
		{line: `{"episode_ids":["a","b"],"actions":[{"type":"x"},{}]}`, ids: []string{"a", "b"}, actions: []string{`{"type":"x"}`, `{}`}},
		{line: ` { "actions" : [ { "p" : { "q" : [ 1 , "]" ] } , "type" : "\u0078" } ] , "episode_ids" : [ "\u0061\"" , "ü" ] } `,
			ids: []string{`a"`, "ü"}, actions: []string{`{ "p" : { "q" : [ 1 , "]" ] } , "type" : "\u0078" }`}},
		{line: `{"episode_ids":["a",1,null],"actions":[{},[],"x"]}`, wrong: []string{"/episode_ids/1", "/episode_ids/2", "/actions/1", "/actions/2"}},
		{line: `{"episode_ids":"a","actions":{}}`, wrong: []string{"/episode_ids", "/actions"}},
	} {
		obj, err := protocol.ParseObject([]byte(tc.line))
		if err != nil {
			t.Fatal(err)
		}
		var req protocol.EnvBatchStepRequest
		err = req.DecodeLine(obj)
		var paths []string
		var refusal *protocol.Error
		if errors.As(err, &refusal) {
			for _, p := range refusal.Detail["errors"].([]protocol.FieldError) {
				paths = append(paths, p.Path)
			}
		}
		if !slices.Equal(paths, tc.wrong) {
			t.Errorf("%s: problems at %q, want %q", tc.line, paths, tc.wrong)
		}
		if err != nil {
			continue
		}
		var actions []string
		for _, a := range req.Actions {
			actions = append(actions, string(a.Raw()))
			if v, ok := a.Get("type"); ok {
				if text, _ := v.Str(); text != "x" {
					t.Errorf("%s: the type is %q", tc.line, text)
				}
			}
		}
		if !slices.Equal(req.EpisodeIDs, tc.ids) || !slices.Equal(actions, tc.actions) {
			t.Errorf("%s: %q %q, want %q %q", tc.line, req.EpisodeIDs, actions, tc.ids, tc.actions)
		}
	}
}

func TestValueStrings(t *testing.T) {
	for text, want := range map[string][]string{`[]`: nil, `["a", "b\n"]`: {"a", "b\n"}} {
		if got, ok := protocol.Value(text).Strings(); !ok || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v", text, got, ok)
		}
	}
	for _, text := range []string{`"a"`, `[1]`, `{}`, `[["a"]]`} {
		if got, ok := protocol.Value(text).Strings(); ok {
			t.Errorf("%s: %q", text, got)
		}
	}
}
