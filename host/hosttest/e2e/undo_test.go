package e2e_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// TestUndo: `a2e undo` restores the files that an agent has changed, in every way that it has.
func TestUndo(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	writeFile(t, dir, "a2e.yaml", "checkpoints: {restore: true}\nstate_dir: state\nworkspace: ws\nplugins: {tools: "+
		"{allowed_commands: [sh]}, proc: {allowed_commands: [sh]}}\n")
	must.OK(t, os.MkdirAll(filepath.Join(dir, "ws/gone"), 0o755))
	writeFile(t, dir, "ws/keep.txt", "one\n")
	writeFile(t, dir, "ws/gone/deep.txt", "deep\n")
	config := func(args ...string) []string { return append([]string{"--config", "a2e.yaml"}, args...) }
	run(t, dir, nil, config("checkpoints", "list")...).want(t, 0, "no checkpoint")
	run(t, dir, nil, config("undo")...).want(t, 1, "the host makes the first one")

	run(t, dir, nil, config("tools", "call", "write_file", "path=keep.txt", "content=two")...).want(t, 0, "")
	run(t, dir, nil, config("tools", "call", "read_file", "path=keep.txt")...).want(t, 0, "")
	before := run(t, dir, nil, config("checkpoints", "list")...).stdout
	run(t, dir, nil, config("tools", "call", "no_such_tool")...).want(t, 1, "unknown tool")
	run(t, dir, nil, config("tools", "call", "write_file", "path=x", "content=x", "mode=777")...).want(t, 1,
		"unknown argument")
	assert.Equal(t, run(t, dir, nil, config("checkpoints", "list")...).stdout, before)
	run(t, dir, nil, config("tools", "call", "run_command", "--args",
		`{"command":["sh","-c","rm -r gone; echo x > new; ln -s new link; chmod 600 keep.txt"]}`)...).want(t, 0, "")
	list := run(t, dir, nil, config("checkpoints", "list")...).want(t, 0, "").stdout
	for _, want := range []string{"tool write_file keep.txt", "tool run_command sh"} {
		assert.Contains(t, list, want)
	}
	assert.That(t, !strings.Contains(list, "read_file"), "a call that only reads made one:\n%s", list)
	diff := run(t, dir, nil, config("checkpoints", "diff", "1", "-p")...).want(t, 0, "").stdout
	for _, want := range []string{
		"removed  gone (folder)", "removed  gone/deep.txt", "added    link (link)",
		"changed  keep.txt", "-one\n", "+two\n",
	} {
		assert.Contains(t, diff, want)
	}
	run(t, dir, nil, config("undo", "--dry-run")...).want(t, 0, "nothing was changed")
	run(t, dir, nil, config("undo")...).want(t, 0, "restored checkpoint 2")
	text := must.Get(os.ReadFile(filepath.Join(dir, "ws/gone/deep.txt")))(t)
	assert.Equal(t, string(text), "deep\n")
	run(t, dir, nil, config("checkpoints", "restore", "1", "gone/dep.txt")...).want(t, 1,
		`there is no path "gone/dep.txt" in the workspace or a checkpoint; did you mean "gone/deep.txt"?`)
	run(t, dir, nil, config("checkpoints", "diff", "1", "--path", "/nowhere")...).want(t, 1,
		"it is relative to the workspace")
	run(t, dir, nil, config("checkpoints", "restore", "1", "gone", "new", "--dry-run")...).want(t, 0,
		"nothing was changed") // gone exists now, new did before
	run(t, dir, nil, config("undo")...).want(t, 0, "restored checkpoint 1")
	assert.Equal(t, string(must.Get(os.ReadFile(filepath.Join(dir, "ws/keep.txt")))(t)), "one\n")
	run(t, dir, nil, config("undo")...).want(t, 1, "there is nothing to undo")
	run(t, dir, nil, config("undo", "0")...).want(t, 2, "give 1 or more")
	run(t, dir, nil, config("checkpoints", "restore", "99")...).want(t, 1, "there is no such checkpoint as 99; "+
		"there are 1 to")
}

// TestCheckpointsWithoutGit: the option is refused if git is missing, or is in a folder that agents may change.
func TestCheckpointsWithoutGit(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	program := must.Get(filepath.EvalSymlinks(must.Get(exec.LookPath("git"))(t)))(t)
	writeConfig(t, dir, fmt.Sprintf("checkpoints: true\nworkspace: %q\n", filepath.Dir(program)))
	run(t, dir, nil, "tools", "list").want(t, 3, "checkpoints: git keeps them, and there is none")
}

// TestCheckpointTools: an agent sees the changes that it made, also by the input of a process, and restores a
// checkpoint in the same session.
func TestCheckpointTools(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	must.OK(t, os.Mkdir(filepath.Join(dir, "ws"), 0o755))
	writeConfig(t, dir, "checkpoints: {restore: true}\nstate_dir: state\nworkspace: ws\nplugins: {tools: {}, proc: "+
		"{allowed_commands: [sh]}}\n")
	writeFile(t, dir, "ws/a.txt", "one\n")
	l := start(t, dir)
	l.send(`{"type":"handshake/req","id":"h","agent_id":"a","agent_caps":["tools","proc"]}`)
	assert.Equal[any](t, l.answer("h")["ok"], true)
	data := func(id, tool, args string) map[string]any {
		t.Helper()
		l.send(`{"type":"tool/call/req","id":"` + id + `","tool_name":"` + tool + `","arguments":` + args + `}`)
		m := l.answer(id)
		result, _ := m["data"].(map[string]any)
		d, ok := result["data"].(map[string]any)
		must.That(t, ok, "%v", m)
		return d
	}
	l.send(`{"type":"proc/spawn/req","id":"p","cmd":["sh"]}`)
	proc, _ := l.answer("p")["proc_id"].(string)
	l.send(`{"type":"proc/write/req","id":"w","proc_id":"` + proc + `","data":"echo two > a.txt; exit\n"}`)
	l.answer("w")
	l.output("p")
	all, _ := data("1", "checkpoint_diff", `{}`)["changes"].([]any)
	must.That(t, len(all) == 1, "%v", all)
	done := data("2", "checkpoint_restore", `{"id":1}`)
	assert.Equal[any](t, done["to"], float64(1))
	assert.Equal(t, string(must.Get(os.ReadFile(filepath.Join(dir, "ws/a.txt")))(t)), "one\n")
	l.stdin.Close()
	assert.Equal(t, l.exit(), 0)
}
