package worker

import (
	"strings"
	"testing"

	"a2e/host/config"
	"a2e/host/hosttest/assert"
	"a2e/protocol"
)

// Where a result may stand in what a worker prints, and what is none.
func TestResultIn(t *testing.T) {
	t.Parallel()
	const pretty = "{\n  \"status\": \"done\",\n  \"artifacts\": {\n    \"files_changed\": []\n  }\n}"
	for name, test := range map[string]struct{ text, want string }{
		"a line":                  {`{"status":"done"}`, `{"status":"done"}`},
		"pretty":                  {"so:\r\n" + pretty + "\r\nbye", pretty},
		"fenced":                  {"so:\n```json\n" + pretty + "\n```\nI hope this helps.", pretty},
		"the last one":            {pretty + "\n{\"status\":\"partial\"}\nand\n{\"x\":1}", `{"status":"partial"}`},
		"none":                    {"{\"x\":1}\n{\n[{\"status\":\"done\"}]", ""},
		"within a line":           {`I say {"status":"done"}` + "\n" + `{"status":"done"} I say`, ""},
		"part of an object":       {"{\"steps\":[\n{\"status\":\"done\"}\n]}", ""},
		"part of a list":          {"[\n{\"status\":\"done\"},\n{\"status\":\"error\"}\n]", ""},
		"its parts":               {"{\"status\":\"partial\",\"remaining\":\n{\"status\":\"done\"}\n}", "{\"status\":\"partial\",\"remaining\":\n{\"status\":\"done\"}\n}"},
		"after one that breaks":   {"{\n\"a\": 1,\n" + pretty, pretty},
		"in one that never ends":  {"{\"a\": [\n" + pretty, pretty},
		"in one that breaks":      {"{\"a\":\n" + pretty + "\noops }", pretty},
		"after an open text":      {"{\"a\": \"b\n" + pretty, pretty},
		"a key twice":             {`{"status":"done","status":"error"}`, ""},
		"a foreign status":        {"{\"status\":200}\nserved", ""},
		"a foreign status at end": {"{\"status\":\"fine\"}\n```\n", `{"status":"fine"}`},
	} {
		if obj, ok := resultIn([]byte(test.text)); ok != (test.want != "") || ok && string(obj.Raw()) != test.want {
			t.Errorf("%s: %t, %s", name, ok, obj.Raw())
		}
	}
}

// Hostile output costs about as much as any other: a quadratic search would
// take minutes here.
func TestResultInHostileOutput(t *testing.T) {
	t.Parallel()
	for _, piece := range []string{"{", "{\n", "{\"a\":", "{\"a\":\n", "{\"a\":[\n", "{}\n", "{\"a\":\"", "{\"status\":\n", "{\"a\":1,\n", "[{\n", "\n ", "{\"status\":\"done\"},\n", "{\"\n"} {
		text := strings.Repeat(piece, maxResult/4/len(piece)) + "\n{\"status\":\"done\"}\n"
		_, ok := resultIn([]byte(text))
		assert.That(t, ok, "no result behind many %q", piece)
	}
}

// No part of a result, and nothing of what a worker announces, tells what it was told in
// confidence.
func TestWallSecretsAreHiddenEverywhere(t *testing.T) {
	t.Parallel()
	const token = "s3cret-t0ken"
	f := fake(t, "f", `{"type":"SESSION_ANNOUNCE","protocol_version":"2.0","worker":{"model":"m `+token+`","model_tier":"`+token+`"},"capabilities":{"tools":["`+token+`"],"mcp_servers":["`+token+`"]}}`)
	f.AuthToken = config.NewSecret(token)
	s := newStage(t, f)
	res := s.do(brief("t", `result "status":"partial","summary":"`+token+`","remaining":{"at":["`+token+`"]},"next_steps":["`+token+`"],"artifacts":{"pr":"https://me:`+token+`@host/1","files_changed":["a/`+token+`"]}`))
	line, err := protocol.AppendJSON(nil, res)
	assert.That(t, err == nil && !strings.Contains(string(line), token) && strings.Count(string(line), "[redacted]") == 5,
		"%s, %v", line, err)
	infos, err := protocol.AppendJSON(nil, s.Workers())
	assert.That(t, err == nil && !strings.Contains(string(infos), token) && strings.Contains(string(infos), "redacted"),
		"%s, %v", infos, err)
}

// A key of several lines is hidden in each of them.
func TestSecretOfSeveralLines(t *testing.T) {
	t.Parallel()
	w := shell("w", `echo "$API_KEY"; echo "$API_KEY" >&2; exit 1`)
	w.Env = map[string]string{"API_KEY": "first line of it\nsecond line of it"}
	s := newStage(t, w)
	var h heard
	task := brief("t", "")
	task.Output = h.take
	line, _ := protocol.AppendJSON(nil, s.do(task))
	for _, text := range append(h.all(), string(line)) {
		assert.That(t, !strings.Contains(text, "line of it"), "%s", text)
	}
}
