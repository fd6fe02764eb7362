package e2e_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/go-json-experiment/json"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/llm"
	"a2e/host/hosttest/must"
)

// oldAgent is an agent of A2A 0.3 that knows nothing of the fleet protocol.
type oldAgent struct {
	mu    sync.Mutex
	asked []string       // methods, each with the text of a message or the id of a task
	looks map[string]int // requests tasks/get by the id of the task
}

func (a *oldAgent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r.URL.Path == "/.well-known/agent-card.json" {
		fmt.Fprintf(w, `{"name":"old","url":"http://%s/rpc","protocolVersion":"0.3.0","skills":[{"id":"write","tags":["prose"]}]}`, r.Host)
		return
	}
	raw, _ := io.ReadAll(r.Body)
	var req map[string]any
	_ = json.Unmarshal(raw, &req)
	text, _ := at(req, "params/message/parts/0/text").(string)
	if i := strings.LastIndex(text, "[Task]\n"); i >= 0 {
		text = text[i+len("[Task]\n"):]
	}
	id, _ := at(req, "params/id").(string)
	a.asked = append(a.asked, fmt.Sprint(req["method"], " ", text, id))
	answer := func(result string) { fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%q,"result":%s}`, req["id"], result) }
	task := func(id, state, rest string) {
		answer(fmt.Sprintf(`{"kind":"task","id":%q,"contextId":"c","status":{"state":%q}%s}`, id, state, rest))
	}
	switch {
	case req["method"] == "tasks/get":
		if a.looks[id]++; a.looks[id] < 3 {
			task(id, "working", "")
			return
		}
		task(id, "completed", `,"artifacts":[{"artifactId":"a","parts":[{"kind":"text","text":"a poem"}]}]`)
	case text == "poem":
		task("t1", "submitted", "")
	case text == "reject":
		answer(`{"kind":"task","id":"t2","contextId":"c","status":{"state":"rejected","message":{"kind":"message","role":"agent","messageId":"m","parts":[{"kind":"text","text":"not today"}]}}}`)
	case text == "refuse":
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%q,"error":{"code":-32602,"message":"no thanks"}}`, req["id"])
	case text == "structured":
		answer(`{"kind":"message","role":"agent","messageId":"m","contextId":"c","parts":[{"kind":"text","text":"{\"status\":\"partial\",\"summary\":\"half\",\"remaining\":\"the rest\",\"artifacts\":{\"pr\":\"https://github.com/acme/app/pull/7\"}}"}]}`)
	default:
		answer(`{"kind":"message","role":"agent","messageId":"m","contextId":"c","parts":[{"kind":"text","text":"hello"}]}`)
	}
}

// resultsOf sends briefs to an `a2e worker` with a config, and returns the results in the order of the briefs.
func resultsOf(t *testing.T, dir, config string, briefs ...string) []map[string]any {
	t.Helper()
	must.OK(t, os.WriteFile(filepath.Join(dir, "c.yaml"), []byte(config), 0o600))
	cmd := command(t, dir, "./a2e", "worker", "--config", "c.yaml")
	in, out := must.Get(cmd.StdinPipe())(t), must.Get(cmd.StdoutPipe())(t)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	must.OK(t, cmd.Start())
	for i, brief := range briefs {
		fmt.Fprintf(in, `{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"task_id":"%d"},"brief":%q}`+"\n", i,
			brief)
	}
	results := make([]map[string]any, len(briefs))
	left := len(briefs)
	for scan := bufio.NewScanner(out); left > 0 && scan.Scan(); {
		var m map[string]any
		must.OK(t, json.Unmarshal(scan.Bytes(), &m))
		var i int
		if _, err := fmt.Sscan(fmt.Sprint(m["task_id"]), &i); m["type"] == "TASK_RESULT" && err == nil {
			must.That(t, results[i] == nil, "a second result: %v", m)
			results[i] = m
			left--
		}
	}
	in.Close()
	must.OK(t, cmd.Wait())
	must.That(t, left == 0, "%d tasks have no result: %s", left, errs.String())
	return results
}

// TestAgentsAsWorkers: any agent of A2A can be a worker. It is found by its card and followed until its task ends,
// and its text is the result.
func TestAgentsAsWorkers(t *testing.T) {
	t.Parallel()
	agent := &oldAgent{looks: map[string]int{}}
	server := httptest.NewServer(agent)
	defer server.Close()
	config := "plugins: {multi_agent: {workers: [{name: far, url: '" + server.URL + "'}]}}\n"
	got := resultsOf(t, workDir(t), config, "poem", "hi", "reject", "refuse", "structured")
	assert.That(t, got[0]["status"] == "done" && got[0]["summary"] == "a poem", "a task that takes its time: %v",
		got[0])
	assert.That(t, got[1]["status"] == "done" && got[1]["summary"] == "hello", "a message: %v", got[1])
	assert.That(t, got[2]["status"] == "blocked" && strings.Contains(fmt.Sprint(got[2]["blocked_reason"]), "not today"),
		"a task that is rejected: %v", got[2])
	assert.That(t, got[3]["status"] == "error" && strings.Contains(fmt.Sprint(got[3]["error"]), "no thanks"),
		"a request that is refused: %v", got[3])
	assert.That(t, got[4]["status"] == "partial" && got[4]["summary"] == "half" &&
		at(got[4], "artifacts/pr") == "https://github.com/acme/app/pull/7", "an answer in the shape of the brief: %v",
		got[4])
	dir := workDir(t)
	writeConfig(t, dir, config)
	list := func(want ...string) {
		t.Helper()
		words := strings.Fields(strings.Split(run(t, dir, nil, "fleet", "ls").want(t, 0, "").stdout, "\n")[1])
		assert.Equal(t, strings.Join(words, " "), "far "+strings.Join(want, " "), "fleet ls")
	}
	list("ready", "-", "-", server.URL, "old")
	assert.That(t, strings.Contains(run(t, dir, nil, "agents", "list").want(t, 0, "").stdout, "a2a"), "agents list")
	server.Close()
	list("dead", "-", "-", server.URL, "-")
	dead := resultsOf(t, workDir(t), config, "poem")
	assert.That(t, dead[0]["status"] == "error" && strings.Contains(fmt.Sprint(dead[0]["error"]), "was not reached"),
		"an agent that is gone: %v", dead[0])
	for _, c := range [][2]string{
		{"{name: w, url: 'ftp://x'}", "is not the address of an agent"},
		{"{name: w, url: 'http://127.0.0.1:1', command: [cat]}", "it should have one of them"},
		{"{name: w, command: [cat], token: a-token-without-a-url}", "token is for an agent with a url"},
		{"{name: w, cli: claude, mode: fleet}", "leave out llm, fleet and mode"},
	} {
		dir := workDir(t)
		must.OK(t, os.WriteFile(filepath.Join(dir, "c.yaml"), []byte("plugins: {multi_agent: {workers: ["+c[0]+"]}}\n"),
			0o600))
		run(t, dir, nil, "worker", "--config", "c.yaml").want(t, 3, c[1])
	}
}

// TestDispatchOverThreeKindsOfWorkers: of sixty tasks for three kinds of workers each has one result, although the
// worker at another address is killed twice.
func TestDispatchOverThreeKindsOfWorkers(t *testing.T) {
	t.Parallel()
	model := llm.New(t)
	model.Answer(func(*llm.Request) llm.Reply { return llm.Text(`{"status":"done","summary":"by the model"}`) })
	far := workDir(t)
	begin := func(address string) *web {
		return listening(t, far, "worker", "--http", address, "--max-tasks", "2", "--no-contract", "--", "sh", "-c",
			"cat > /dev/null; sleep 0.05; echo by the agent")
	}
	w := begin("127.0.0.1:0")
	dir := workDir(t)
	must.OK(t, os.WriteFile(filepath.Join(dir, "c.yaml"), []byte(fmt.Sprintf(`plugins:
  multi_agent:
    workers:
      - {name: model, llm: {url: '%s', model: m}}
      - {name: program, command: [sh, -c, 'cat > /dev/null; sleep 0.05; echo by the program'], contract: false}
      - {name: agent, url: '%s', retries: 20}
`, model.URL, w.url)), 0o600))
	var tasks bytes.Buffer
	for i := range 60 {
		fmt.Fprintf(&tasks, `{"task_id":"t%d","brief":"do it","worker":"%s"}`+"\n", i,
			[]string{"model", "program", "agent"}[i%3])
	}
	must.OK(t, os.WriteFile(filepath.Join(dir, "tasks.ndjson"), tasks.Bytes(), 0o600))
	cmd := command(t, dir, "./a2e", "dispatch", "tasks.ndjson", "--config", "c.yaml", "--retries", "20", "-q")
	out := must.Get(cmd.StdoutPipe())(t)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	must.OK(t, cmd.Start())
	got, by := map[string]int{}, map[string]int{}
	for scan := bufio.NewScanner(out); scan.Scan(); {
		var r map[string]any
		must.OK(t, json.Unmarshal(scan.Bytes(), &r))
		got[fmt.Sprint(r["task_id"])]++
		by[fmt.Sprint(r["status"], " ", r["summary"])]++
		if n := by["done by the agent"]; (n == 5 || n == 12) && r["summary"] == "by the agent" {
			must.OK(t, w.live.cmd.Process.Kill())
			_ = w.live.cmd.Wait()
			w = begin(strings.TrimPrefix(w.url, "http://"))
		}
	}
	err := cmd.Wait()
	assert.That(t, err == nil && len(got) == 60 && by["done by the model"] == 20 && by["done by the program"] == 20 &&
		by["done by the agent"] == 20,
		"the results are %v of %d tasks: %v\n%s", by, len(got), err, errs.String())
	for id, n := range got {
		assert.That(t, n == 1, "task %s has %d results", id, n)
	}
}
