package e2e_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/llm"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/poll"
)

// wordCounter counts the words of a brief. For a brief that begins with "sleep" it takes long.
const wordCounter = `read x; case "$x" in sleep*) exec sleep 600;; *) echo "$x" | wc -w;; esac`

// agentWorker starts `a2e worker --http` with the word counter and a config.
func agentWorker(t *testing.T, config string) *web {
	t.Helper()
	dir := workDir(t)
	must.OK(t, os.WriteFile(filepath.Join(dir, "c.yaml"), []byte(config), 0o600))
	return listening(t, dir, "worker", "--http", "127.0.0.1:0", "--config", "c.yaml", "--max-tasks", "4",
		"--no-contract", "--", "sh", "-c", wordCounter)
}

// TestSDKClientsOfA2A: the clients of the A2A SDK for Python, versions 1 and 0.3, discover a worker, and send,
// stream, cancel and follow tasks.
func TestSDKClientsOfA2A(t *testing.T) {
	t.Parallel()
	w := agentWorker(t, "http: {token: sdk-client-token-of-a-test}\nhost_id: counter\n")
	for folder, want := range map[string]string{
		"a2a": `card counter ['1.0', '0.3'] True
stream TASK_STATE_SUBMITTED TASK_STATE_WORKING 5 TASK_STATE_COMPLETED
send TASK_STATE_COMPLETED 2 True True
begun TASK_STATE_WORKING
subscribed TASK_STATE_WORKING
cancelled TASK_STATE_CANCELED
followed TASK_STATE_CANCELED
got TASK_STATE_CANCELED
listed 2
missing TaskNotFoundError
`,
		"a2a03": `card counter 0.3.0 True
stream submitted working 5 completed
send completed 2 True True
begun working
subscribed working
cancelled canceled
followed canceled
got canceled
missing A2AClientJSONRPCError
`,
	} {
		dir := filepath.Join(root, "testdata", folder)
		client := exec.CommandContext(t.Context(), filepath.Join(dir, "venv/bin/python"),
			filepath.Join(dir, "client.py"), w.url, "sdk-client-token-of-a-test")
		var errs strings.Builder
		client.Stderr = &errs
		out, err := client.Output()
		assert.That(t, err == nil && string(out) == want, "%s: %v\n%s%s", folder, err, out, errs.String())
	}
}

// rpc sends a request of JSON-RPC and returns the answer.
func (w *web) rpc(method, params string) map[string]any {
	w.t.Helper()
	status, text := w.do("POST", "/jsonrpc", `{"jsonrpc":"2.0","id":"q","method":"`+method+`","params":`+params+`}`)
	must.That(w.t, status == 200, "%s: %d %s", method, status, text)
	var answer map[string]any
	must.OK(w.t, json.Unmarshal([]byte(text), &answer))
	must.That(w.t, answer["id"] == "q" && answer["jsonrpc"] == "2.0", "%s answers %s", method, text)
	return answer
}

// at returns the value at a path of an answer, such as result/message/contextId. In a list any key means the first
// element.
func at(of any, path string) any {
	for _, key := range strings.Split(path, "/") {
		switch in := of.(type) {
		case map[string]any:
			of = in[key]
		case []any:
			if len(in) == 0 {
				return nil
			}
			of = in[0]
		default:
			return nil
		}
	}
	return of
}

// TestPlainClientOfA2A: a client that knows only the plain spelling reads the first text of a message. There it finds
// the TASK_RESULT of a dispatch, of its inline form and of prose, and for a greeting a description of the worker.
func TestPlainClientOfA2A(t *testing.T) {
	t.Parallel()
	w := agentWorker(t, "host_id: counter\n")
	ask := func(message string) map[string]any {
		t.Helper()
		return w.rpc("SendMessage", `{"message":`+message+`}`)
	}
	resultOf := func(answer map[string]any) (result map[string]any) {
		t.Helper()
		text, _ := at(answer, "result/message/parts/0/text").(string)
		must.That(t, at(answer, "result/kind") == "message" && at(answer, "result/message/role") == "agent" &&
			json.Unmarshal([]byte(text), &result) == nil, "the answer is %v", answer)
		return result
	}
	prose := ask(`{"role":"user","parts":[{"text":"three words here"}]}`)
	assert.Equal(t, resultOf(prose)["summary"], any("3"), "prose")
	context, _ := at(prose, "result/message/contextId").(string)
	assert.That(t, context != "", "there is no contextId in %v", prose)
	dispatch := ask(`{"role":"user","contextId":"c1","parts":[{"text":"{\"type\":\"TASK_DISPATCH\",\"protocol_version\":\"2.0\",\"task\":{\"task_id\":\"t1\"},\"brief\":\"two words\"}"}]}`)
	if r := resultOf(dispatch); r["task_id"] != "t1" || r["summary"] != "2" || r["type"] != "TASK_RESULT" ||
		at(dispatch, "result/message/contextId") != "c1" {
		t.Errorf("the dispatch is answered %v", dispatch)
	}
	inline := ask(`{"role":"user","parts":[{"text":"TASK DISPATCH (inline)\ntask_id: t2\n\nfour words are here"}]}`)
	assert.That(t, resultOf(inline)["summary"] == "4" && resultOf(inline)["task_id"] == "t2", "the inline form: %v",
		inline)
	unmet := resultOf(ask(`{"role":"user","parts":[{"text":"TASK DISPATCH (inline)\nrequired_mcp: linear\n\nwords"}]}`))
	assert.That(t, unmet["status"] == "blocked" && strings.Contains(unmet["blocked_reason"].(string), "linear"),
		"a task that needs what is not there: %v", unmet)
	greeting, _ := at(ask(`{"role":"user","contextId":"handshake:boss","parts":[{"text":"hello"}]}`),
		"result/message/parts/0/text").(string)
	head, announce, _ := strings.Cut(greeting, "\n")
	assert.That(t, head == "[A2A HANDSHAKE ACK v1]" && strings.Contains(announce, `"SESSION_ANNOUNCE"`) &&
		strings.Contains(announce, `"agent_id":"counter"`), "the greeting is answered %q", greeting)
	status, text := w.do("GET", "/health", "")
	assert.That(t, status == 200 && text == `{"status":"ok"}`, "GET /health: %d %s", status, text)
}

// TestMistakesOfClientsOfA2A: a wrong request gets a JSON-RPC error that names the mistake, and leaves no task
// behind.
func TestMistakesOfClientsOfA2A(t *testing.T) {
	t.Parallel()
	w := agentWorker(t, "limits: {max_line_bytes: 4096}\n")
	for _, c := range []struct {
		method, params string
		code           float64
		says           string
	}{
		{"Dance", `{}`, -32601, `there is no method "Dance"`},
		{"SendMessage", `{}`, -32602, "message.parts is empty"},
		{"SendMessage", `{"message":{"parts":[{"text":""}]}}`, -32602, "the message has no text"},
		{"SendMessage", `{"message":{"parts":[{"txt":"a"}]}}`, -32602, "neither text nor data"},
		{"SendMessage", `{"message":{"role":"agent","parts":[{"text":"a"}]}}`, -32602, `message.role is "agent"`},
		{"SendMessage", `{"message":{"role":7,"parts":[{"text":"a"}]}}`, -32602, "/message/role"},
		{
			"message/send", `{"message":{"parts":[{"kind":"file","file":{"uri":"http://127.0.0.1/x"}}]}}`, -32005,
			"files are not taken",
		},
		{
			"SendMessage", `{"message":{"parts":[{"text":"{\"type\":\"TASK_DISPATCH\",\"task\":7,\"brief\":\"a\"}"}]}}`,
			-32602, "TASK_DISPATCH does not fit",
		},
		{"SendMessage", `{"message":{"taskId":"none","parts":[{"text":"a"}]}}`, -32001, `there is no task "none"`},
		{"message/send", `{"message":{"parts":[{"kind":"text","text":"a"}]},"configuration":{"pushNotificationConfig":{"url":"http://127.0.0.1/x"}}}`, -32003, "push notifications are not supported"},
		{"CreateTaskPushNotificationConfig", `{"taskId":"x"}`, -32003, "push notifications are not supported"},
		{"GetTask", `{}`, -32602, "params.id is missing"},
		{"tasks/get", `{"id":"none"}`, -32001, `there is no task "none"`},
		{"tasks/cancel", `{"id":"none"}`, -32001, `there is no task "none"`},
		{"tasks/resubscribe", `{"id":"none"}`, -32001, `there is no task "none"`},
		{"ListTasks", `{"pageSize":1000}`, -32602, "params.pageSize is 1000"},
		{"ListTasks", `{"pageToken":"x"}`, -32602, "params.pageToken"},
		{"ListTasks", `{"status":"TASK_STATE_ASLEEP"}`, -32602, "params.status"},
		{"ListTasks", `{"statusTimestampAfter":"yesterday"}`, -32602, "params.statusTimestampAfter"},
		{"GetExtendedAgentCard", `{}`, -32007, "there is no extended card"},
	} {
		answer := w.rpc(c.method, c.params)
		text, _ := at(answer, "error/message").(string)
		assert.That(t, at(answer, "error/code") == c.code && strings.Contains(text, c.says), "%s %s: %v", c.method,
			c.params, answer)
	}
	for body, want := range map[string]string{
		`{bad`: `"code":-32700`, `[]`: "batches are not taken", `7`: `"code":-32600`,
		`{"jsonrpc":"1.0","id":1,"method":"GetTask"}`: `jsonrpc should be`,
		`{"jsonrpc":"2.0","method":"GetTask"}`:        "id is missing",
	} {
		status, text := w.do("POST", "/jsonrpc", body)
		assert.That(t, status == 200 && strings.Contains(text, want), "%s: %d %s", body, status, text)
	}
	if status, text := w.do("POST", "/jsonrpc", `{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":"`+strings.Repeat("x", 5000)+`"}}`); status != 413 || !strings.Contains(text, "longer than 4096 bytes") {
		t.Errorf("a message that is too long: %d %s", status, text)
	}
	if status, text := w.do("POST", "/jsonrpc", `{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{}}`,
		"A2A-Version", "2.0"); !strings.Contains(text, "-32009") {
		t.Errorf("another version: %d %s", status, text)
	}
	for path, headers := range map[string][]string{
		"/.well-known/agent-card.json": {"Host", "evil.example"},
		"/jsonrpc":                     {"Origin", "https://evil.example"},
	} {
		method := map[bool]string{true: "GET", false: "POST"}[strings.HasPrefix(path, "/.well")]
		status, text := w.do(method, path, "{}", headers...)
		assert.That(t, status == 403, "%s with %v: %d %s", path, headers, status, text)
	}
	status, _ := w.do("POST", "/session", "")
	assert.Equal(t, status, 404, "a worker has no sessions")
	twice := `{"message":{"messageId":"m","parts":[{"text":"one two"}]}}`
	w.rpc("SendMessage", twice)
	assert.Equal(t, at(w.rpc("SendMessage", twice), "error/code"), any(-32001.0), "a message that is sent twice")
	assert.That(t, at(w.rpc("ListTasks", `{}`), "result/totalSize") == 1.0, "mistakes left tasks behind")
}

// TestTokensOfA2A: each token sees only the tasks that it sent. Without a token only the card is served.
func TestTokensOfA2A(t *testing.T) {
	t.Parallel()
	const ada, bob = "token-of-ada-for-a-test", "token-of-bob-for-a-test"
	w := agentWorker(t, "auth: [{token: "+ada+", agent_id: ada}, {token: "+bob+", agent_id: bob}]\n")
	status, text := w.do("GET", "/.well-known/agent-card.json", "")
	assert.That(t, status == 200 && strings.Contains(text, `"security":[{"bearer":[]}]`), "the card: %d %s", status,
		text)
	_, text = w.do("GET", "/.well-known/agent-card.json", "", "A2A-Version", "1.0")
	assert.That(t, strings.Contains(text, `"httpAuthSecurityScheme"`) && !strings.Contains(text,
		`"url":"http`+strings.TrimPrefix(w.url, "http")+`/jsonrpc","version"`), "the card of 1.0: %s", text)
	for _, token := range []string{"", "Bearer wrong", "Basic " + ada} {
		status, text := w.do("POST", "/jsonrpc", `{"jsonrpc":"2.0","id":1,"method":"ListTasks","params":{}}`,
			"Authorization", token)
		assert.That(t, status == 401 && strings.Contains(text, "a token is needed"), "with %q: %d %s", token, status,
			text)
	}
	w.headers.Set("Authorization", "Bearer "+ada)
	task, _ := at(w.rpc("message/send", `{"message":{"parts":[{"kind":"text","text":"of ada"}]}}`),
		"result/id").(string)
	assert.That(t, task != "" && at(w.rpc("tasks/get", `{"id":"`+task+`"}`), "result/status/state") == "completed",
		"ada's own task")
	w.headers.Set("Authorization", "Bearer "+bob)
	assert.Equal(t, at(w.rpc("tasks/get", `{"id":"`+task+`"}`), "error/code"), any(-32001.0), "bob asks for ada's task")
	assert.Equal(t, at(w.rpc("ListTasks", `{}`), "result/totalSize"), any(0.0), "bob's list")
	for _, c := range [][3]string{
		{ada, "one two", "2"},
		{bob, "one two three", "3"},
		{ada, "one", "2"},
	} { // the third is ada's first task again, whose result is known
		w.headers.Set("Authorization", "Bearer "+c[0])
		answer := w.rpc("message/send", `{"message":{"parts":[{"kind":"text","text":"TASK DISPATCH (inline)\ntask_id: shared\n\n`+c[1]+`"}]}}`)
		assert.Equal(t, resultIn(answer)["summary"], any(c[2]), "the task of a name that both chose, of %s", c[0])
	}
}

// TestRepliesOfA2A: a result that is ready after a simple client has stopped waiting is posted to the orchestrator,
// and posted again after a failure.
func TestRepliesOfA2A(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var posted []map[string]any
	tries := 0
	boss := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if tries++; tries == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		var body map[string]any
		raw, _ := io.ReadAll(r.Body)
		if json.Unmarshal(raw, &body) == nil && r.Header.Get("Authorization") == "Bearer key-of-the-boss" {
			posted = append(posted, body)
		}
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":{}}`)
	}))
	defer boss.Close()
	dir := workDir(t)
	gate := filepath.Join(dir, "gate")
	must.OK(t, os.WriteFile(filepath.Join(dir, "c.yaml"), []byte("fleet: {reply_url: '"+boss.URL+"', reply_token: "+
		"key-of-the-boss, answer_within: 0.2}\n"), 0o600))
	w := listening(t, dir, "worker", "--http", "127.0.0.1:0", "--config", "c.yaml", "--no-contract", "--",
		"sh", "-c", "while ! [ -e gate ]; do sleep 0.05; done; wc -w")
	answer := w.rpc("SendMessage", `{"message":{"role":"user","contextId":"c7","parts":[{"text":"two words"}]}}`)
	text, _ := at(answer, "result/message/parts/0/text").(string)
	must.That(t, at(answer, "result/kind") == "message" && strings.HasPrefix(text, "[queued]"), "the answer is %v",
		answer)
	must.OK(t, os.WriteFile(gate, nil, 0o600))
	poll.Eventually(t, "the result is posted", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(posted) > 0
	})
	mu.Lock()
	defer mu.Unlock()
	text, _ = at(posted[0], "params/message/parts/0/text").(string)
	assert.That(t, posted[0]["method"] == "SendMessage" && at(posted[0], "params/message/role") == "agent" &&
		at(posted[0], "params/message/contextId") == "c7" &&
		strings.Contains(text, `"summary":"2"`) && tries == 2, "after %d tries it got %v", tries, posted[0])
}

// TestEndOfA2A: a worker that is interrupted answers each message that it has received.
func TestEndOfA2A(t *testing.T) {
	t.Parallel()
	w := agentWorker(t, "")
	answers := make(chan string, 3)
	for range 3 {
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), poll.Patience)
			defer cancel()
			req, _ := http.NewRequestWithContext(ctx, http.MethodPost, w.url+"/jsonrpc", strings.NewReader(
				`{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"parts":[{"kind":"text","text":"sleep"}]}}}`))
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				answers <- err.Error()
				return
			}
			defer resp.Body.Close()
			raw, _ := io.ReadAll(resp.Body)
			answers <- string(raw)
		}()
	}
	poll.Eventually(t, "the tasks are at work", func() bool {
		return at(w.rpc("ListTasks", `{"status":"TASK_STATE_WORKING"}`), "result/totalSize") == 3.0
	})
	must.OK(t, w.live.cmd.Process.Signal(os.Interrupt))
	for range 3 {
		select {
		case got := <-answers:
			assert.That(t, strings.Contains(got, `"state":"failed"`) || strings.Contains(got, `"state":"rejected"`),
				"the answer is %s", got)
		case <-time.After(poll.Patience):
			t.Fatal("a message has no answer")
		}
	}
}

// TestServeA2A: a host that serves sessions over HTTP is a worker too, if its config has the key fleet.
func TestServeA2A(t *testing.T) {
	t.Parallel()
	const worker = "plugins: {multi_agent: {workers: [{name: w, command: [wc, -w], contract: false}]}}\n"
	w := serveWeb(t, "fleet: {agent_id: counter}\n"+worker)
	assert.Equal(t, at(w.rpc("message/send", `{"message":{"parts":[{"kind":"text","text":"one two three"}]}}`),
		"result/status/state"), any("completed"), "a task")
	w.session()
	w.send(`{"type":"handshake/req","id":"1","agent_id":"x","agent_caps":[]}`)
	none := serveWeb(t, worker)
	status, _ := none.do("POST", "/jsonrpc", `{}`)
	assert.Equal(t, status, 404, "a host whose config says nothing of a fleet")
}

// TestTextsForTasksOfA2A: a message with the id of a task goes to its worker, if that takes texts while it works;
// else it is refused.
func TestTextsForTasksOfA2A(t *testing.T) {
	t.Parallel()
	w := agentWorker(t, "")
	begin := func(w *web) string {
		t.Helper()
		id, _ := at(w.rpc("message/send", `{"message":{"parts":[{"kind":"text","text":"sleep"}]},"configuration":{"blocking":false,"pushNotificationConfig":null}}`), "result/id").(string)
		must.That(t, id != "", "the task has no id")
		return id
	}
	refused := w.rpc("message/send", `{"message":{"taskId":"`+begin(w)+`","parts":[{"kind":"text","text":"hurry"}]}}`)
	assert.Equal(t, at(refused, "error/code"), any(-32004.0), "a text for a program: %v", refused)
	model := llm.New(t, llm.Reply{Stall: true}, llm.Text("done"))
	dir := workDir(t)
	must.OK(t, os.WriteFile(filepath.Join(dir, "c.yaml"), []byte("plugins: {multi_agent: {workers: [{name: w, llm: "+
		"{url: '"+model.URL+"', model: m}, tools: [], contract: false}]}}\n"), 0o600))
	w = listening(t, dir, "worker", "--http", "127.0.0.1:0", "--config", "c.yaml")
	id := begin(w)
	model.AwaitStall(t)
	taken := w.rpc("message/send", `{"message":{"taskId":"`+id+`","parts":[{"kind":"text","text":"say it in verse"}]},"configuration":{"blocking":false}}`)
	assert.Equal(t, at(taken, "result/id"), any(id), "a text for a model: %v", taken)
	model.Release()
	poll.Eventually(t, "the task ends", func() bool {
		return at(w.rpc("tasks/get", `{"id":"`+id+`"}`), "result/status/state") == "completed"
	})
	requests := model.Requests()
	assert.Equal(t, requests[len(requests)-1].Last("user"), "say it in verse", "the last that the model was told")
	other := w.rpc("message/send", `{"message":{"taskId":"`+id+`","parts":[{"kind":"text","text":"too late"}]}}`)
	assert.Equal(t, at(other, "error/code"), any(-32602.0), "a text for a task that has ended: %v", other)
}
