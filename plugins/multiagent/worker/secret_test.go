package worker

import (
	"strings"
	"testing"

	"a2e/host/config"
	"a2e/protocol"
)

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
	if err != nil || strings.Contains(string(line), token) || strings.Count(string(line), "[redacted]") != 5 {
		t.Errorf("%s, %v", line, err)
	}
	infos, err := protocol.AppendJSON(nil, s.Workers())
	if err != nil || strings.Contains(string(infos), token) || !strings.Contains(string(infos), "redacted") {
		t.Errorf("%s, %v", infos, err)
	}
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
		if strings.Contains(text, "line of it") {
			t.Errorf("%s", text)
		}
	}
}
