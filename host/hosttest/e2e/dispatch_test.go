package e2e_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/llm"
	"a2e/host/hosttest/must"
	"a2e/protocol/fleet"
)

// dispatched runs `a2e dispatch`, checks the exit status, and returns the results in the order of stdout.
func dispatched(t *testing.T, dir, stdin string, code int, args ...string) (results []*fleet.Result, stderr string) {
	t.Helper()
	cmd := command(t, dir, "./a2e", append([]string{"dispatch"}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	var stdout, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	assert.That(t, (err == nil || errors.As(err, &exit)) && cmd.ProcessState.ExitCode() == code,
		"dispatch %q: %v, should be %d\n%s%s", args, err, code, errs.String(), stdout.String())
	return resultsIn(t, stdout.Bytes()), errs.String()
}

// resultsIn reads lines of results, and checks that none has null for a list.
func resultsIn(t *testing.T, text []byte) (results []*fleet.Result) {
	t.Helper()
	for line := range bytes.Lines(text) {
		res := new(fleet.Result)
		if err := json.Unmarshal(line, res); err != nil || res.Type != fleet.TypeResult ||
			bytes.Contains(line, []byte(`"next_steps":null`)) || bytes.Contains(line, []byte(`"files_changed":null`)) {
			t.Errorf("no result: %v: %s", err, line)
		}
		results = append(results, res)
	}
	return results
}

// toldResults returns the id, status and summary of each result, sorted.
func toldResults(results []*fleet.Result) string {
	texts := make([]string, len(results))
	for i, r := range results {
		texts[i] = fmt.Sprint(r.TaskID, " ", r.Status, " ", r.Summary)
		if r.BlockedReason != nil {
			texts[i] += *r.BlockedReason
		}
	}
	slices.Sort(texts)
	return strings.Join(texts, "\n")
}

// saysDone is a worker that repeats its brief, and fails if that is "fail".
const saysDone = `read -r brief; [ "$brief" != fail ] || exit 3; echo "$brief was done"`

func TestDispatch(t *testing.T) {
	t.Parallel()
	dir := chainDir(t, map[string]string{"tasks.ndjson": `{"brief":"one"}
{"brief":"fail","task_id":"bad"}

{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"task_id":"whole","reply_schema":"json"},"brief":"three"}
{"brief":"four","required_mcp":["none"]}
{"brief":"five","required_capabilities":["tools"]}
`})
	const want = `bad error 
line-1 done one was done
line-5 blocked worker worker-1 has no MCP server "none"; worker worker-2 has no MCP server "none"
line-6 done five was done
whole done {"text":"three was done"}`
	results, stderr := dispatched(t, dir, "", 1, "tasks.ndjson", "--workers", "2", "--no-contract", "--", "sh", "-c",
		saysDone)
	assert.Equal(t, toldResults(results), want)
	assert.That(t, strings.HasPrefix(stderr, "5 tasks: 3 done, 1 failed, 1 blocked, 15 tokens, in ") &&
		strings.HasSuffix(stderr, "a2e: 2 of 5 tasks not done\n"), "stderr %q", stderr)

	// One worker that does one task at a time takes the urgent tasks first. The results go to a file.
	stdin := "- {brief: a, priority: low}\n- {brief: b}\n- {brief: c}\n- {brief: d, priority: urgent}\n- {brief: e, " +
		"priority: high}\n"
	results, stderr = dispatched(t, dir, stdin, 0, "-", "-w", "1", "-q", "-o", "out.ndjson", "--no-contract", "--",
		"cat")
	text, err := os.ReadFile(filepath.Join(dir, "out.ndjson"))
	assert.That(t, err == nil && results == nil && stderr == "", "%v, %d results, stderr %q", err, len(results), stderr)
	order := ""
	for _, r := range resultsIn(t, text) {
		order += r.Summary
	}
	assert.Equal(t, order, "debca", "the order")
}

// TestDispatchToTheConfigsWorkers: without a command the workers of the config do the tasks, also if the config has a
// token.
func TestDispatchToTheConfigsWorkers(t *testing.T) {
	dir := chainDir(t, map[string]string{
		"some.yaml": "auth_token: ${SECRET}\nfleet: {max_tasks: 2}\nplugins:\n- {name: agents, type: multi_agent, " +
			"metadata: {workers: [{name: w, max_tasks: 2, command: [sh, -c, 'echo $A2E_TASK_ID of $(cat)'], " +
			"contract: false}]}}\n",
		"none.yaml": "plugins:\n- {name: tools, type: tools}\n",
	})
	t.Setenv("SECRET", "quite-secret")
	results, stderr := dispatched(t, dir, `[{"brief":"one","task_id":"a"},{"brief":"two","task_id":"b"}]`, 0, "-", "-c",
		"some.yaml", "-w", "1")
	got, want := toldResults(results), "a done a of one\nb done b of two"
	assert.That(t, got == want && !strings.Contains(stderr, "quite-secret"), "got\n%s\nwant\n%s\nstderr %s", got, want,
		stderr)
	results, stderr = dispatched(t, dir, `{"brief":"one"}`, 3, "-", "-c", "none.yaml")
	assert.That(t, results == nil && strings.Contains(stderr, "MODEL, a command behind --"), "stderr %q", stderr)
}

// TestDispatchAmongWorkers: a worker of the config does the tasks that name it, its model or its tier.
func TestDispatchAmongWorkers(t *testing.T) {
	t.Parallel()
	dir := chainDir(t, map[string]string{
		"two.yaml": "plugins:\n  multi_agent:\n    workers:\n    - {name: small, model: s1, model_tier: low, " +
			"command: [echo, small]}\n    - {name: large, model: l1, model_tier: high, command: [echo, large]}\n",
		"tasks.yaml": "- {task_id: a, brief: x}\n- {task_id: b, brief: x, worker: large}\n- {task_id: c, brief: x, " +
			"model: l1}\n" +
			"- {task_id: d, brief: x, tier: high}\n- {task_id: e, brief: x, worker: small, requirements: " +
			"{required_capabilities: [none]}}\n",
	})
	results, stderr := dispatched(t, dir, "", 1, "tasks.yaml", "-c", "two.yaml")
	got, want := toldResults(results), "a done small\nb done large\nc done large\nd done large\ne blocked "
	assert.That(t, strings.HasPrefix(got, want), "got\n%s\nwant\n%s\nstderr %s", got, want, stderr)
	if _, stderr = dispatched(t, dir, `{"brief":"x","worker":"small"}`, 2, "-", "-c", "two.yaml", "--",
		"cat"); !strings.Contains(stderr, "stdin:1: worker: there is no worker of the config") {
		t.Errorf("stderr %s", stderr)
	}
}

// TestDispatchIsolates: with --isolation worktree each task has a git worktree and a branch of its own, except tasks
// with isolation none.
func TestDispatchIsolates(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	wallGit(t, dir, "init", "-q")
	wallGit(t, dir, "-c", "user.name=a", "-c", "user.email=a@localhost", "commit", "-q", "--allow-empty", "-m", "begin")
	const tasks = `{"brief":"one","task_id":"one"}` + "\n" + `{"brief":"two","task_id":"two"}` + "\n" +
		`{"brief":"here","task_id":"here","isolation":"none"}`
	results, stderr := dispatched(t, dir, tasks, 0, "-", "-w", "3", "--isolation", "worktree", "--no-contract", "--",
		"sh", "-c", `read -r name; echo "$name" > "$name.txt"`)
	for _, r := range results {
		branch := "a2e/" + r.TaskID
		_, err := os.Stat(filepath.Join(dir, r.TaskID+".txt"))
		if r.TaskID == "here" {
			branch = ""
		}
		if r.Artifacts.Branch != branch || (err == nil) != (branch == "") || branch != "" &&
			!slices.Equal(r.Artifacts.FilesChanged, []string{r.TaskID + ".txt"}) {
			t.Errorf("%s: %+v (%v), stderr %s", r.TaskID, r.Artifacts, err, stderr)
		}
	}
	if _, stderr := dispatched(t, dir, `{"brief":"x","isolation":"some"}`, 2, "-", "--",
		"cat"); !strings.Contains(stderr, `stdin:1: isolation: is "some"; should be none or worktree`) {
		t.Errorf("stderr %s", stderr)
	}
}

// TestDispatchNamesChildren: the children of a worker are numbered, but never get the name of another worker of the
// config. Tasks on one line are numbered as well.
func TestDispatchNamesChildren(t *testing.T) {
	t.Parallel()
	dir := chainDir(t, map[string]string{"c.yaml": "plugins:\n  multi_agent:\n    workers: [{name: a, command: " +
		"[cat], contract: false}, {name: a-2, command: [wc, -c], contract: false}]\n"})
	results, stderr := dispatched(t, dir, `[{"brief":"x","worker":"a"},{"brief":"yy","worker":"a-2"},{"brief":"x","worker":"a"},{"brief":"yy","worker":"a-2"}]`, 0, "-", "-c", "c.yaml", "-w", "4")
	got, want := toldResults(results), "line-1 done x\nline-1-2 done 2\nline-1-3 done x\nline-1-4 done 2"
	assert.Equal(t, got, want, "got …, stderr %s", stderr)
}

// TestDispatchToAModel: with --llm the workers ask a model, each with the key from the environment.
func TestDispatchToAModel(t *testing.T) {
	dir := workDir(t)
	t.Setenv("SOME_KEY", "the-key-of-the-model")
	model := llm.New(t)
	model.Answer(func(r *llm.Request) llm.Reply { return llm.Text("done by "+r.Model).Used(10, 5) })
	results, stderr := dispatched(t, dir, `[{"brief":"a","task_id":"a"},{"brief":"b","task_id":"b","model":"m"}]`, 0,
		"-", "-w", "2", "--llm", model.URL, "--model", "m", "--api-key-env", "SOME_KEY")
	got := toldResults(results)
	assert.That(t, got == "a done done by m\nb done done by m" && strings.Contains(stderr,
		"2 tasks: 2 done, 30 tokens"), "got %s, stderr %s", got, stderr)
	for _, r := range model.Requests() {
		assert.Equal(t, r.Header.Get("Authorization"), "Bearer the-key-of-the-model", "%+v", r)
	}
}

// TestDispatchTellsWhatAModelWrote: the result lists the files that a model wrote. Without git these are all files
// that its tools wrote; with git also those that its commands wrote, but none whose content is as before.
func TestDispatchTellsWhatAModelWrote(t *testing.T) {
	t.Parallel()
	edit := func(name, old, new string) llm.Call {
		return llm.Call{Name: "edit_file", Arguments: fmt.Sprintf(`{"path":%q,"old":%q,"new":%q}`, name, old, new)}
	}
	write := func(name string) llm.Call {
		return llm.Call{Name: "write_file", Arguments: fmt.Sprintf(`{"path":%q,"content":"new"}`, name)}
	}
	for _, c := range []struct{ name, last, with, without string }{
		{"it tells none", "done", "a.txt sub/made.txt sub/new.txt", "a.txt put-back.txt sub/new.txt"},
		{
			"it tells one of them", `{"status":"done","artifacts":{"files_changed":["./a.txt"]}}`,
			"a.txt sub/made.txt sub/new.txt", "a.txt put-back.txt sub/new.txt",
		},
	} {
		for _, repo := range []bool{true, false} {
			t.Run(fmt.Sprint(c.name, ", git ", repo), func(t *testing.T) {
				t.Parallel()
				dir, want := workDir(t), c.without
				for _, name := range []string{"a.txt", "put-back.txt"} {
					must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte("old"), 0o600))
				}
				if repo {
					want = c.with
					wallGit(t, dir, "init", "-q")
					wallGit(t, dir, "add", "a.txt", "put-back.txt")
					wallGit(t, dir, "commit", "-q", "-m", "x")
				}
				model := llm.New(t, llm.Calls(write("sub//new.txt"), write("sub/../sub/new.txt"),
					edit("a.txt", "old", "new"),
					edit("a.txt", "nowhere", "x"), edit("none.txt", "a", "b"), edit("put-back.txt", "old", "new"),
					edit("put-back.txt", "new", "old"),
					llm.Call{Name: "run_command", Arguments: `{"command":["cp","a.txt","sub/made.txt"]}`},
					llm.Call{Name: "read_file", Arguments: `{"path":"a2e"}`}), llm.Text(c.last))
				results, stderr := dispatched(t, dir, `{"brief":"x"}`, 0, "-", "-w", "1", "--llm", model.URL, "--model",
					"m")
				assert.That(t, len(results) == 1, "%d results, stderr %s", len(results), stderr)
				assert.Equal(t, strings.Join(results[0].Artifacts.FilesChanged, " "), want, "stderr %s", stderr)
			})
		}
	}
}

// TestDispatchTellsWhatAToolkitWrote: the result lists the files of a toolkit by their path in the workspace, and
// none outside of it.
func TestDispatchTellsWhatAToolkitWrote(t *testing.T) {
	t.Parallel()
	for root, want := range map[string]string{"kit": "kit/new.txt", "../" + t.Name(): ""} {
		dir := filepath.Join(workDir(t), "ws")
		must.OK(t, os.Mkdir(dir, 0o700), os.Mkdir(filepath.Join(dir, root), 0o700),
			os.Rename(filepath.Join(dir, "../a2e"), filepath.Join(dir, "a2e")))
		writeConfig(t, dir, "plugins:\n  tools:\n  toolkits:\n    filesystem: {root_dir: "+root+"}\n")
		model := llm.New(t, llm.Calls(llm.Call{
			Name:      "filesystem_write_file",
			Arguments: `{"path":"new.txt","content":"x"}`,
		}),
			llm.Text("done"))
		results, stderr := dispatched(t, dir, `{"brief":"x"}`, 0, "-", "-w", "1", "-c", "a2e.yaml", "--llm", model.URL,
			"--model", "m")
		assert.That(t, len(results) == 1, "%d results, stderr %s", len(results), stderr)
		assert.Equal(t, strings.Join(results[0].Artifacts.FilesChanged, " "), want, "stderr %s", stderr)
		_, err := os.Stat(filepath.Join(dir, root, "new.txt"))
		must.OK(t, err)
	}
}

// TestDispatchAgain: a task without an id is done at each dispatch, a task with an id only at the first.
func TestDispatchAgain(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	const tasks = `{"brief":"x"}` + "\n" + `{"brief":"y","task_id":"own"}`
	for range 2 {
		results, _ := dispatched(t, dir, tasks, 0, "-", "-w", "1", "--no-contract", "--", "sh", "-c", "tee -a done")
		assert.Equal(t, toldResults(results), "line-1 done x\nown done y")
	}
	text, err := os.ReadFile(filepath.Join(dir, "done"))
	assert.Equal(t, string(text), "xyx", "done was %q (%v)", text, err)
}

func TestDispatchRefuses(t *testing.T) {
	t.Parallel()
	dir := chainDir(t, map[string]string{"tasks.ndjson": `{"brief":"x"}`, "broken.yaml": "plugins: 5\n"})
	for _, tc := range []struct {
		code int
		says string
		in   string
		args []string
	}{
		{
			2, "stdin:1: brief: is required\nstdin:2: breif: is not known", "{}\n{\"breif\":1}",
			[]string{"-", "--", "touch", "started"},
		},
		{2, "2 problems in stdin; no task was started", "{}\n{\"breif\":1}", []string{"-", "--", "touch", "started"}},
		{2, "nothing.ndjson", "", []string{"nothing.ndjson", "--", "touch", "started"}},
		{2, "--workers=0 is out of range", "", []string{"tasks.ndjson", "--workers", "0", "--", "touch", "started"}},
		{2, "--max-tasks=-1", "", []string{"tasks.ndjson", "--max-tasks=-1", "--", "touch", "started"}},
		{2, "--out tasks.ndjson: that is the file with the tasks", "", []string{
			"tasks.ndjson", "--out", "tasks.ndjson",
			"--", "touch", "started",
		}},
		{2, "--network", "", []string{"tasks.ndjson", "--network"}},
		{2, "unknown flag --many", "", []string{"tasks.ndjson", "--many", "--", "touch", "started"}},
		{3, "broken.yaml:1", "", []string{"tasks.ndjson", "-c", "broken.yaml", "--", "touch", "started"}},
	} {
		results, stderr := dispatched(t, dir, tc.in, tc.code, tc.args...)
		assert.That(t, results == nil && strings.Contains(stderr, tc.says), "%q: stderr %q; want %q", tc.args, stderr,
			tc.says)
	}
	_, err := os.Stat(filepath.Join(dir, "started"))
	assert.That(t, err != nil, "something was started")
	text, err := os.ReadFile(filepath.Join(dir, "tasks.ndjson"))
	assert.Equal(t, string(text), `{"brief":"x"}`, "the tasks were overwritten: %q, %v", text, err)
}

// TestDispatchToAWorkerThatDies: a worker that cannot start fails its tasks; dispatch does not wait forever.
func TestDispatchToAWorkerThatDies(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	results, stderr := dispatched(t, dir, `{"brief":"x"}`, 1, "-", "-w", "1", "--", "no-such-program")
	if len(results) != 1 || results[0].Status == fleet.StatusDone || !strings.Contains(results[0].Error,
		"no-such-program") {
		t.Errorf("%s, stderr %s", toldResults(results), stderr)
	}
}

// TestDispatchConfines: the program of a worker runs in the full sandbox. The worker itself is not in a sandbox,
// where no second one of the same strength could be made.
func TestDispatchConfines(t *testing.T) {
	t.Parallel()
	if !sandboxIsWhole(t) {
		return // nothing to test
	}
	dir := chainDir(t, map[string]string{"strict.yaml": "sandbox: required\n"})
	results, stderr := dispatched(t, dir, `{"brief":"x"}`, 0, "-", "-c", "strict.yaml", "-w", "1", "--no-contract",
		"--", "sh", "-c", "hostname")
	assert.Equal(t, toldResults(results), "line-1 done a2e", "stderr %s", stderr)
}

// TestDispatchKeepsTheAgent: a dispatch by a child agent runs its tasks as that agent, one level deeper.
func TestDispatchKeepsTheAgent(t *testing.T) {
	dir := workDir(t)
	t.Setenv("A2E_AGENT", `{"agent_id":"child","depth":1,"tool_scope":"shared","max_steps":3}`)
	results, stderr := dispatched(t, dir, `{"brief":"x"}`, 0, "-", "-w", "1", "--no-contract", "--", "sh", "-c",
		`echo "$A2E_AGENT"`)
	got := toldResults(results)
	assert.That(t, strings.Contains(got, `"agent_id":"child","depth":2`) && strings.Contains(got, `"max_steps":3`),
		"got %s, stderr %s", got, stderr)
}

// TestDispatchIsKilledAndResumed: a dispatch that is killed and resumed has one result for each task.
func TestDispatchIsKilledAndResumed(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	const total = 200
	var tasks, want strings.Builder
	for i := range total {
		fmt.Fprintf(&tasks, `{"brief":"b%d","task_id":"t%03d"}`+"\n", i, i)
		fmt.Fprintf(&want, "t%03d done b%d\n", i, i)
	}
	must.OK(t, os.WriteFile(filepath.Join(dir, "tasks.ndjson"), []byte(tasks.String()), 0o600))
	args := []string{
		"dispatch", "tasks.ndjson", "-w", "2", "--max-tasks", "2", "--resume", "-o", "out.ndjson",
		"--no-contract", "--", "cat",
	}
	results := func() []byte {
		text, _ := os.ReadFile(filepath.Join(dir, "out.ndjson")) // the file may not exist yet
		return text
	}
	for _, enough := range []int{20, 90} {
		cmd := command(t, dir, "./a2e", args...)
		must.OK(t, cmd.Start())
		hosttest.Eventually(t, "results", func() bool { return bytes.Count(results(), []byte("\n")) >= enough })
		must.OK(t, cmd.Process.Kill())
		_ = cmd.Wait() // killed
	}
	before := results()
	cmd := command(t, dir, "./a2e", args...)
	out, err := cmd.CombinedOutput()
	assert.That(t, err == nil && strings.Contains(string(out), "results of an earlier run: "), "%v\n%s", err, out)
	if after := results(); !bytes.HasPrefix(after, before) ||
		toldResults(resultsIn(t, after)) != strings.TrimSpace(want.String()) {
		t.Errorf("the file has\n%s", toldResults(resultsIn(t, after)))
	}
}

// TestDispatchResumes: --resume keeps the results in the file, and does only the tasks that have none there.
func TestDispatchResumes(t *testing.T) {
	t.Parallel()
	const (
		done  = `{"type":"TASK_RESULT","protocol_version":"2.0","task_id":"a","status":"done","next_steps":[],"artifacts":{"files_changed":[]},"summary":"before"}` + "\n"
		other = `{"type":"TASK_RESULT","task_id":"a","status":"done","next_steps":[],"artifacts":{"files_changed":[]},"summary":"before","brief_sha256":"0123"}` + "\n"
	)
	for name, c := range map[string]struct {
		had, tasks string
		args       []string
		code       int
		results    string // "" = the file stays as it was
		says       string
	}{
		"nothing yet": {tasks: `{"brief":"x"}`, args: []string{"--resume"}, results: "line-1 done x"},
		"one is there": {
			had: done, tasks: "{\"brief\":\"x\",\"task_id\":\"a\"}\n{\"brief\":\"y\"}",
			args: []string{"--resume"}, results: "a done before\nline-2 done y", says: "out has 1 result of an " +
				"earlier run: 1 done",
		},
		"all are there": {had: done, tasks: `{"brief":"x","task_id":"a"}`, args: []string{"--resume"}},
		"one failed": {
			had:   strings.Replace(done, `"done"`, `"error"`, 1),
			tasks: `{"brief":"x","task_id":"a"}`, args: []string{"--resume"}, code: 1, says: "1 of 1 task not done",
		},
		"a cut line": {
			had:   done + `{"type":"TASK_RESULT","task_id":"b","sta`,
			tasks: `{"brief":"y","task_id":"b"}`, args: []string{"--resume"}, results: "a done before\nb done y",
			says: "the last line of out was cut off",
		},
		"a cut end": {
			had: strings.TrimSpace(done), tasks: `{"brief":"y","task_id":"b"}`,
			args: []string{"--resume"}, results: "a done before\nb done y",
		},
		"without --resume": {had: done, tasks: `{"brief":"y"}`, code: 2, says: "out already exists; --resume " +
			"does the tasks that have no result"},
		"something else": {
			had: done + "notes", tasks: `{"brief":"y"}`, args: []string{"--resume"}, code: 2,
			says: "out:2: is not a TASK_RESULT; give another file",
		},
		"something else, too": {
			had: "notes\n" + done, tasks: `{"brief":"y"}`, args: []string{"--resume"}, code: 2,
			says: "out:1: is not a TASK_RESULT",
		},
		"another task": {
			had: other, tasks: "\n" + `{"brief":"y","task_id":"a"}`, args: []string{"--resume"},
			code: 2, says: `line 2: out has a result for another brief of "a"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := workDir(t)
			file := filepath.Join(dir, "out")
			if c.had != "" {
				must.OK(t, os.WriteFile(file, []byte(c.had), 0o600))
			}
			args := append([]string{"-", "-w", "1", "-o", "out"}, c.args...)
			_, stderr := dispatched(t, dir, c.tasks, c.code, append(args, "--no-contract", "--", "cat")...)
			text := must.Get(os.ReadFile(file))(t)
			if c.results == "" && string(text) != c.had || c.results != "" &&
				toldResults(resultsIn(t, text)) != c.results || !strings.Contains(stderr, c.says) {
				t.Errorf("the file has\n%s\nstderr %s", text, stderr)
			}
		})
	}
	_, stderr := dispatched(t, workDir(t), `{"brief":"x"}`, 2, "-", "--resume", "--no-contract", "--", "cat")
	assert.That(t, strings.Contains(stderr, "--resume: needs --out FILE"), "stderr %s", stderr)
}
