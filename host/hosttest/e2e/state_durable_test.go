package e2e_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/stores"
	"a2e/host/state/store"
	"a2e/plugins"
	"a2e/protocol"
	"a2e/protocol/client"
)

// durableConfig is the config of the hosts in the tests of durable data.
const durableConfig = `state_dir: state
plugins:
  - {name: memory, type: memory}
  - {name: planning, type: planning}
  - {name: tools, type: tools}
`

// durableHost is a running host with a session and a memory.
type durableHost struct {
	*client.Client
	t      *testing.T
	kill   func() // sends SIGKILL
	memory string
	stderr *bytes.Buffer
}

// durableDir returns a folder with the binary and a config whose state_dir is ./state.
func durableDir(t *testing.T) string {
	t.Helper()
	dir := workDir(t)
	writeConfig(t, dir, durableConfig)
	return dir
}

// durableStart starts a host in dir, with a memory that is open. The host ends with the test.
func durableStart(t *testing.T, dir string) *durableHost {
	t.Helper()
	return durableSession(t, command(t, dir, "./a2e"))
}

// durableSession does the same with a command that is or becomes a host.
func durableSession(t *testing.T, cmd *exec.Cmd) *durableHost {
	t.Helper()
	h := &durableHost{t: t, stderr: new(bytes.Buffer)}
	cmd.Stderr = h.stderr
	var err error
	if h.Client, err = client.Spawn(t.Context(), cmd, client.Options{ExitWait: time.Minute}); err != nil {
		t.Fatal(err)
	}
	h.kill = func() { _ = cmd.Process.Kill() } // fails only if it has ended
	t.Cleanup(func() {
		h.kill()
		_ = h.Client.Close() // an error is expected: it was killed
	})
	caps := []protocol.Capability{
		protocol.CapMemory, protocol.CapPlanning, protocol.CapTools, protocol.CapEnv,
		protocol.CapProc,
	}
	if _, err := h.Handshake(t.Context(), "durable", caps, ""); err != nil {
		t.Fatalf("handshake: %v; stderr: %s", err, h.stderr)
	}
	var opened protocol.MemoryInitResponse
	must.OK(t, h.Call(t.Context(), protocol.TypeMemoryInitReq, protocol.MemoryInitRequest{Namespace: "durable"},
		&opened))
	h.memory = opened.MemoryID
	return h
}

// durableEntry is an entry of memory/store.
type durableEntry struct {
	Key     map[string]string   `json:"key"`
	Content durableContent      `json:"content"`
	Tier    protocol.MemoryTier `json:"tier"`
	Tags    []string            `json:"tags"`
}

type durableContent struct {
	Version int    `json:"version"`
	Text    string `json:"text"`
}

// store sends entries in one request, and returns an error unless all are stored.
func (h *durableHost) store(entries ...durableEntry) error {
	var resp protocol.MemoryStoreResponse
	err := h.Call(context.Background(), protocol.TypeMemoryStoreReq, map[string]any{
		"memory_id": h.memory,
		"entries":   entries,
	}, &resp)
	if err == nil && (len(resp.Stored) != len(entries) || len(resp.Errors) > 0 || resp.Detail != nil) {
		err = fmt.Errorf("of %d entries %d are stored; errors %q, detail %v", len(entries), len(resp.Stored),
			resp.Errors, resp.Detail)
	}
	return err
}

// versions returns the stored versions of keys, of all tiers. Keys that are not stored are left out.
func (h *durableHost) versions(keys []string) map[string]int {
	h.t.Helper()
	found := make(map[string]int)
	const atOnce = 500
	for ; len(keys) > 0; keys = keys[min(len(keys), atOnce):] {
		var wanted []map[string]string
		for _, key := range keys[:min(len(keys), atOnce)] {
			wanted = append(wanted, map[string]string{"id": key})
		}
		resp, err := h.retrieve(map[string]any{"keys": wanted, "limit": atOnce})
		if err != nil {
			h.t.Fatal(err)
		}
		for _, e := range resp.Entries {
			id, _ := e.Key.Get("id")
			key, err := strconv.Unquote(string(id))
			var content durableContent
			if err = errors.Join(err, json.Unmarshal(e.Content, &content)); err != nil {
				h.t.Fatalf("%s: %v", id, err)
			}
			found[key] = content.Version
		}
	}
	return found
}

// retrieve sends memory/retrieve with the members of what.
func (h *durableHost) retrieve(what map[string]any) (*protocol.MemoryRetrieveResponse, error) {
	what["memory_id"] = h.memory
	resp := new(protocol.MemoryRetrieveResponse)
	return resp, h.Call(context.Background(), protocol.TypeMemoryRetrieveReq, what, resp)
}

// durableCheck fails if the file of a state_dir is damaged, or if the tables of memory and planning contradict each
// other.
func durableCheck(t *testing.T, stateDir string) {
	t.Helper()
	if stores.IsPostgres() {
		return // there is no file
	}
	path, opts := filepath.Join(stateDir, store.FileName), store.Options{Parts: plugins.StateParts()}
	report, err := store.Check(t.Context(), path, opts)
	must.That(t, err == nil && report.Exists && len(report.Problems) <= 0, "check: %+v, %v", report, err)
	s := must.Get(store.Open(t.Context(), path, opts))(t)
	err = s.Read(t.Context(), func(tx *store.Tx) error {
		for _, rule := range durableRules() {
			var broken int
			if _, err := tx.Get("SELECT count(*) FROM "+rule.broken, nil, &broken); err != nil {
				return fmt.Errorf("%s: %w", rule.what, err)
			}
			assert.Equal(t, broken, 0, "%s: not so", rule.what)
		}
		return nil
	})
	if err = errors.Join(err, s.Close()); err != nil {
		t.Fatal(err)
	}
}

type durableRule struct{ what, broken string }

// durableRules returns what must hold between the tables after every transaction; broken selects the rows that
// violate a rule.
func durableRules() []durableRule {
	return []durableRule{
		{"an entry has its words", "memory_entries WHERE id NOT IN (SELECT rowid FROM memory_text)"},
		{"words belong to an entry", "memory_text WHERE rowid NOT IN (SELECT id FROM memory_entries)"},
		{"an entry has its keys", "memory_entries WHERE id NOT IN (SELECT rowid FROM memory_forms)"},
		{"keys belong to an entry", "memory_forms WHERE rowid NOT IN (SELECT id FROM memory_entries)"},
		{"a vector belongs to an entry", "memory_vectors WHERE entry NOT IN (SELECT id FROM memory_entries)"},
		{"nothing waits for a vector", "memory_waiting"},
		{"each tag of an entry has its row", "memory_entries e, json_each(e.tags) t WHERE NOT EXISTS (SELECT 1 FROM " +
			"memory_tags g WHERE g.space = e.space AND g.tag = t.value AND g.entry = e.id)"},
		{"a row of a tag is of an entry that has it", "memory_tags g WHERE NOT EXISTS (SELECT 1 FROM memory_entries " +
			"e, json_each(e.tags) t WHERE e.id = g.entry AND e.space = g.space AND t.value = g.tag)"},
		{"an entry is in a space", "memory_entries WHERE space NOT IN (SELECT id FROM memory_spaces)"},
		{"a space counts its entries and bytes", "memory_spaces s WHERE (entries, bytes) IS NOT (SELECT count(*), " +
			"coalesce(sum(e.bytes), 0) FROM memory_entries e WHERE e.space = s.id)"},
		{"a former version is of an entry that is there in a later one", "memory_history h WHERE NOT EXISTS (SELECT " +
			"1 FROM memory_entries e WHERE e.space = h.space AND e.key = h.key AND e.version > h.version)"},
		{"the former versions of an entry lead up to it without a gap", "memory_entries e JOIN (SELECT space, key, " +
			"count(*) AS n, min(version) AS first, max(version) AS last FROM memory_history GROUP BY space, key) h " +
			"ON h.space = e.space AND h.key = e.key WHERE last <> e.version - 1 OR n <> last - first + 1 OR n > 10"},
		{"an entry that was stored again has a former version", "memory_entries e WHERE version > 1 AND NOT EXISTS " +
			"(SELECT 1 FROM memory_history h WHERE h.space = e.space AND h.key = e.key)"},
		{"a space counts the bytes of its former versions", "memory_spaces s WHERE past_bytes <> (SELECT " +
			"coalesce(sum(h.bytes), 0) FROM memory_history h WHERE h.space = s.id)"},
		{"a space is of a memory that has a name", "memory_spaces WHERE memory_id NOT IN (SELECT memory_id FROM " +
			"memory_names)"},
		{"a task is of a plan", "planning_tasks WHERE plan_id NOT IN (SELECT id FROM planning_plans)"},
		{"a plan counts its tasks", "planning_plans p WHERE tasks <> (SELECT count(*) FROM planning_tasks t WHERE " +
			"t.plan_id = p.id)"},
	}
}

// durableSemantic is an entry of the semantic tier.
func durableSemantic(key, text string) durableEntry {
	return durableEntry{
		Key: map[string]string{"id": key}, Content: durableContent{1, text},
		Tier: protocol.TierSemantic, Tags: []string{},
	}
}

// TestHostsSeeEachOthersEntriesAtOnce: an entry that one host has acknowledged is seen by another host on the same
// state at once, and so is its removal.
func TestHostsSeeEachOthersEntriesAtOnce(t *testing.T) {
	t.Parallel()
	dir := durableDir(t)
	hosts := []*durableHost{durableStart(t, dir), durableStart(t, dir)}
	for i := range 100 {
		writer, reader := hosts[i%2], hosts[(i+1)%2]
		key := fmt.Sprint("turn-", i)
		must.OK(t, writer.store(durableSemantic(key, fmt.Sprintf("the word of this turn is zq%dx", i))))
		there := reader.versions([]string{key})
		must.Equal(t, there[key], 1, "turn %d: the other host has no such key", i)
		found, err := reader.retrieve(map[string]any{"query": fmt.Sprintf("zq%dx", i), "limit": 1})
		must.That(t, err == nil && len(found.Entries) == 1, "turn %d: the other host's search finds %+v, %v", i, found,
			err)
		id, _ := found.Entries[0].Key.Get("id")
		must.Equal(t, string(id), fmt.Sprintf("%q", key), "turn %d: the other host's search finds %s first", i, id)
		if i%10 == 9 { // a forgotten entry is gone at once, too
			var gone protocol.MemoryForgetResponse
			err := writer.Call(t.Context(), protocol.TypeMemoryForgetReq, map[string]any{
				"memory_id": writer.memory,
				"keys":      []any{map[string]string{"id": key}}, "tier": "semantic",
			}, &gone)
			if there := reader.versions([]string{key}); err != nil || gone.Deleted != 1 || len(there) > 0 {
				t.Fatalf("turn %d: %d forgotten, %v; the other host has %v", i, gone.Deleted, err, there)
			}
		}
	}
}

// durableRefusal returns the host's error answer in err, or nil if there is none.
func durableRefusal(err error) *protocol.Error {
	var answer *protocol.Error
	errors.As(err, &answer)
	return answer
}
