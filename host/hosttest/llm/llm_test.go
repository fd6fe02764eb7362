package llm_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/llm"
)

// TestServer: the server sends the parts of each reply of its script, in the order of a real endpoint.
func TestServer(t *testing.T) {
	s := llm.New(t,
		llm.Reply{
			Thoughts: []string{"hm"}, Text: []string{"a", "b"},
			Calls: []llm.Call{{Name: "t", Arguments: `{"x":1}`, Pieces: 2}}, Input: 5, Output: 2,
		},
		llm.Reply{Text: []string{"a"}, Stall: true, Then: []string{"b"}, Whole: true},
		llm.Reply{Status: 429, RetryAfter: "0", Error: "busy"},
		llm.Reply{Text: []string{"a"}, Cut: true},
	)
	s.Release()
	ask := func(body string) (string, error) {
		resp, err := http.Post(s.URL+"/chat/completions", "application/json", strings.NewReader(body))
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		return resp.Status + resp.Header.Get("Retry-After") + "\n" + string(text), err
	}
	const streamed = `{"model":"m","stream":true,"reasoning_effort":"low","messages":[{"role":"user","content":[{"type":"text","text":"hi"},{"type":"image_url","image_url":{"url":"data:x"}}]}],"tools":[{"function":{"name":"t"}}]}`
	for i, want := range [][]string{
		{
			"200", `"reasoning_content":"hm"`, `"content":"a"`, `"content":"b"`, `"name":"t"`, `"arguments":"{\"x\""`,
			`"arguments":":1}"`, `"finish_reason":"tool_calls"`, `"prompt_tokens":5`, "data: [DONE]",
		},
		{"200", `"content":"ab"`, `"role":"assistant"`},
		{"429 Too Many Requests0", `"message":"busy"`},
		{"200", `"content":"a"`},
		{"400", "no further reply"},
	} {
		got, err := ask(streamed)
		assert.Equal(t, (err != nil), (i == 3), "%d: %v", i, err)
		for rest, j := got, 0; j < len(want); j++ {
			_, after, found := strings.Cut(rest, want[j])
			if !found {
				t.Errorf("%d: no %s in its place: %s", i, want[j], got)
			}
			rest = after
		}
	}
	r := s.Requests()[0]
	assert.That(t, r.Model == "m" && r.Effort == "low" && r.Last("user") == "hi" &&
		r.Messages[0].Images[0] == "data:x" && r.Tools[0] == "t" && r.Rounds() == 0, "%+v", r)
}
