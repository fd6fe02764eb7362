package cli_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"a2e/host"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/llm"
	"a2e/host/hosttest/must"
)

// A worker with a model does a task of multi_agent from its start to its result, with the
// tools of the host, and its key is shown nowhere.
func TestWorkerWithAModel(t *testing.T) {
	t.Parallel()
	const key = "sk-secret-0123456789"
	model := llm.New(t,
		llm.Reply{Text: []string{"I write", " it.\n"}, Calls: []llm.Call{{Name: "write_file", Arguments: `{"path":"made.txt","content":"by a model\n"}`}}, Input: 100, Output: 20},
		llm.Text("made.txt ", "is written.").Used(150, 5),
	)
	dir := workDir(t)
	must.OK(t, os.WriteFile(filepath.Join(dir, "c.yaml"), []byte(fmt.Sprintf(`workspace: .
plugins:
  tools:
  multi_agent:
    workers: [{name: coder, llm: {url: %q, model: test, api_key: %q, thinking: low}, tools: [write_file, "read_*"]}]
`, model.URL, key)), 0o600))
	l := start(t, dir, "--config", "c.yaml")
	l.send(`{"type":"handshake/req","id":"h","agent_id":"test","agent_caps":["tools","multi_agent"]}`,
		`{"type":"multi_agent/spawn","id":"s","name":"writer"}`)
	var child any
	for child == nil {
		child = l.next()["subagent_id"]
	}
	l.send(fmt.Sprintf(`{"type":"multi_agent/delegate","id":"d","subagent_id":%q,"task_name":"file","instruction":"write made.txt"}`, child),
		fmt.Sprintf(`{"type":"multi_agent/await","id":"a","subagent_id":%q}`, child))
	told := fmt.Sprint(l.answer("a"))
	assert.That(t, strings.Contains(told, "summary:made.txt is written.") && strings.Contains(told, "tokens_spent:275"),
		"the task came to %s", told)
	text, err := os.ReadFile(filepath.Join(dir, "made.txt"))
	assert.That(t, err == nil && string(text) == "by a model\n", "the file is %q, %v", text, err)
	asked := model.Requests()
	if got := asked[0]; got.Effort != "low" || got.Header.Get("Authorization") != "Bearer "+key || fmt.Sprint(got.Tools) != "[read_file write_file]" || !strings.Contains(got.Last("user"), "write made.txt") {
		t.Errorf("the model was asked with %+v", got)
	}
	last := asked[len(asked)-1]
	assert.Equal(t, last.Messages[len(last.Messages)-1].CallID, "call_1", "the model saw %+v", last.Messages)
	must.OK(t, l.stdin.Close())
	l.exit()
	assert.That(t, !strings.Contains(told+l.stderr.String(), key), "the key is shown")
}

// Without a worker each way to one says the same, which is a config that makes one.
func TestNoWorkerSaysWhatMakesOne(t *testing.T) {
	t.Parallel()
	dir, says := workDir(t), host.NoWorker().Message
	_, config, _ := strings.Cut(says, "\n")
	must.OK(t, os.WriteFile(filepath.Join(dir, "c.yaml"), []byte(config), 0o600))
	out, err := command(t, dir, "./a2e", "--config", "c.yaml", "check").CombinedOutput()
	assert.That(t, err == nil && strings.Count(config, "\n") == 2, "%v\n%s\n%s", err, out, config)
	for name, lines := range map[string]string{
		"multi_agent": `{"type":"handshake/req","id":"h","agent_id":"a","agent_caps":["multi_agent"]}
{"type":"multi_agent/spawn","id":"s","name":"kid"}
{"type":"multi_agent/delegate","id":"d","subagent_id":"kid","task_name":"x","instruction":"x"}`,
		"fleet": `{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"task_id":"t"},"brief":"x"}`,
	} {
		cmd := command(t, dir, "./a2e")
		cmd.Stdin = strings.NewReader(lines + "\n")
		if out, err := cmd.Output(); err != nil || !strings.Contains(string(out), strings.ReplaceAll(strings.ReplaceAll(says, `"`, `\"`), "\n", `\n`)) {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}
