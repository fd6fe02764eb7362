package e2e_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// TestADamagedStoreSaysSo: if bits of a store flip while no host runs, requests for damaged entries get an error that
// is not retryable. The entries that are served are right, and requests without the store work.
func TestADamagedStoreSaysSo(t *testing.T) {
	t.Parallel()
	dir := durableDir(t)
	h := durableStart(t, dir)
	text := strings.Repeat("kept before the trouble ", 60)
	const entries = 100
	for i := range entries {
		must.OK(t, h.store(durableSemantic(string(rune('A'+i)), text)))
	}
	must.OK(t, h.Close())
	path := filepath.Join(dir, "state", "state.db")
	data := must.Get(os.ReadFile(path))(t)
	flipped := 0
	for at, step := 0, len(data)/8; ; at += step { // in the text of some entries
		found := bytes.Index(data[min(at, len(data)):], []byte(text))
		if found < 0 {
			break
		}
		at += found
		data[at+len(text)/2] ^= 4
		flipped++
	}
	must.That(t, flipped >= 2, "%d entries were found in the file", flipped)
	must.OK(t, os.WriteFile(path, data, 0o600))
	h = durableStart(t, dir)
	served, refused := 0, 0
	for i := range entries {
		resp, err := h.retrieve(map[string]any{
			"keys": []any{map[string]string{"id": string(rune('A' + i))}},
			"tier": "semantic",
		})
		switch answer := durableRefusal(err); {
		case err == nil && len(resp.Entries) == 1 && strings.Contains(string(resp.Entries[0].Content), text):
			served++
		case answer != nil && answer.Code == protocol.CodeRuntimeError && !answer.Retryable &&
			strings.Contains(answer.Message, "damaged"):
			refused++
		default:
			t.Errorf("entry %d: %+v, %v", i, resp, err)
		}
	}
	t.Logf("%d served, %d refused", served, refused)
	assert.That(t, served != 0 && refused != 0, "the damage was not of both kinds")
	var echoed protocol.ToolCallResponse
	err := h.Call(t.Context(), protocol.TypeToolCallReq, jsontext.Value(`{"tool_name":"echo","arguments":{"text":"x"}}`),
		&echoed)
	assert.That(t, err == nil && echoed.Data.Success, "%v: %+v", err, echoed)
}

// TestHandshakeTellsOfADamagedStore: a capability that needs the store is not offered if the store is damaged. The
// handshake and the refusals have the reason, and the other capabilities work.
func TestHandshakeTellsOfADamagedStore(t *testing.T) {
	t.Parallel()
	dir := durableDir(t)
	h := durableStart(t, dir)
	must.OK(t, h.store(durableSemantic("a", "kept")))
	must.OK(t, h.Close())
	path := filepath.Join(dir, "state", "state.db")
	data := must.Get(os.ReadFile(path))(t)
	clear(data[100:4096])
	must.OK(t, os.WriteFile(path, data, 0o600))
	l := start(t, dir)
	l.send(`{"type":"handshake/req","id":"h"}`)
	off := map[string]string{}
	for _, row := range l.answer("h")["accepted_caps"].([]any) {
		if row := row.(map[string]any); row["enabled"] == false {
			off[row["capability"].(string)], _ = row["metadata"].(map[string]any)["reason"].(string)
		}
	}
	assert.That(t, len(off) == 2 && strings.Contains(off["memory"], "damaged") &&
		strings.Contains(off["planning"], "damaged"),
		"not enabled: %q", off)
	l.send(`{"type":"memory/init/req","id":"m"}`)
	m := l.answer("m")
	assert.That(t, m["code"] == "capability_missing" && m["retryable"] == false &&
		strings.Contains(m["message"].(string), "damaged"), "%v", m)
	l.send(call("e", "echo", `{"text":"x"}`))
	m = l.answer("e")
	assert.That(t, m["type"] == "tool/call/resp", "%v", m)
}
