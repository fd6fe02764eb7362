package cli_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"a2e/protocol"
)

// TestADamagedStoreSaysSo: bits of a store that flip while no host runs make errors that a
// later try would meet again. What is served is right, and what needs no store goes on.
func TestADamagedStoreSaysSo(t *testing.T) {
	t.Parallel()
	dir := durableDir(t)
	h := durableStart(t, dir)
	text := strings.Repeat("kept before the trouble ", 60)
	const entries = 100
	for i := range entries {
		if err := h.store(durableSemantic(string(rune('A'+i)), text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "state", "state.db")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
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
	if flipped < 2 {
		t.Fatalf("%d entries were found in the file", flipped)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	h = durableStart(t, dir)
	served, refused := 0, 0
	for i := range entries {
		resp, err := h.retrieve(map[string]any{"keys": []any{map[string]string{"id": string(rune('A' + i))}}, "tier": "semantic"})
		switch answer := durableRefusal(err); {
		case err == nil && len(resp.Entries) == 1 && strings.Contains(string(resp.Entries[0].Content), text):
			served++
		case answer != nil && answer.Code == protocol.CodeRuntimeError && !answer.Retryable && strings.Contains(answer.Message, "damaged"):
			refused++
		default:
			t.Errorf("entry %d: %+v, %v", i, resp, err)
		}
	}
	t.Logf("%d served, %d refused", served, refused)
	if served == 0 || refused == 0 {
		t.Error("the damage was not of both kinds")
	}
	if _, err := h.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestHandshakeTellsOfADamagedStore: what is nothing without the store is not offered, and
// the reason stands in the handshake and in the refusals; the rest goes on.
func TestHandshakeTellsOfADamagedStore(t *testing.T) {
	t.Parallel()
	dir := durableDir(t)
	h := durableStart(t, dir)
	if err := h.store(durableSemantic("a", "kept")); err != nil {
		t.Fatal(err)
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "state", "state.db")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	clear(data[100:4096])
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	l := start(t, dir)
	l.send(`{"type":"handshake/req","id":"h"}`)
	off := map[string]string{}
	for _, row := range l.answer("h")["accepted_caps"].([]any) {
		if row := row.(map[string]any); row["enabled"] == false {
			off[row["capability"].(string)], _ = row["metadata"].(map[string]any)["reason"].(string)
		}
	}
	if len(off) != 2 || !strings.Contains(off["memory"], "damaged") || !strings.Contains(off["planning"], "damaged") {
		t.Errorf("not enabled: %q", off)
	}
	l.send(`{"type":"memory/init/req","id":"m"}`)
	if m := l.answer("m"); m["code"] != "capability_missing" || m["retryable"] != false || !strings.Contains(m["message"].(string), "damaged") {
		t.Errorf("%v", m)
	}
	l.send(call("e", "echo", `{"text":"x"}`))
	if m := l.answer("e"); m["type"] != "tool/call/resp" {
		t.Errorf("%v", m)
	}
}
