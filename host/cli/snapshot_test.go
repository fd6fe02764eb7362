package cli_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// visit runs a session of an agent, in which it sends further requests, and gives
// their answers but for what differs from one message to the next. In the requests
// MEM stands for the id of its memory.
func visit(t *testing.T, dir, agent string, requests ...string) (answers []string) {
	t.Helper()
	l := start(t, dir)
	defer func() {
		l.stdin.Close()
		if code := l.exit(); code != 0 {
			t.Errorf("exit status %d: %s", code, l.stderr.String())
		}
	}()
	return l.visit(agent, requests...)
}

// visit is the session alone; the host goes on.
func (l *live) visit(agent string, requests ...string) (answers []string) {
	l.t.Helper()
	l.send(fmt.Sprintf(`{"type":"handshake/req","id":"h","agent_id":%q,"agent_caps":["memory","planning"]}`, agent))
	m := l.answer("h")
	must.That(l.t, m["ok"] == true, "%v", m)
	l.send(`{"type":"memory/init/req","id":"i","namespace":"default"}`)
	id, _ := l.answer("i")["memory_id"].(string)
	for _, r := range requests {
		l.send(strings.ReplaceAll(r, "MEM", id))
		answers = append(answers, l.content("r"))
	}
	return answers
}

// content is an answer without its envelope.
func (l *live) content(id string) string {
	l.t.Helper()
	m := l.answer(id)
	for _, key := range []string{"id", "ts"} {
		delete(m, key)
	}
	text, err := json.Marshal(m, json.Deterministic(true))
	if err != nil {
		l.t.Fatal(err)
	}
	return string(text)
}

func storing(entries ...string) string {
	return `{"type":"memory/store/req","id":"r","memory_id":"MEM","entries":[` + strings.Join(entries, ",") + `]}`
}

// questions is what an agent asks to find out what it knows.
func questions() []string {
	ask := func(fields string) string {
		return `{"type":"memory/retrieve/req","id":"r","memory_id":"MEM","limit":50` + fields + `}`
	}
	return []string{
		ask(``), ask(`,"tier":"working"`), ask(`,"query":"the deploy of the web server"`), ask(`,"tags":["x"]`),
		`{"type":"planning/task/list","id":"r"}`, `{"type":"planning/plan/board","id":"r"}`,
	}
}

func TestRestoredSessionAnswersAsTheSavedOne(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"sqlite", "file"} {
		t.Run(kind, func(t *testing.T) {
			dir := stateDir(t)
			writeConfig(t, dir, stateConfig+"snapshot_store: {type: "+kind+"}\n")
			knows := visit(t, dir, "w1", append([]string{
				storing(entry("a", "working", "now the web server is deployed", "x"), entry("b", "working", "then comes the database")),
				storing(entry("c", "episodic", "the deploy failed yesterday", "x"), entry("d", "semantic", "servers listen on port 80")),
				`{"type":"planning/plan/create","id":"r","name":"release"}`,
			}, questions()...)...)[3:]
			must.That(t, strings.Contains(knows[1], "then comes the database") && strings.Contains(knows[0], "port 80"),
				"the session does not know what it stored: %s", knows)
			visit(t, dir, "w2", storing(entry("e", "working", "the working memory of w2")))
			run(t, dir, nil, "snapshot", "save", "good").want(t, 0, "")

			elsewhere := visit(t, dir, "w1", append([]string{
				storing(entry("c", "episodic", "overwritten", "x"), entry("f", "semantic", "added later")),
				`{"type":"planning/plan/create","id":"r","name":"other"}`,
			}, questions()...)...)[2:]
			must.That(t, !strings.Contains(elsewhere[1], "database") && !cmp.Equal(knows, elsewhere),
				"the next session knows what was in the working memory of the last: %s", elsewhere[1])

			running := start(t, dir)
			before := running.visit("w1", questions()...)
			out := run(t, dir, nil, "snapshot", "restore", "good").want(t, 0, "")
			for _, part := range []string{"restored good: ", "2 memory.entry", "1 planning.plan", "2 session"} {
				assert.Contains(t, out.stdout, part, "it said …, without")
			}
			assert.That(t, !cmp.Equal(before, knows), "there was nothing to restore")
			assert.Diff(t, knows, running.visit("w1", questions()...))
			got := running.visit("w2", questions()[1])
			assert.That(t, strings.Contains(got[0], "the working memory of w2"), "w2 knows %s", got)
			running.stdin.Close()
			running.exit()
		})
	}
}

// What a person looks up on the command line as an agent leaves that agent's
// sessions as they are.
func TestLookingLeavesSessionsAlone(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	visit(t, dir, "w1", storing(entry("a", "working", "in the working memory")))
	run(t, dir, nil, "snapshot", "save", "s").want(t, 0, "")
	run(t, dir, nil, "snapshot", "restore", "s").want(t, 0, "")
	look := []string{"memory", "list", "--agent", "w1"}
	run(t, dir, nil, look...).want(t, 0, "")
	got := visit(t, dir, "w1", questions()[1])
	assert.That(t, strings.Contains(got[0], "in the working memory"), "what was restored went elsewhere: %s", got)
	run(t, dir, nil, look...).want(t, 0, "")
	run(t, dir, nil, "snapshot", "save", "again").want(t, 0, "")
	list := run(t, dir, nil, "snapshot", "list").stdout
	assert.Equal(t, strings.Count(list, "1 session"), 2, "the snapshots hold\n%s", list)
}

// listed is a snapshot as `snapshot list --json` shows it.
type listed struct {
	Name  string         `json:"name"`
	Made  string         `json:"made"`
	Bytes int            `json:"bytes"`
	Holds map[string]int `json:"holds"`
}

func TestSnapshotCommands(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	if out := run(t, dir, nil, "snapshot", "list").want(t, 0, "no snapshot"); out.stdout != "" {
		t.Errorf("it printed %q", out.stdout)
	}
	if out := run(t, dir, nil, "snapshot", "list", "--json").want(t, 0, ""); out.stdout != "[]\n" {
		t.Errorf("it printed %q", out.stdout)
	}
	if names := files(t, filepath.Join(dir)); len(names) != 3 { // the binary, the config and the list of what is trusted
		t.Errorf("looking has made files: %q", names)
	}
	run(t, dir, nil, "snapshot", "restore", "a").want(t, 1, `no such snapshot as "a": there are none`)

	remember(t, dir, "w1", entry("k", "semantic", "one"))
	for _, name := range []string{"a", "b"} {
		out := run(t, dir, nil, "snapshot", "save", name).want(t, 0, "")
		assert.That(t, strings.HasPrefix(out.stdout, "saved "+name+": 1 memory.entry"), "it printed %q", out.stdout)
	}
	run(t, dir, nil, "snapshot", "save", "a").want(t, 1, "--force replaces it")
	remember(t, dir, "w1", entry("l", "semantic", "two"))
	run(t, dir, nil, "snapshot", "save", "--force", "a").want(t, 0, "")
	for _, verb := range []string{"restore", "delete"} {
		run(t, dir, nil, "snapshot", verb, "c").want(t, 1, `no such snapshot as "c"; did you mean "a" or "b"? there are: `)
	}
	for _, verb := range []string{"save", "restore", "delete"} {
		run(t, dir, nil, "snapshot", verb, "../x").want(t, 2, "cannot be a snapshot's name")
	}

	var all []listed
	out := run(t, dir, nil, "snapshot", "list", "--json").want(t, 0, "")
	err := json.Unmarshal([]byte(out.stdout), &all)
	must.That(t, err == nil && len(all) == 2, "%v in %s", err, out.stdout)
	a := slices.IndexFunc(all, func(l listed) bool { return l.Name == "a" })
	one := all[max(a, 0)]
	assert.That(t, one.Holds["memory.entry"] == 2 && one.Bytes >= 100 && strings.HasSuffix(one.Made, "Z"), "listed %+v", one)
	table := run(t, dir, nil, "snapshot", "list").want(t, 0, "").stdout
	assert.That(t, strings.Contains(table, "HOLDS") && strings.Contains(table, "2 memory.entry") && strings.Count(table, "\n") == 3,
		"the table is\n%s", table)

	run(t, dir, nil, "snapshot", "restore", "b").want(t, 0, "")
	got := exported(t, dir)
	assert.That(t, !strings.Contains(got, "two") && strings.Contains(got, "one"), "restored:\n%s", got)
	run(t, dir, nil, "snapshot", "delete", "b").want(t, 0, "")
	run(t, dir, nil, "snapshot", "restore", "b").want(t, 1, "there are: a")
}

func TestSnapshotConfig(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	for text, says := range map[string]string{
		"snapshot_store: {type: custom}\n":                      "it has sqlite and file",
		"snapshot_store: {type: file, config: {pth: x}}\n":      `unknown key "pth"; a store of type file takes "path"`,
		"snapshot_store: {type: sqlite, config: {path: [x]}}\n": "snapshot_store.config.path must be a path",
	} {
		writeConfig(t, dir, stateConfig+text)
		run(t, dir, nil, "snapshot", "list").want(t, 3, says)
	}
	writeConfig(t, dir, stateConfig+"snapshot_store: {type: file, config: {path: ~/kept}}\nsnapshot_mode: host\n")
	visit(t, dir, "w1", storing(entry("a", "working", "one")))
	out := run(t, dir, nil, "snapshot", "save", "s").want(t, 0, "")
	assert.Equal(t, out.stdout, "saved s: 1 session\n", "it printed")
	if _, err := os.Stat(filepath.Join(dir, "kept", "s.ndjson.gz")); err != nil { // dir is home
		t.Error(err)
	}
	writeConfig(t, dir, stateConfig+"snapshot_mode: plugin\n")
	must.OK(t, os.RemoveAll(filepath.Join(dir, "state", "sessions")))
	visit(t, dir, "w1", storing(entry("a", "working", "one")))
	_, err := os.Stat(filepath.Join(dir, "state", "sessions"))
	assert.That(t, err != nil, "the host collects the state of sessions in the mode plugin")
}

// TestUndo has an agent change files in every way that it has, and undoes it.
func TestUndo(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	writeFile(t, dir, "a2e.yaml", "checkpoints: {restore: true}\nstate_dir: state\nworkspace: ws\nplugins: {tools: {allowed_commands: [sh]}, proc: {allowed_commands: [sh]}}\n")
	must.OK(t, os.MkdirAll(filepath.Join(dir, "ws/gone"), 0o755))
	writeFile(t, dir, "ws/keep.txt", "one\n")
	writeFile(t, dir, "ws/gone/deep.txt", "deep\n")
	config := func(args ...string) []string { return append([]string{"--config", "a2e.yaml"}, args...) }
	run(t, dir, nil, config("checkpoints", "list")...).want(t, 0, "no checkpoint")
	run(t, dir, nil, config("undo")...).want(t, 1, "checkpoints: true in the config")

	run(t, dir, nil, config("tools", "call", "write_file", "path=keep.txt", "content=two")...).want(t, 0, "")
	run(t, dir, nil, config("tools", "call", "read_file", "path=keep.txt")...).want(t, 0, "")
	before := run(t, dir, nil, config("checkpoints", "list")...).stdout
	run(t, dir, nil, config("tools", "call", "no_such_tool")...).want(t, 1, "unknown tool")
	run(t, dir, nil, config("tools", "call", "write_file", "path=x", "content=x", "mode=777")...).want(t, 1, "unknown argument")
	assert.Equal(t, run(t, dir, nil, config("checkpoints", "list")...).stdout, before)
	run(t, dir, nil, config("tools", "call", "run_command", "--args", `{"command":["sh","-c","rm -r gone; echo x > new; ln -s new link; chmod 600 keep.txt"]}`)...).want(t, 0, "")
	list := run(t, dir, nil, config("checkpoints", "list")...).want(t, 0, "").stdout
	for _, want := range []string{"tool write_file keep.txt", "tool run_command sh"} {
		assert.Contains(t, list, want)
	}
	assert.That(t, !strings.Contains(list, "read_file"), "a call that only reads made one:\n%s", list)
	diff := run(t, dir, nil, config("checkpoints", "diff", "1", "-p")...).want(t, 0, "").stdout
	for _, want := range []string{"removed  gone (folder)", "removed  gone/deep.txt", "added    link (link)", "changed  keep.txt", "-one\n", "+two\n"} {
		assert.Contains(t, diff, want)
	}
	run(t, dir, nil, config("undo", "--dry-run")...).want(t, 0, "nothing was changed")
	run(t, dir, nil, config("undo")...).want(t, 0, "restored checkpoint 2")
	text := must.Get(os.ReadFile(filepath.Join(dir, "ws/gone/deep.txt")))(t)
	assert.Equal(t, string(text), "deep\n")
	run(t, dir, nil, config("checkpoints", "restore", "1", "gone/dep.txt")...).want(t, 1, `there is no path "gone/dep.txt" in the workspace or a checkpoint; did you mean "gone/deep.txt"?`)
	run(t, dir, nil, config("checkpoints", "diff", "1", "--path", "/nowhere")...).want(t, 1, "it is relative to the workspace")
	run(t, dir, nil, config("checkpoints", "restore", "1", "gone", "new", "--dry-run")...).want(t, 0, "nothing was changed") // one there now, one that was
	run(t, dir, nil, config("undo")...).want(t, 0, "restored checkpoint 1")
	assert.Equal(t, string(must.Get(os.ReadFile(filepath.Join(dir, "ws/keep.txt")))(t)), "one\n")
	run(t, dir, nil, config("undo")...).want(t, 1, "there is nothing to undo")
	run(t, dir, nil, config("undo", "0")...).want(t, 2, "give 1 or more")
	run(t, dir, nil, config("checkpoints", "restore", "99")...).want(t, 1, "there is no such checkpoint as 99; there are 1 to")

	run(t, dir, nil, config("snapshot", "save", "now")...).want(t, 0, "")
	writeFile(t, dir, "ws/keep.txt", "three\n")
	run(t, dir, nil, config("snapshot", "restore", "now", "--files")...).want(t, 0, "restored checkpoint")
	assert.Equal(t, string(must.Get(os.ReadFile(filepath.Join(dir, "ws/keep.txt")))(t)), "one\n")
}

// TestCheckpointTools has an agent look at what it did, and put it back, in one session with a process
// that changes files by its input.
func TestCheckpointTools(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	must.OK(t, os.Mkdir(filepath.Join(dir, "ws"), 0o755))
	writeConfig(t, dir, "checkpoints: {restore: true}\nstate_dir: state\nworkspace: ws\nplugins: {tools: {}, proc: {allowed_commands: [sh]}}\n")
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
