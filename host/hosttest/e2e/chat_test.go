package e2e_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"a2e/host/agent"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/llm"
	"a2e/host/hosttest/must"
)

// piped runs `a2e chat` with a message on its stdin, and checks the exit status.
func piped(t *testing.T, dir, stdin string, code int, args ...string) (stdout, stderr string) {
	t.Helper()
	cmd := command(t, dir, "./a2e", append([]string{"chat"}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	assert.That(t, (err == nil || errors.As(err, &exit)) && cmd.ProcessState.ExitCode() == code,
		"chat %q: %v, should be %d\n%s%s", args, err, code, errs.String(), out.String())
	return out.String(), errs.String()
}

// TestChatPiped: all of stdin is one message, and only its answer is printed. --continue continues the conversation
// later.
func TestChatPiped(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	model := llm.New(t,
		llm.Calls(llm.Call{Name: "write_file", Arguments: `{"path":"notes.txt","content":"kept"}`}),
		llm.Reply{Thoughts: []string{"hm"}, Text: []string{"It is ", "writ", "ten."}},
		llm.Text("I said: It is written."),
		llm.Text("a cat"),
		llm.Fail(404, "the model is not loaded"),
	)
	with := []string{"--llm", model.URL, "--model", "m", "--thinking", "low"}
	out, errs := piped(t, dir, "write\nthis down\n", 0, with...)
	assert.That(t, out == "It is written.\n" && errs == "", "%q, %q", out, errs)
	text := must.Get(os.ReadFile(filepath.Join(dir, "notes.txt")))(t)
	assert.Equal(t, string(text), "kept", "the file has %q", text)
	out, _ = piped(t, dir, "what did you say?", 0, append(with, "--continue")...)
	assert.Equal(t, out, "I said: It is written.\n")
	must.OK(t, os.WriteFile(filepath.Join(dir, "cat.png"), []byte("\x89PNG\r\n\x1a\n picture"), 0o600))
	piped(t, dir, "what is on @cat.png", 0, with...)
	_, errs = piped(t, dir, "x", 1, with...)
	assert.That(t, strings.Contains(errs, "the model is not loaded"), "%q", errs)
	all := model.Requests()
	must.Equal(t, len(all), 5, "… requests")
	r := all[0]
	assert.That(t, r.Model == "m" && r.Effort == "low" && r.Last("user") == "write\nthis down" &&
		r.Header.Get("Authorization") == "", "%+v", r)
	if r := all[2]; r.Last("user") != "what did you say?" || !strings.Contains(r.Body, "this down") ||
		!strings.Contains(r.Body, "It is written.") {
		t.Errorf("the second message came without the first: %s", r.Body)
	}
	last := all[3].Messages[len(all[3].Messages)-1]
	want := "data:image/png;base64," + base64.StdEncoding.EncodeToString([]byte("\x89PNG\r\n\x1a\n picture"))
	assert.That(t, len(last.Images) == 1 && last.Images[0] == want, "the model got the images %q", last.Images)
}

func TestChatRefuses(t *testing.T) {
	dir := workDir(t)
	t.Setenv("EMPTY", "")
	for _, c := range []struct {
		code  int
		says  string
		stdin string
		args  []string
	}{
		{
			3, "no worker is configured; give --llm URL --model MODEL, or these three lines of a config:\nplugins", "hi",
			nil,
		},
		{
			2, "--llm needs http:// or https://, such as http://127.0.0.1:1/v1", "hi",
			[]string{"--llm", "127.0.0.1:1", "--model", "m"},
		},
		{2, "--llm: needs --model", "hi", []string{"--llm", "http://127.0.0.1:9/v1"}},
		{2, "--model: is for --llm", "hi", []string{"--model", "m"}},
		{2, "are for the model of --llm", "hi", []string{"--thinking", "low"}},
		{2, `--thinking "much": should be one of off`, "hi", []string{
			"--llm", "http://127.0.0.1:9/v1", "--model", "m",
			"--thinking", "much",
		}},
		{3, "--api-key-env: there is no variable \"EMPTY\"", "hi", []string{
			"--llm", "http://127.0.0.1:9/v1", "--model",
			"m", "--api-key-env", "EMPTY",
		}},
		{2, "stdin holds no message", " \n", []string{"--llm", "http://127.0.0.1:9/v1", "--model", "m"}},
		{1, "no saved chat", "hi", []string{"--llm", "http://127.0.0.1:9/v1", "--model", "m", "--continue"}},
		{2, "--max-turns 1001: should be between 1 and 1000", "hi", []string{
			"--llm", "http://127.0.0.1:9/v1",
			"--model", "m", "--max-turns", "1001",
		}},
		{1, "there is none of no_such_tool", "hi", []string{
			"--llm", "http://127.0.0.1:9/v1", "--model", "m", "--tools",
			"no_such_tool",
		}},
	} {
		out, errs := piped(t, dir, c.stdin, c.code, c.args...)
		assert.That(t, out == "" && strings.Contains(errs, c.says), "%q: %q, %q; want %q", c.args, out, errs, c.says)
	}
}

// TestChatKey: the key from the environment is sent to the endpoint, and shown nowhere.
func TestChatKey(t *testing.T) {
	dir := workDir(t)
	model := llm.New(t, llm.Text("hello"), llm.Fail(401, "the key top-${HOME}-secret is wrong"))
	t.Setenv("SOME_KEY", "top-${HOME}-secret")
	with := []string{"--llm", model.URL, "--model", "m", "--api-key-env", "SOME_KEY"}
	piped(t, dir, "hi", 0, with...)
	assert.Equal(t, model.Requests()[0].Header.Get("Authorization"), "Bearer top-${HOME}-secret", "the endpoint")
	out, errs := piped(t, dir, "hi", 1, append(with, "--log-level", "trace")...)
	assert.That(t, !strings.Contains(out+errs, "top-$") && strings.Contains(errs, "check api_key"), "%q, %q", out, errs)
}

// TestWorkerWithAModel: a worker with a model does a task of multi_agent with the tools of the host, and its key is
// shown nowhere.
func TestWorkerWithAModel(t *testing.T) {
	t.Parallel()
	const key = "sk-secret-0123456789"
	model := llm.New(t,
		llm.Reply{
			Text:  []string{"I write", " it.\n"},
			Calls: []llm.Call{{Name: "write_file", Arguments: `{"path":"made.txt","content":"by a model\n"}`}},
			Input: 100, Output: 20,
		},
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
	if got := asked[0]; got.Effort != "low" || got.Header.Get("Authorization") != "Bearer "+key ||
		fmt.Sprint(got.Tools) != "[read_file write_file]" || !strings.Contains(got.Last("user"), "write made.txt") {
		t.Errorf("the model was asked with %+v", got)
	}
	last := asked[len(asked)-1]
	assert.Equal(t, last.Messages[len(last.Messages)-1].CallID, "call_1", "the model saw %+v", last.Messages)
	must.OK(t, l.stdin.Close())
	l.exit()
	assert.That(t, !strings.Contains(told+l.stderr.String(), key), "the key is shown")
}

// TestNoWorkerSaysWhatMakesOne: where a worker is missing, each protocol answers with the same text, which has a
// config that makes one.
func TestNoWorkerSaysWhatMakesOne(t *testing.T) {
	t.Parallel()
	dir, says := workDir(t), agent.NoWorker().Message
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
		if out, err := cmd.Output(); err != nil || !strings.Contains(string(out),
			strings.ReplaceAll(strings.ReplaceAll(says, `"`, `\"`), "\n", `\n`)) {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}
