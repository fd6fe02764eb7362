package cli_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// A dispatch that is killed and started again has one result for each task.
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
	args := []string{"dispatch", "tasks.ndjson", "-w", "2", "--max-tasks", "2", "--resume", "-o", "out.ndjson", "--no-contract", "--", "cat"}
	results := func() []byte {
		text, _ := os.ReadFile(filepath.Join(dir, "out.ndjson")) // it may not be there yet
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
	if after := results(); !bytes.HasPrefix(after, before) || toldResults(resultsIn(t, after)) != strings.TrimSpace(want.String()) {
		t.Errorf("the file has\n%s", toldResults(resultsIn(t, after)))
	}
}

// What is in the file stays there, and decides what is done.
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
		"nothing yet":         {tasks: `{"brief":"x"}`, args: []string{"--resume"}, results: "line-1 done x"},
		"one is there":        {had: done, tasks: "{\"brief\":\"x\",\"task_id\":\"a\"}\n{\"brief\":\"y\"}", args: []string{"--resume"}, results: "a done before\nline-2 done y", says: "out has 1 result of an earlier run: 1 done"},
		"all are there":       {had: done, tasks: `{"brief":"x","task_id":"a"}`, args: []string{"--resume"}},
		"one failed":          {had: strings.Replace(done, `"done"`, `"error"`, 1), tasks: `{"brief":"x","task_id":"a"}`, args: []string{"--resume"}, code: 1, says: "1 of 1 task not done"},
		"a cut line":          {had: done + `{"type":"TASK_RESULT","task_id":"b","sta`, tasks: `{"brief":"y","task_id":"b"}`, args: []string{"--resume"}, results: "a done before\nb done y", says: "the last line of out was cut off"},
		"a cut end":           {had: strings.TrimSpace(done), tasks: `{"brief":"y","task_id":"b"}`, args: []string{"--resume"}, results: "a done before\nb done y"},
		"without --resume":    {had: done, tasks: `{"brief":"y"}`, code: 2, says: "out is there already; --resume does what has no result"},
		"something else":      {had: done + "notes", tasks: `{"brief":"y"}`, args: []string{"--resume"}, code: 2, says: "out:2: is no TASK_RESULT, and is left as it is"},
		"something else, too": {had: "notes\n" + done, tasks: `{"brief":"y"}`, args: []string{"--resume"}, code: 2, says: "out:1: is no TASK_RESULT"},
		"another task":        {had: other, tasks: "\n" + `{"brief":"y","task_id":"a"}`, args: []string{"--resume"}, code: 2, says: `line 2: out has a result for another brief of "a"`},
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
			if c.results == "" && string(text) != c.had || c.results != "" && toldResults(resultsIn(t, text)) != c.results || !strings.Contains(stderr, c.says) {
				t.Errorf("the file has\n%s\nstderr %s", text, stderr)
			}
		})
	}
	_, stderr := dispatched(t, workDir(t), `{"brief":"x"}`, 2, "-", "--resume", "--no-contract", "--", "cat")
	assert.That(t, strings.Contains(stderr, "--resume: needs --out FILE"), "stderr %s", stderr)
}
