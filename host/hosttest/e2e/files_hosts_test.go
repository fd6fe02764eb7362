package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-json-experiment/json"

	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/state/checkpoint"
	"a2e/protocol"
)

// editors has the files that several hosts change, and the marks that were acknowledged as written.
type editors struct {
	files []string

	mu    sync.Mutex
	acked map[string]string // the file of each mark; guarded by mu
}

// TestHostsLoseNoEdit: hosts with a state_dir of their own change the same files at random, by edit_file and by
// write_file with the hash that they have read. Afterwards each acknowledged change is in its file, and no refused
// one. With A2E_SOAK_EDITS=100 each host makes as many batches of changes.
func TestHostsLoseNoEdit(t *testing.T) {
	t.Parallel()
	const hosts = 3
	n := hosttest.Soak(t, "A2E_SOAK_EDITS", 6)
	shared := t.TempDir()
	e := &editors{files: []string{"a", "a", "a", "dir/b"}, acked: map[string]string{}}
	must.OK(t, os.Mkdir(filepath.Join(shared, "dir"), 0o777))
	for _, name := range e.files {
		must.OK(t, os.WriteFile(filepath.Join(shared, name), []byte("END"), 0o666))
	}
	all := make([]*durableHost, hosts)
	for i := range all {
		dir := workDir(t)
		writeConfig(t, dir, fmt.Sprintf("workspace: %q\n%s", shared, durableConfig))
		all[i] = durableStart(t, dir)
	}
	var work sync.WaitGroup
	for i, h := range all {
		work.Go(func() {
			random := rand.New(rand.NewPCG(uint64(n), uint64(i)))
			for k := 0; k < n && !t.Failed(); k++ {
				assert.OK(t, e.batch(h, random, fmt.Sprintf("h%d-%d", i, k)))
			}
		})
	}
	work.Wait()
	text, marks := map[string]string{}, 0
	for _, name := range e.files[2:] {
		text[name] = string(must.Get(os.ReadFile(filepath.Join(shared, name)))(t))
		marks += strings.Count(text[name], ";")
	}
	assert.Equal(t, marks, len(e.acked), "marks in the files, of those acknowledged")
	for mark, name := range e.acked {
		assert.Equal(t, strings.Count(text[name], mark), 1, "%s in %s", mark, name)
	}
	assert.That(t, len(e.acked) >= hosts*n*batch, "only %d changes were made", len(e.acked))
}

// batch is the number of edits that a host gets at once.
const batch = 30

// batch has one host make a batch of edits, and rewrite one file.
func (e *editors) batch(h *durableHost, random *rand.Rand, who string) error {
	var sent []func() error
	for k := range batch {
		mark, name := fmt.Sprintf("<%s-%d>;", who, k), e.files[random.IntN(len(e.files))]
		edit := toolCall("edit_file", map[string]any{"path": name, "old": "END", "new": mark + "END"})
		p, err := h.Go(protocol.TypeToolCallReq, edit)
		if err != nil {
			return err
		}
		sent = append(sent, func() error { return e.note(name, mark, p.Wait(context.Background(), nil)) })
	}
	for _, wait := range sent {
		if err := wait(); err != nil {
			return err
		}
	}
	err := e.rewrite(h, e.files[random.IntN(len(e.files))], "<"+who+">;")
	refused := (*protocol.Error)(nil)
	if errors.As(err, &refused) && strings.Contains(refused.Message, "read it again") {
		return nil // another host was quicker
	}
	return err
}

// rewrite writes a file with the content that was read and a mark before it.
func (e *editors) rewrite(h *durableHost, name, mark string) error {
	var read protocol.ToolCallResponse
	ask := toolCall("read_file", map[string]any{"path": name})
	if err := h.Call(context.Background(), protocol.TypeToolCallReq, ask, &read); err != nil {
		return err
	}
	var was struct {
		Content string `json:"content"`
		Hash    string `json:"hash"`
	}
	if err := json.Unmarshal(read.Data.Data, &was); err != nil {
		return err
	}
	write := toolCall("write_file",
		map[string]any{"path": name, "content": mark + was.Content, "if_unchanged": was.Hash})
	return e.note(name, mark, h.Call(context.Background(), protocol.TypeToolCallReq, write, nil))
}

func toolCall(name string, a map[string]any) map[string]any {
	return map[string]any{"tool_name": name, "arguments": a}
}

func (e *editors) note(name, mark string, err error) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err == nil {
		e.acked[mark] = name
	}
	return err
}

// TestWorkspaceMadeAgain: a host goes on in a workspace that was deleted and made again.
func TestWorkspaceMadeAgain(t *testing.T) {
	t.Parallel()
	work := filepath.Join(t.TempDir(), "work")
	must.OK(t, os.Mkdir(work, 0o777))
	dir := workDir(t)
	writeConfig(t, dir, fmt.Sprintf("workspace: %q\ncheckpoints: {restore: true}\n%s"+
		"  - {name: proc, type: proc, metadata: {allowed_commands: [cat]}}\n", work, durableConfig))
	h := durableStart(t, dir)
	must.Get(h.call("write_file", map[string]any{"path": "first", "content": "text"}, nil))(t)
	must.OK(t, os.RemoveAll(work))
	_, err := h.call("list_dir", map[string]any{}, nil)
	assert.That(t, err != nil, "a list of a workspace that has gone")
	must.OK(t, os.Mkdir(work, 0o777))
	must.Get(h.call("write_file", map[string]any{"path": "dir/second", "content": "text"}, nil))(t)
	must.Get(h.call("edit_file", map[string]any{"path": "dir/second", "old": "text", "new": "edited"}, nil))(t)
	assert.Equal(t, string(must.Get(os.ReadFile(filepath.Join(work, "dir", "second")))(t)), "edited")
	var out spilledOutput
	must.Get(h.call("run_command", map[string]any{"command": []string{"cat", "dir/second"}}, &out))(t)
	assert.Equal(t, out.Stdout, "edited", "a command reads")
	var started protocol.ProcSpawnResponse
	must.OK(t, h.Call(t.Context(), protocol.TypeProcSpawnReq, map[string]any{"cmd": []string{"cat"}, "cwd": "dir"},
		&started))
	must.OK(t, h.Call(t.Context(), protocol.TypeProcKillReq, map[string]any{"proc_id": started.ProcID}, nil))
	var list struct {
		Checkpoints []checkpoint.Info `json:"checkpoints"`
	}
	must.Get(h.call("checkpoint_list", map[string]any{}, &list))(t)
	at := slices.IndexFunc(list.Checkpoints, func(i checkpoint.Info) bool {
		return strings.Contains(i.Before,
			"edit_file")
	})
	must.That(t, at >= 0, "no checkpoint before edit_file: %+v", list.Checkpoints)
	must.Get(h.call("checkpoint_restore", map[string]any{"id": list.Checkpoints[at].ID}, nil))(t)
	assert.Equal(t, string(must.Get(os.ReadFile(filepath.Join(work, "dir", "second")))(t)), "text", "restored")
}
