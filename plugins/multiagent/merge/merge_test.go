package merge

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// done returns the input of an agent that completed its task.
func done(id, summary, result string) Input {
	return Input{ID: id, Name: "agent " + id, Status: "COMPLETED", Summary: summary, Result: jsontext.Value(result)}
}

// lost returns the input of an agent that failed.
func lost(id, why string) Input {
	return Input{ID: id, Name: "agent " + id, Status: "FAILED", Error: why}
}

// merged returns the merged result as deterministic JSON.
func merged(t *testing.T, strategy string, inputs []Input, opts Options) string {
	t.Helper()
	got, err := Merge(t.Context(), strategy, inputs, opts)
	must.That(t, err == nil, "%s: %v", strategy, err)
	text := must.Get(json.Marshal(got, json.Deterministic(true)))(t)
	return string(text)
}

func TestDigest(t *testing.T) {
	for _, c := range []struct {
		name   string
		inputs []Input
		want   string
	}{
		{
			"one that did nothing",
			[]Input{done("a", "", "")},
			`{"agents":[{"name":"agent a","status":"COMPLETED","subagent_id":"a","summary":""}],"completed":1,"failed":0,"files_changed":[],"next_steps":[],` +
				`"strategy":"hierarchical_summary","summarized_by":"digest","summary":"1 of 1 agent completed.\n- agent a (COMPLETED): no text","tokens_estimated":false,"tokens_spent":0,"unfinished":0}`,
		},
		{"all that there is", []Input{
			done("a", "first\n\nline", `{"tokens_spent":5,"next_steps":["test it"," ship it ",""],"artifacts":{"files_changed":["b.go","a.go"]}}`),
			{
				ID: "b", Status: "partial", Summary: "half",
				Result: jsontext.Value(`{"tokens_spent":7,"tokens_estimated":true,"next_steps":["ship it","rest"],"files_changed":["a.go","c.go"]}`),
			},
			lost("c", "no network"),
			{ID: "d", Name: "late", Status: "RUNNING"},
		}, `{"agents":[{"name":"agent a","status":"COMPLETED","subagent_id":"a","summary":"first\n\nline"},{"name":"","status":"partial","subagent_id":"b","summary":"half"},` +
			`{"error":"no network","name":"agent c","status":"FAILED","subagent_id":"c","summary":""},{"name":"late","status":"RUNNING","subagent_id":"d","summary":""}],` +
			`"completed":2,"failed":1,"files_changed":["a.go","b.go","c.go"],"next_steps":["test it","ship it","rest"],"strategy":"hierarchical_summary","summarized_by":"digest",` +
			`"summary":"2 of 4 agents completed, 1 failed, 1 not finished.\n- agent a (COMPLETED): first line\n- b (partial): half\n- agent c (FAILED): error: no network\n- late (RUNNING): no text",` +
			`"tokens_estimated":true,"tokens_spent":12,"unfinished":1}`},
		{
			"members of the wrong type",
			[]Input{
				done("a", "x",
					`{"tokens_spent":"many","next_steps":"one","files_changed":[1,"a",null],"artifacts":[]}`),
				done("b", "y", `[1]`), done("c", "z", `{"tokens_spent":-4}`),
			},
			`{"agents":[{"name":"agent a","status":"COMPLETED","subagent_id":"a","summary":"x"},{"name":"agent b","status":"COMPLETED","subagent_id":"b","summary":"y"},` +
				`{"name":"agent c","status":"COMPLETED","subagent_id":"c","summary":"z"}],"completed":3,"failed":0,"files_changed":["a"],"next_steps":[],"strategy":"hierarchical_summary",` +
				`"summarized_by":"digest","summary":"3 of 3 agents completed.\n- agent a (COMPLETED): x\n- agent b (COMPLETED): y\n- agent c (COMPLETED): z","tokens_estimated":false,"tokens_spent":0,"unfinished":0}`,
		},
	} {
		assert.Equal(t, merged(t, "", c.inputs, Options{}), c.want, "%s", c.name)
	}
}

// TestDigestOfTooMuch: agents may write any text of any length: the merged result is bounded and can be encoded.
func TestDigestOfTooMuch(t *testing.T) {
	var inputs []Input
	for i := range maxInputs {
		inputs = append(inputs, done(fmt.Sprint(i), strings.Repeat("ü", 4<<10), ""))
	}
	inputs[0].Summary, inputs[0].Error, inputs[0].Name = strings.Repeat("ü", maxSummary), "bad \xff byte", "n\xff"
	text := merged(t, HierarchicalSummary, inputs, Options{})
	got := must.Get(Merge(t.Context(), "", inputs, Options{}))(t)
	n := len(got["summary"].(string))
	assert.That(t, n <= maxInputs*(leastShare+len("\n- "))+100, "the summary has %d bytes", n)
	n = len(got["agents"].([]map[string]any)[0]["summary"].(string))
	assert.That(t, n <= maxSummary, "an agent's summary has %d bytes", n)
	assert.That(t, strings.Contains(text, `"name":"n`+"\uFFFD") && strings.Contains(text, "bad \uFFFD byte"),
		"a broken text was not mended")
}

func TestSampling(t *testing.T) {
	var prompts []string
	sample := func(_ context.Context, prompt string) (string, error) {
		prompts = append(prompts, prompt)
		return fmt.Sprintf(" text %d ", len(prompts)), nil
	}
	var got struct {
		Summary      string `json:"summary"`
		SummarizedBy string `json:"summarized_by"`
		Error        string `json:"sampling_error"`
	}
	read := func(text string) {
		t.Helper()
		got.Error = ""
		must.OK(t, json.Unmarshal([]byte(text), &got))
	}
	few := []Input{done("a", "alpha", ""), lost("b", "beta")}
	read(merged(t, "", few, Options{Sample: sample}))
	assert.That(t, len(prompts) == 1 && got.Summary == "text 1" && got.SummarizedBy == "sampling" && got.Error == "",
		"%d prompts, %+v", len(prompts), got)
	if p := prompts[0]; !strings.Contains(p, "report 1 of 2: agent a (COMPLETED):\nalpha") ||
		!strings.Contains(p, "report 2 of 2: agent b (FAILED):\nerror: beta") {
		t.Errorf("asked %q", p)
	}

	prompts = nil
	many := make([]Input, 7)
	for i := range many {
		many[i] = done(fmt.Sprint(i), strings.Repeat("x", maxLeaf), "")
	}
	read(merged(t, "", many, Options{Sample: sample}))
	if len(prompts) != 4 || got.Summary != "text 4" { // 3 + 3 + 1 inputs, then the summaries of these three
		t.Errorf("%d prompts, %q", len(prompts), got.Summary)
	}
	for _, p := range prompts {
		assert.That(t, len(p) <= maxGroup+2000, "a prompt has %d bytes", len(p))
	}
	assert.Contains(t, prompts[len(prompts)-1], "report 3 of 3: text 3", "asked last")

	for why, sample := range map[string]func(context.Context, string) (string, error){
		"refused":    func(context.Context, string) (string, error) { return "", errors.New("refused") },
		"empty text": func(context.Context, string) (string, error) { return " ", nil },
	} {
		read(merged(t, "", few, Options{Sample: sample}))
		assert.That(t, got.SummarizedBy == "digest" && strings.Contains(got.Error, why) &&
			strings.HasPrefix(got.Summary, "1 of 2 agents completed, 1 failed.\n- agent a"), "%s: %+v", why, got)
	}
}

// TestSamplingEnds: however much a model writes, each level of the tree is smaller than the level below.
func TestSamplingEnds(t *testing.T) {
	inputs := make([]Input, maxInputs)
	for i := range inputs {
		inputs[i] = done(fmt.Sprint(i), strings.Repeat("x", maxLeaf), "")
	}
	calls := 0
	got, err := Merge(t.Context(), "", inputs, Options{Sample: func(context.Context, string) (string, error) {
		calls++
		return strings.Repeat("y", maxText+1), nil
	}})
	assert.That(t, err == nil && calls <= maxInputs && len(got["summary"].(string)) <= maxText, "%d calls, %v", calls,
		err)
}

func TestEndedContext(t *testing.T) {
	gone := errors.New("gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := func(context.Context, string) (string, error) { cancel(gone); return "", errors.New("cut off") }
	_, err := Merge(ctx, "", []Input{done("a", "x", "")}, Options{Sample: stop})
	assert.That(t, errors.Is(err, gone), "while sampling: %v", err)
	ctx, cancel = context.WithCancelCause(t.Context())
	calls, big := 0, strings.Repeat("x", maxLeaf)
	goOn := func(context.Context, string) (string, error) { calls++; cancel(gone); return "text", nil }
	_, err = Merge(ctx, "", []Input{done("a", big, ""), done("b", big, ""), done("c", big, ""), done("d", big, "")},
		Options{Sample: goOn})
	assert.That(t, errors.Is(err, gone) && calls == 1, "a model that goes on: %v after %d calls", err, calls)
	_, err = Merge(ctx, Voting, []Input{done("a", "x", "")}, Options{})
	assert.That(t, errors.Is(err, gone), "before: %v", err)
	ctx, cancel = context.WithCancelCause(t.Context())
	run := func(context.Context, []string, []byte) ([]byte, error) { cancel(gone); return []byte("{}"), nil }
	_, err = Merge(ctx, Custom, []Input{done("a", "x", "")}, Options{Command: []string{"m"}, Run: run})
	assert.That(t, errors.Is(err, gone), "in the command: %v", err)
}

func TestVoting(t *testing.T) {
	for _, c := range []struct {
		name   string
		inputs []Input
		want   string
	}{
		{"majority over the form of the JSON", []Input{
			done("a", "", `{"answer":{"x":1.0,"y":[1,2]}}`), done("b", "prose",
				`{"result":{ "y":[1, 2e0],"x":1 },"answer":null}`), done("c", "", `{"answer":"other"}`),
		}, `{"failed":[],"majority":true,"strategy":"voting","tie":false,"total":3,"votes":[{"count":2,"subagent_ids":["a","b"],"value":{"x":1,"y":[1,2]}},` +
			`{"count":1,"subagent_ids":["c"],"value":"other"}],"winner":{"x":1,"y":[1,2]}}`},
		{
			"tie, first in order",
			[]Input{
				done("a", "no\n", ""), done("b", "yes", "{}"), done("c", " yes", ""),
				done("d", "no", ""),
			},
			`{"failed":[],"majority":false,"strategy":"voting","tie":true,"total":4,"votes":[{"count":2,"subagent_ids":["a","d"],"value":"no"},{"count":2,"subagent_ids":["b","c"],"value":"yes"}],"winner":"no"}`,
		},
		{
			"the most, but not half",
			[]Input{
				done("a", "1", ""), done("b", "2", ""), done("c", "3", ""),
				done("d", "2", ""),
			},
			`{"failed":[],"majority":false,"strategy":"voting","tie":false,"total":4,"votes":[{"count":2,"subagent_ids":["b","d"],"value":"2"},{"count":1,"subagent_ids":["a"],"value":"1"},` +
				`{"count":1,"subagent_ids":["c"],"value":"3"}],"winner":"2"}`,
		},
		{
			"who does not vote",
			[]Input{
				lost("a", "down"), done("b", " ", ""),
				{
					ID: "c", Status: "RUNNING",
					Summary: "yes",
				},
				done("d", `{"b":1,"a":2}`, ""),
				{ID: "e", Status: "CANCELLED", Summary: "no"},
				done("f", `{"a":2, "b":1}`, ""),
			},
			`{"failed":[{"error":"down","name":"agent a","status":"FAILED","subagent_id":"a"},{"error":"the agent gave no answer","name":"agent b","status":"COMPLETED","subagent_id":"b"},` +
				`{"error":"the agent has not finished","name":"","status":"RUNNING","subagent_id":"c"},{"error":"the agent did not complete its task","name":"","status":"CANCELLED","subagent_id":"e"}],` +
				`"majority":true,"strategy":"voting","tie":false,"total":2,"votes":[{"count":2,"subagent_ids":["d","f"],"value":{"a":2,"b":1}}],"winner":{"a":2,"b":1}}`,
		},
		{
			"nobody votes",
			[]Input{lost("a", "down")},
			`{"failed":[{"error":"down","name":"agent a","status":"FAILED","subagent_id":"a"}],"majority":false,"strategy":"voting","tie":false,"total":0,"votes":[],"winner":null}`,
		},
		{
			"large whole numbers are not the same",
			[]Input{
				done("a", "", `{"answer":9007199254740993}`),
				done("b", "", `{"answer":9007199254740992}`),
			},
			`{"failed":[],"majority":false,"strategy":"voting","tie":true,"total":2,"votes":[{"count":1,"subagent_ids":["a"],"value":9007199254740993},` +
				`{"count":1,"subagent_ids":["b"],"value":9007199254740992}],"winner":9007199254740993}`,
		},
		{
			"half is not a majority",
			[]Input{
				done("a", "x", ""), done("b", "y", ""), done("c", "x", ""),
				done("d", "z", ""),
			},
			`{"failed":[],"majority":false,"strategy":"voting","tie":false,"total":4,"votes":[{"count":2,"subagent_ids":["a","c"],"value":"x"},{"count":1,"subagent_ids":["b"],"value":"y"},` +
				`{"count":1,"subagent_ids":["d"],"value":"z"}],"winner":"x"}`,
		},
	} {
		assert.Equal(t, merged(t, Voting, c.inputs, Options{}), c.want, "%s", c.name)
	}
}

// TestVotingFolds: answers in words are equal whatever their case, space and punctuation. Numbers, symbols and other
// JSON are not folded in this way.
func TestVotingFolds(t *testing.T) {
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{"Yes.", " yes", true},
		{"the  answer:\n42!", "The answer (42)", true},
		{"“Ça va”", "ça va", true},
		{"ﬁne", "FINE", true},
		{"well-known", "well known", true},
		{"-1", "1", false},
		{"2.5", "25", false},
		{"C++", "C", false},
		{"C#", "C", false},
		{"a/b", "ab", false},
		{"?", "!", false},
		{"a b", "ab", false},
	} {
		inputs := []Input{done("a", c.a, ""), done("b", c.b, ""), done("c", "", `{"answer":42}`)}
		assert.Equal(t, strings.Contains(merged(t, Voting, inputs, Options{}), `"count":2`), c.same,
			"%q and %q are the same", c.a, c.b)
	}
}

func TestCustom(t *testing.T) {
	inputs := []Input{done("a", "x", `{"answer":1}`), lost("b", "down")}
	var argv []string
	var stdin string
	prints := func(out string, err error) Options {
		return Options{Command: []string{"merge", "-v"}, Run: func(_ context.Context, cmd []string, in []byte) ([]byte,
			error,
		) {
			argv, stdin = cmd, string(in)
			return []byte(out), err
		}}
	}
	for out, want := range map[string]string{
		"{}":                                     `{"strategy":"custom"}`,
		"\n {\"b\":[1],\"strategy\":\"mine\"}\n": `{"b":[1],"strategy":"mine"}`,
	} {
		assert.Equal(t, merged(t, Custom, inputs, prints(out, nil)), want, "%q", out)
	}
	if len(argv) != 2 || stdin != `{"inputs":[{"subagent_id":"a","name":"agent a","status":"COMPLETED","summary":"x","result":{"answer":1}},`+
		`{"subagent_id":"b","name":"agent b","status":"FAILED","summary":"","result":null,"error":"down"}]}`+"\n" {
		t.Errorf("%q got %s", argv, stdin)
	}
	for _, c := range []struct {
		opts Options
		code protocol.ErrorCode
		says string
	}{
		{Options{}, protocol.CodeSchemaViolation, "names no command"},
		{Options{Command: []string{"m"}}, protocol.CodeSchemaViolation, "names no command"},
		{
			prints("", errors.New("exit status 3")), protocol.CodeRuntimeError,
			`the merge command "merge" failed: exit status 3`,
		},
		{prints("", nil), protocol.CodeRuntimeError, "one JSON object"},
		{prints("[1]", nil), protocol.CodeRuntimeError, `it printed "[1]"`},
		{prints("{} {}", nil), protocol.CodeRuntimeError, "one JSON object"},
		{prints(`{"a":1,"a":2}`, nil), protocol.CodeRuntimeError, "one JSON object"},
		{prints(strings.Repeat(" ", maxOutput)+"{}", nil), protocol.CodeRuntimeError, "at most 1048576"},
	} {
		_, err := Merge(t.Context(), Custom, inputs, c.opts)
		var known *protocol.Error
		assert.That(t, errors.As(err, &known) && known.Code == c.code && strings.Contains(known.Message, c.says),
			"%v; want %s with %q", err, c.code, c.says)
	}
}

func TestRefused(t *testing.T) {
	big := done("a", strings.Repeat("x", maxBytes+1), "")
	for _, c := range []struct {
		strategy string
		inputs   []Input
		says     string
	}{
		{"best", []Input{done("a", "x", "")}, `/strategy: is "best"; should be hierarchical_summary, voting or custom`},
		{"Voting", []Input{done("a", "x", "")}, "should be"},
		{Voting, nil, "/subagent_ids: is empty"},
		{"", make([]Input, maxInputs+1), "at most 1024"},
		{Custom, []Input{big}, "name fewer agents"},
	} {
		_, err := Merge(t.Context(), c.strategy, c.inputs, Options{})
		var known *protocol.Error
		assert.That(t, errors.As(err, &known) && known.Code == protocol.CodeSchemaViolation &&
			strings.Contains(known.Message, c.says),
			"%s: %v; want %q", c.strategy, err, c.says)
	}
}
