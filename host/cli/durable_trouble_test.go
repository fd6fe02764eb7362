package cli_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// durableKeep stores entries one by one and gives their keys.
func durableKeep(t *testing.T, h *durableHost, prefix string, n int) (keys []string) {
	t.Helper()
	for i := range n {
		key := fmt.Sprint(prefix, "-", i)
		must.OK(t, h.store(durableSemantic(key, "kept before the trouble")))
		keys = append(keys, key)
	}
	return keys
}

// durableGoesOn wants a host to do all that needs no store.
func durableGoesOn(t *testing.T, h *durableHost) {
	t.Helper()
	if _, err := h.Ping(t.Context()); err != nil {
		t.Fatalf("ping: %v; stderr: %s", err, h.stderr)
	}
	var echo protocol.ToolCallResponse
	if err := h.Call(t.Context(), protocol.TypeToolCallReq, map[string]any{"tool_name": "echo", "arguments": map[string]any{"text": "still here"}}, &echo); err != nil || !echo.Data.Success {
		t.Errorf("echo: %+v, %v", echo, err)
	}
	note := durableSemantic("note", "in memory")
	note.Tier = protocol.TierWorking
	assert.OK(t, h.store(note))
	resp, err := h.retrieve(map[string]any{"keys": []any{note.Key}, "tier": "working"})
	assert.That(t, err == nil && len(resp.Entries) == 1, "the working tier has %+v, %v", resp, err)
	var opened protocol.MemoryInitResponse
	if err := h.Call(t.Context(), protocol.TypeMemoryInitReq, protocol.MemoryInitRequest{Namespace: "other"}, &opened); err != nil || !opened.Success {
		t.Errorf("init: %+v, %v", opened, err)
	}
}

// durableRefuses wants a request of the durable tiers answered by one error that says what
// is wrong and names the file or folder.
func durableRefuses(t *testing.T, h *durableHost, code protocol.ErrorCode, words ...string) {
	t.Helper()
	err := h.store(durableEntry{Key: map[string]string{"id": "refused"}, Tier: protocol.TierEpisodic, Tags: []string{}})
	answer := durableRefusal(err)
	must.That(t, answer != nil && answer.Code == code, "it should be refused with %s: %v", code, err)
	for _, word := range words {
		assert.Contains(t, answer.Message, word, "the message lacks")
	}
}

// TestStateDirThatCannotBeMade puts a file where the folder, or the one that it is in, should
// be, after the host has read its config.
func TestStateDirThatCannotBeMade(t *testing.T) {
	t.Parallel()
	for name, stateDir := range map[string]string{"a file in its place": "state", "a file in the place of its parent": "state/within"} {
		t.Run(name, func(t *testing.T) {
			dir := durableDir(t)
			config := strings.Replace(durableConfig, "state_dir: state", "state_dir: "+stateDir, 1)
			writeConfig(t, dir, config)
			h := durableStart(t, dir)
			file := filepath.Join(dir, "state")
			must.OK(t, os.WriteFile(file, []byte("a file\n"), 0o600))
			for range 2 {
				durableRefuses(t, h, protocol.CodeRuntimeError, "state_dir", file)
				durableGoesOn(t, h)
			}
			var plan protocol.PlanCreateResponse
			err := h.Call(t.Context(), protocol.TypePlanCreateReq, map[string]any{"name": "p"}, &plan)
			assert.That(t, durableRefusal(err) != nil && strings.Contains(err.Error(), "state_dir"), "a plan: %+v, %v", plan, err)
			err = h.Call(t.Context(), protocol.TypeMemoryRetrieveReq, map[string]any{"memory_id": "mem_of_an_earlier_host", "query": "x"}, new(protocol.MemoryRetrieveResponse))
			assert.That(t, durableRefusal(err) != nil && strings.Contains(err.Error(), "state_dir"), "a memory that an earlier host opened: %v", err)
			if text, err := os.ReadFile(file); err != nil || string(text) != "a file\n" {
				t.Errorf("the file is now %q, %v", text, err)
			}
			must.OK(t, os.Remove(file))
			durableKeep(t, h, "after", 1) // no restart is needed
			h.end()
			durableCheck(t, filepath.Join(dir, stateDir))
		})
	}
}

// TestADamagedStoreSaysSo: bits of a store that flip while no host runs make errors that a
// later try would meet again. What is served is right, and what needs no store goes on.
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
	assert.That(t, served != 0 && refused != 0, "the damage was not of both kinds")
	_, err := h.Ping(t.Context())
	assert.That(t, err == nil, "%v", err)
}

// TestHandshakeTellsOfADamagedStore: what is nothing without the store is not offered, and
// the reason stands in the handshake and in the refusals; the rest goes on.
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
	assert.That(t, len(off) == 2 && strings.Contains(off["memory"], "damaged") && strings.Contains(off["planning"], "damaged"),
		"not enabled: %q", off)
	l.send(`{"type":"memory/init/req","id":"m"}`)
	m := l.answer("m")
	assert.That(t, m["code"] == "capability_missing" && m["retryable"] == false && strings.Contains(m["message"].(string), "damaged"), "%v", m)
	l.send(call("e", "echo", `{"text":"x"}`))
	m = l.answer("e")
	assert.That(t, m["type"] == "tool/call/resp", "%v", m)
}
