package env

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/sandbox"
	"a2e/protocol"
)

// TestWallWorkspaceEscapes: a path that leads out of the episode's folder is refused, and the refusal counts as a step.
func TestWallWorkspaceEscapes(t *testing.T) {
	w := makeWorkspace(t, WorkspaceOptions{Tasks: realTasks(t)}, workshop(t))
	world := beginTask(t, w, "e", "add")
	task := filepath.Join(realTasks(t), "add")
	for i, text := range []string{
		`{"type":"read_file","path":"../aside/calc.py"}`,
		`{"type":"read_file","path":"../../../x"}`,
		`{"type":"read_file","path":"` + filepath.Join(task, "check") + `"}`,
		`{"type":"edit_file","path":"` + filepath.Join(task, "task.yaml") + `","old":"id","new":"di"}`,
		`{"type":"write_file","path":"../saved","content":""}`,
		`{"action_type":"tool","payload":{"tool_name":"list_dir","arguments":{"path":".."}}}`,
		`{"type":"run_command","command":["ls"],"cwd":".."}`,
	} {
		out := takeStep(t, world, text)
		s := lookAt(t, world)
		assert.That(t, !out.Done && !s.Last.Success && s.Last.ErrorCode == string(protocol.CodeToolDenied) &&
			s.Last.Error != "" && world.steps == i+1, "%s: %+v, last %+v, step %d", text, out, s.Last, world.steps)
	}
}

// TestWorkspaceHidesTheTask: the agent's programs can see neither the folder of the task nor the hidden files of the
// episode.
func TestWorkspaceHidesTheTask(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Log("children are confined on Linux only")
		return
	}
	dir := taskFolder(t, map[string]string{
		"a/task.yaml":        "description: x\nreward: judge\nhidden: [secret.txt, 'deep/**']\n",
		"a/check":            "#!/bin/sh\nexit 0\n",
		"a/files/secret.txt": "mine", "a/files/deep/er/secret": "mine", "a/files/open.txt": "all",
	})
	e := workshop(t)
	world := beginTask(t, makeWorkspace(t, WorkspaceOptions{Tasks: dir}, e), "e", "")
	outside := filepath.Join(e.StateDir, "episodes", "other")
	putFile(t, filepath.Join(outside, "work", "x"), "")
	for _, script := range []string{
		"cat " + dir + "/a/check", "cat " + dir + "/a/task.yaml", "ls " + dir, "echo x > " + dir + "/a/check",
		"rm -r " + dir + "/a",
		"ln -s " + dir + "/a/check c && cat c", "ls " + outside, "ls " + world.folder.path + "/.. | grep other",
		"cat " + dir + "/a/files/secret.txt", "cat secret.txt", "ls deep/er",
	} {
		takeStep(t, world, `{"type":"run_command","command":["sh","-c",`+quoted(t, script)+`]}`)
		s := lookAt(t, world)
		assert.That(t, !s.Last.Success, "%s: %s", script, s.Last.Data)
	}
	text, err := os.ReadFile(filepath.Join(dir, "a", "check"))
	assert.That(t, err == nil && string(text) == "#!/bin/sh\nexit 0\n", "the check is %q now, %v", text, err)
}

func quoted(t testing.TB, text string) string {
	t.Helper()
	raw := must.Get(json.Marshal(text))(t)
	return string(raw)
}

// TestWorkspaceCheckLeavesNothing: the check can read the folder of the task, and changes nothing, neither there nor in
// the agent's folder.
func TestWorkspaceCheckLeavesNothing(t *testing.T) {
	dir := taskFolder(t, map[string]string{
		"b/task.yaml": "description: x\ncheck: [sh, -c, 'cat {task}/task.yaml']\n",
		"a/task.yaml": "description: x\ncheck: [./check, '{task}']\nshow_output: true\n", "a/secret.txt": "the answer",
		"a/files/keep.txt": "old",
		"a/check": `#!/bin/sh
A2E=$1
cat "$A2E/secret.txt"
[ "$PWD" = "$A2E_WORKSPACE" ] && [ -r "$A2E/task.yaml" ] && [ ! -e "$HOME/planted" ] && [ ! -e /tmp/planted ] || exit 1
cp "$A2E/secret.txt" stolen; echo new > keep.txt; mkdir ro; cp stolen ro/; chmod 000 stolen; chmod 500 ro
if [ "$(uname)" = Linux ]; then
	echo x > "$A2E/check" && exit 2
	rm -f "$A2E/task.yaml" && exit 3
	echo x > ../saved # what it sees there is its own
fi
exit 0
`,
	})
	w := makeWorkspace(t, WorkspaceOptions{Tasks: dir, CheckEachStep: true}, workshop(t))
	world := beginTask(t, w, "e", "")
	out := takeStep(t, world, `{"type":"run_command","command":["sh","-c","touch $HOME/planted /tmp/planted"]}`)
	assert.That(t, out.Reward == 1 && strings.Contains(verdictOf(t, out, "output").(string), "the answer"), "%+v", out)
	got := strings.Join(lookAt(t, world).paths(), " ")
	assert.That(t, got == "keep.txt", "the check left %s", got)
	takeStep(t, world, `{"type":"read_file","path":"keep.txt"}`)
	s := lookAt(t, world)
	assert.That(t, s.Last.Success && strings.Contains(string(s.Last.Data), "old"), "%+v", s.Last)
	_, err := os.Lstat(world.folder.saved())
	assert.That(t, runtime.GOOS != "linux" || os.IsNotExist(err), "the check wrote beside the agent's folder: %v", err)
	out = takeStep(t, beginTask(t, w, "b", "b"), `{"type":"submit"}`)
	assert.That(t, out.Reward == 1, "a program from elsewhere does not see the task folder: %+v", out)
	text, err := os.ReadFile(filepath.Join(dir, "a", "task.yaml"))
	assert.That(t, err == nil && strings.HasPrefix(string(text), "description: x"), "task.yaml is %q now, %v", text,
		err)
}

// TestWorkspaceCheckHangs: a check that hangs, with a child that hangs, is ended by its timeout.
func TestWorkspaceCheckHangs(t *testing.T) {
	dir := taskFolder(t, map[string]string{
		"a/task.yaml": "description: x\ntimeout: 0.5\nshow_output: true\n", "a/check": "#!/bin/sh\necho " +
			"began\nsleep 1000 &\nsleep 1000\n",
		"b/task.yaml": "description: x\ntimeout: 1000\n", "b/check": "#!/bin/sh\nsleep 1000\n",
		"c/task.yaml": "description: x\n", "c/check": "#!/bin/sh\nkill -9 $$\n",
		"d/task.yaml": "description: x\nreward: number\n", "d/check": "#!/bin/sh\necho none\n",
	})
	w := makeWorkspace(t, WorkspaceOptions{Tasks: dir}, workshop(t))
	out := takeStep(t, beginTask(t, w, "a", "a"), `{"type":"submit"}`)
	assert.That(t, out.Reward == 0 && out.Done && verdictOf(t, out, "timed_out") == true &&
		strings.Contains(verdictOf(t, out, "reason").(string), "500ms"), "its own time was up: %+v", out)
	// The end of the request ends the check, but not the episode.
	world := beginTask(t, w, "b", "b")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(200*time.Millisecond, func() { cancel(protocol.Errorf(protocol.CodeCancelled, "enough")) })
	for _, text := range []string{
		`{"type":"submit"}`,
		`{"type":"run_command","command":["sleep","1000"]}`,
	} { // the context has ended before the second action begins
		_, err := world.Step(ctx, asAction(t, text))
		known, ok := errors.AsType[*protocol.Error](err)
		assert.That(t, ok && known.Code == protocol.CodeCancelled && world.steps == 0, "%s, cancelled: %v after %d "+
			"steps", text, err, world.steps)
	}
	takeStep(t, world, `{"type":"write_file","path":"x","content":""}`)
	s := lookAt(t, world)
	assert.That(t, !s.Done && s.Last.Success && len(s.Files) == 1, "after it: %+v", s)
	for name, reason := range map[string]string{"c": "signal: killed", "d": "no number"} {
		out := takeStep(t, beginTask(t, w, name, name), `{"type":"submit"}`)
		got, _ := verdictOf(t, out, "reason").(string)
		assert.That(t, out.Reward == map[string]float64{"d": -1}[name] && strings.Contains(got, reason),
			"%s: %+v, want %q", name, out, reason)
	}
}

// TestWorkspaceEpisodesAreApart: two episodes of one task share nothing.
func TestWorkspaceEpisodesAreApart(t *testing.T) {
	w := makeWorkspace(t, WorkspaceOptions{Tasks: realTasks(t)}, workshop(t))
	one, two := beginTask(t, w, "one", "add"), beginTask(t, w, "two", "add")
	takeStep(t, one, mend)
	takeStep(t, one, `{"type":"run_command","command":["sh","-c","echo x > new; echo x > $HOME/h; echo x > /tmp/t"]}`)
	takeStep(t, two, `{"type":"run_command","command":["sh","-c","cat new $HOME/h /tmp/t `+one.folder.work()+`/new"]}`)
	s := lookAt(t, two)
	assert.That(t, runtime.GOOS != "linux" || !strings.Contains(string(s.Last.Data), `"stdout":"x`),
		"one episode sees the other: %s", s.Last.Data)
	got := strings.Join(s.paths(), " ")
	assert.That(t, got == "calc.py tests/test_seen.py", "the second has %s", got)
	out := takeStep(t, two, `{"type":"submit"}`)
	assert.That(t, out.Reward == 0, "the second was solved by the first: %+v", out)
	out = takeStep(t, one, `{"type":"submit"}`)
	assert.That(t, out.Reward == 1, "the first: %+v", out)
}

// TestWorkspaceActions: the schema of an action accepts every action that Step accepts, and refuses most of the others.
func TestWorkspaceActions(t *testing.T) {
	w := makeWorkspace(t, WorkspaceOptions{Tasks: realTasks(t), Deny: []string{"gl*"}}, workshop(t))
	space := compiled(t, w.space.Action)
	world := beginTask(t, w, "e", "add")
	for _, tc := range []struct {
		text string
		fits bool
		code protocol.ErrorCode // the error of Step; "" = none
		path string
	}{
		{`{"type":"read_file","path":"calc.py"}`, true, "", ""},
		{`{"type":"read_file","payload":{"path":"calc.py"}}`, true, "", ""},
		{`{"action_type":"read_file","path":"calc.py","limit":1}`, true, "", ""},
		{`{"action_type":"read_file","payload":{"path":"calc.py"}}`, true, "", ""},
		{`{"action_type":"tool","payload":{"tool_name":"read_file","arguments":{"path":"calc.py"}}}`, true, "", ""},
		{`{"type":"tool","tool_name":"read_file","arguments":{"path":"calc.py"}}`, true, "", ""},
		{`{"type":"read_file"}`, false, protocol.CodeSchemaViolation, "/action/path"},
		{`{"type":"read_file","path":7}`, false, protocol.CodeSchemaViolation, "/action/path"},
		{`{"type":"read_file","path":"a","paht":"b"}`, false, protocol.CodeSchemaViolation, "/action/paht"},
		{`{"type":"read_file","payload":{"path":[]}}`, false, protocol.CodeSchemaViolation, "/action/payload/path"},
		{
			`{"action_type":"tool","payload":{"tool_name":"read_file","arguments":{}}}`, true,
			protocol.CodeSchemaViolation, "/action/payload/arguments/path",
		},
		{
			`{"action_type":"tool","payload":{"tool_name":"read_file","arguments":3}}`, false,
			protocol.CodeSchemaViolation, "/action/payload/arguments",
		},
		{`{"type":"tool"}`, false, protocol.CodeSchemaViolation, "/action/tool_name"},
		{
			`{"type":"tool","tool_name":"http_get","arguments":{"url":"http://localhost"}}`, false,
			protocol.CodeUnknownAction, "",
		},
		{`{"type":"glob","pattern":"*"}`, false, protocol.CodeUnknownAction, ""},
		{`{"type":"tool","tool_name":"submit"}`, false, protocol.CodeUnknownAction, ""},
		{`{"path":"calc.py"}`, false, protocol.CodeUnknownAction, ""},
		{`{"type":"submit"}`, true, "", ""},
	} {
		wrong := space.Check([]byte(tc.text), "")
		assert.That(t, (wrong == nil) == tc.fits, "%s fits: %v, %v", tc.text, tc.fits, wrong)
		before := world.steps
		_, err := world.Step(t.Context(), asAction(t, tc.text))
		var known *protocol.Error
		if errors.As(err, &known); tc.code == "" && err != nil || tc.code != "" &&
			(known == nil || known.Code != tc.code || world.steps != before) {
			t.Errorf("%s: %v, want %q", tc.text, err, tc.code)
			continue
		}
		if tc.path != "" {
			problems, _ := known.Detail["errors"].([]protocol.FieldError)
			assert.That(t, len(problems) != 0 && problems[0].Path == tc.path, "%s: problems %v, want %s", tc.text,
				problems, tc.path)
		}
	}
}

// TestWorkspaceIsSavedAndRestored: a saved episode goes on in another host, as it was.
func TestWorkspaceIsSavedAndRestored(t *testing.T) {
	e := workshop(t)
	opts := WorkspaceOptions{Tasks: realTasks(t), Task: "add", CheckEachStep: true}
	w := makeWorkspace(t, opts, e)
	made := must.Get(w.Reset(t.Context(), Reset{EpisodeID: "e"}))(t)
	world := made.(*workspaceWorld)
	takeStep(t, world, mend)
	saved := must.Get(world.Save())(t)
	before := lookAt(t, world)
	_, err := makeWorkspace(t, opts, e).Restore(t.Context(), Reset{EpisodeID: "e"}, saved)
	assert.Fails(t, err, "in use by another host", "taken up while it is open")
	must.OK(t, world.Leave(t.Context()))
	// This is the state after a host that died while a check ran.
	must.OK(t, os.Rename(world.folder.work(), world.folder.aside()))
	putFile(t, filepath.Join(world.folder.work(), "secret"), "")

	next := makeWorkspace(t, opts, e)
	back := must.Get(next.Restore(t.Context(), Reset{EpisodeID: "e"}, saved))(t)
	after := lookAt(t, back)
	assert.That(t, strings.Join(after.paths(), " ") == strings.Join(before.paths(), " ") && after.Task == before.Task &&
		string(after.Last.Data) == string(before.Last.Data) && !after.Done, "restored %+v, saved %+v", after, before)
	if out := takeStep(t, back.(*workspaceWorld), `{"type":"submit"}`); out.Reward != 0 || !out.Done ||
		verdictOf(t, out, "score") != 1.0 { // it had this score before, so the step earns nothing
		t.Errorf("%+v", out)
	}
	assert.OK(t, back.Close(t.Context()))
	_, err = os.Stat(world.folder.path)
	assert.That(t, os.IsNotExist(err), "the folder is still there: %v", err)
	for name, bad := range map[string]struct{ id, saved, want string }{
		"gone":        {"e", string(saved), "is gone"},
		"path":        {"../e", string(saved), "not a name of a folder"},
		"empty id":    {"", string(saved), "not a name of a folder"},
		"not JSON":    {"e", "x", "cannot be read"},
		"another's":   {"e", `{"count":3}`, "does not belong to workspace"},
		"task gone":   {"e", `{"task":"no"}`, "there is no task"},
		"task a path": {"e", `{"task":"../tasks/add"}`, "there is no task"},
	} {
		_, err := next.Restore(t.Context(), Reset{EpisodeID: bad.id}, []byte(bad.saved))
		assert.Fails(t, err, bad.want, "%s", name)
	}
}

// TestWorkspaceStaleFolders: a host removes the folders that dead hosts left, and no others.
func TestWorkspaceStaleFolders(t *testing.T) {
	e := workshop(t)
	w := makeWorkspace(t, WorkspaceOptions{Tasks: realTasks(t)}, e)
	episodes := filepath.Join(e.StateDir, "episodes")
	now := time.Now()
	for name, age := range map[string]time.Duration{
		"dead": time.Hour, "young": 0, "saved": time.Hour,
		"forgotten": savedFor + time.Hour, "alive": time.Hour,
	} {
		dir := filepath.Join(episodes, name)
		putFile(t, filepath.Join(dir, "work", "ro", "x"), "")
		must.OK(t, os.Chmod(filepath.Join(dir, "work", "ro"), 0o500))
		// Otherwise the end of the test could not remove the folders that stay.
		t.Cleanup(func() { _ = os.Chmod(filepath.Join(dir, "work", "ro"), 0o700) })
		if name == "saved" || name == "forgotten" {
			putFile(t, filepath.Join(dir, "saved"), "")
			must.OK(t, os.Chtimes(filepath.Join(dir, "saved"), now.Add(-age), now.Add(-age)))
		}
		must.OK(t, os.Chtimes(dir, now.Add(-age), now.Add(-age)))
	}
	lock := must.Get(sandbox.LockDir(filepath.Join(episodes, "alive")))(t)
	defer lock.Close()
	beginTask(t, w, "new", "")
	w.sweep.End(time.Hour)
	var left []string
	entries := must.Get(os.ReadDir(episodes))(t)
	for _, entry := range entries {
		left = append(left, entry.Name())
	}
	got := strings.Join(left, " ")
	assert.That(t, got == "alive new saved young", "left are %s", got)
}

// TestWorkspaceFolders: folders of episodes are private, are removed when their episode is closed, and are bounded in
// number.
func TestWorkspaceFolders(t *testing.T) {
	e := workshop(t)
	w := makeWorkspace(t, WorkspaceOptions{Tasks: realTasks(t)}, e)
	made := must.Get(w.Reset(t.Context(), Reset{EpisodeID: "e"}))(t)
	path := filepath.Join(e.StateDir, "episodes", "e")
	for _, dir := range []string{filepath.Dir(path), path, filepath.Join(path, "work")} {
		info, err := os.Stat(dir)
		assert.That(t, err == nil && info.Mode().Perm() == 0o700, "%s: %v, %v", dir, info.Mode(), err)
	}
	takeStep(t, made.(*workspaceWorld), `{"type":"run_command","command":["sh","-c","mkdir ro; touch ro/x; chmod 500 ro"]}`)
	for range 2 {
		assert.OK(t, made.Close(context.Background()))
	}
	_, err := os.Stat(path)
	assert.That(t, os.IsNotExist(err), "the folder is still there: %v", err)
	p := newPlugin("e", w, Options{Env: "workspace", MaxEpisodes: maxWorkspaces + 1}, e)
	if p.opening = maxWorkspaces - 1; p.takeSlot() != nil {
		t.Error("the last place is taken")
	}
	err = p.takeSlot()
	assert.Fails(t, err, "reset_denied", "one too many")
}
