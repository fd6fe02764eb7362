package e2e_test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/poll"
)

// web is a running `a2e serve --http`, and the HTTP client of a test.
type web struct {
	t       testing.TB
	live    *live
	url     string
	client  *http.Client
	headers http.Header
}

// serveWeb starts `a2e serve --http` with a config in a new folder; "" = no config.
func serveWeb(t testing.TB, config string, args ...string) *web {
	t.Helper()
	return serveWebIn(t, workDir(t), config, args...)
}

// serveWebIn starts `a2e serve --http` with a config in dir; "" = no config.
func serveWebIn(t testing.TB, dir, config string, args ...string) *web {
	t.Helper()
	if config != "" {
		must.OK(t, os.WriteFile(filepath.Join(dir, "c.yaml"), []byte(config), 0o600))
		args = append(args, "--config", "c.yaml")
	}
	return listening(t, dir, append([]string{"serve", "--http", "127.0.0.1:0"}, args...)...)
}

// listening starts a command that serves over HTTP, and waits until it listens.
func listening(t testing.TB, dir string, args ...string) *web {
	t.Helper()
	cmd := command(t, dir, "./a2e", args...)
	stderr := must.Get(cmd.StderrPipe())(t)
	must.OK(t, cmd.Start())
	w := &web{
		t: t, live: &live{t: t, cmd: cmd, passed: map[string]map[string]any{}}, client: http.DefaultClient,
		headers: http.Header{},
	}
	t.Cleanup(w.stop) // SIGTERM first: a killed host leaves things that the next host has to remove
	lines := bufio.NewReader(stderr)
	line := must.Get(lines.ReadString('\n'))(t)
	_, w.url, _ = strings.Cut(strings.TrimSpace(line), "a2e listens on ")
	must.That(t, w.url != "", "it says %q", line)
	go func() { _, _ = io.Copy(io.Discard, lines) }()
	return w
}

// stop ends the host, and waits for its end.
func (w *web) stop() {
	cmd := w.live.cmd
	if cmd.Process.Signal(syscall.SIGTERM) != nil {
		_ = cmd.Process.Kill()
	}
	late := time.AfterFunc(poll.Patience, func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	_ = cmd.Wait()
}

// do sends a request. headers are names, each followed by its value.
func (w *web) do(method, path, body string, headers ...string) (status int, answer string) {
	w.t.Helper()
	req := must.Get(http.NewRequestWithContext(w.t.Context(), method, w.url+path, strings.NewReader(body)))(w.t)
	req.Header = w.headers.Clone()
	for i := 0; i < len(headers); i += 2 {
		if req.Header.Set(headers[i], headers[i+1]); headers[i] == "Host" {
			req.Host = headers[i+1]
		}
	}
	resp := must.Get(w.client.Do(req))(w.t)
	defer resp.Body.Close()
	text := must.Get(io.ReadAll(resp.Body))(w.t)
	return resp.StatusCode, strings.TrimSpace(string(text))
}

// session opens a session, and sends its id with all further requests.
func (w *web) session() {
	w.t.Helper()
	status, text := w.do("POST", "/session", "")
	var got struct {
		ID string `json:"session_id"`
	}
	must.OK(w.t, json.Unmarshal([]byte(text), &got))
	must.That(w.t, status == 200 && got.ID != "", "POST /session: %d %s", status, text)
	w.headers.Set("X-Session-Id", got.ID)
}

func (w *web) send(body string) {
	w.t.Helper()
	status, text := w.do("POST", "/send", body)
	must.That(w.t, status == 200 && text == `{"ok":true}`, "POST /send: %d %s", status, text)
}

// event is one server-sent event.
type event struct {
	id   int
	data map[string]any
}

// read reads the events of a new stream until take returns false or the stream ends. last is the id of the last event
// that the client has; -1 = the request names no event.
func (w *web) read(last int, take func(event) bool) (status int) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	defer cancel()
	req := must.Get(http.NewRequestWithContext(ctx, "GET", w.url+"/stream", nil))(w.t)
	req.Header = w.headers.Clone()
	if last >= 0 {
		req.Header.Set("Last-Event-ID", strconv.Itoa(last))
	}
	resp := must.Get(w.client.Do(req))(w.t)
	defer resp.Body.Close()
	var e event
	for lines := bufio.NewReader(resp.Body); resp.StatusCode == 200; {
		line, err := lines.ReadString('\n')
		if err != nil {
			break
		}
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		switch key {
		case "id":
			e.id = must.Get(strconv.Atoi(value))(w.t)
		case "data":
			e.data = nil
			must.OK(w.t, json.Unmarshal([]byte(value), &e.data))
			if !take(e) {
				return resp.StatusCode
			}
		}
	}
	return resp.StatusCode
}

const webHello = `{"type":"handshake/req","id":"h","agent_id":"web","agent_caps":["tools","proc"]}`

// TestHTTPResumes: a client whose connections break gets every answer once, in order.
func TestHTTPResumes(t *testing.T) {
	w := serveWeb(t, "")
	w.session()
	w.send(webHello)
	const n = 300
	for i := range n {
		w.send(fmt.Sprintf(`{"type":"tool/call/req", "id":"%d",
			"tool_name":"echo","arguments":{"text":"line\u2028%d\u0085\u00e9"}}`, i, i))
	}
	seen, last := map[string]int{}, 0
	for round := 0; last < n+1; round++ {
		left := round%17 + 1
		w.read(last, func(e event) bool {
			assert.Equal(t, e.id, last+1, "the number of an event")
			last = e.id
			seen[fmt.Sprint(e.data["req_id"])]++
			left--
			return left > 0 && last < n+1
		})
	}
	assert.Equal(t, len(seen), n+1, "answers")
	for id, times := range seen {
		assert.Equal(t, times, 1, "answers to %s", id)
	}
	w.send(`{"type":"ping","id":"p"}`)
	// events that were lost with a broken stream are sent again only to a client that names its last event
	w.read(last, func(e event) bool {
		return e.data["req_id"] != "p"
	})
	status, text := w.do("GET", "/stream", "", "Last-Event-ID", "99999")
	assert.That(t, status == http.StatusGone && strings.Contains(text, "no event 99999"), "an event to come: %d %s",
		status, text)
	status, _ = w.do("GET", "/stream", "", "Last-Event-ID", "x")
	assert.Equal(t, status, http.StatusBadRequest, "an event without a number")
}

// TestHTTPRefuses: bad messages, requests without a session, requests from other sites and too many sessions are
// refused.
func TestHTTPRefuses(t *testing.T) {
	w := serveWeb(t, "http: {max_sessions: 2, origins: [\"https://app.example.org\"]}\nlimits: {max_line_bytes: "+
		"2048}\n")
	for _, c := range []struct {
		method, path, body string
		headers            []string
		status             int
		says               string
	}{
		{"GET", "/health", "", nil, 200, `{"status":"ok"}`},
		{"POST", "/send", "{}", nil, 400, "X-Session-Id is missing"},
		{"GET", "/stream", "", nil, 400, "X-Session-Id is missing"},
		{"POST", "/send", "{}", []string{"X-Session-Id", "nobody"}, 404, "no such session"},
		{"GET", "/stream", "", []string{"X-Session-Id", "nobody"}, 404, "no such session"},
		{"POST", "/session", "", []string{"Host", "evil.example:80"}, 403, "does not name this machine"},
		{"POST", "/session", "", []string{"Origin", "http://evil.example"}, 403, "origin"},
		{"POST", "/session", "", []string{"Origin", "null"}, 403, "origin"},
		{"POST", "/session", "", []string{"Sec-Fetch-Site", "cross-site"}, 403, "origin"},
		{"POST", "/session", "", []string{"Origin", "https://app.example.org"}, 200, "session_id"},
		{
			"OPTIONS", "/send", "",
			[]string{"Origin", "https://app.example.org", "Access-Control-Request-Method", "POST"},
			204, "",
		},
		{
			"OPTIONS", "/send", "",
			[]string{"Origin", "http://evil.example", "Access-Control-Request-Method", "POST"},
			403, "origin",
		},
		{"GET", "/session", "", nil, 405, ""},
		{"GET", "/", "", nil, 404, ""},
		{
			"POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`,
			[]string{"Content-Type", "application/json"},
			400, "begins with the request initialize",
		},
		{"GET", "/mcp", "", nil, 400, "Mcp-Session-Id is missing"},
		{"GET", "/mcp", "", []string{"Mcp-Session-Id", "nobody"}, 404, "no such session"},
	} {
		status, text := w.do(c.method, c.path, c.body, c.headers...)
		assert.That(t, status == c.status && strings.Contains(text, c.says), "%s %s %q: %d %s, should be %d %s",
			c.method, c.path, c.headers, status, text, c.status, c.says)
	}
	w.session()
	status, text := w.do("POST", "/session", "")
	assert.That(t, status == 503 && strings.Contains(text, "2 sessions"), "a third session: %d %s", status, text)
	for body, want := range map[string]int{
		`{"type":`: 400, "": 400, `{} {}`: 400,
		`{"a":"` + strings.Repeat("x", 3000) + `"}`: 413,
	} {
		status, text = w.do("POST", "/send", body)
		assert.Equal(t, status, want, "POST /send %.20q: %s", body, text)
	}
	status, _ = w.do("DELETE", "/session", "")
	assert.Equal(t, status, http.StatusNoContent, "DELETE /session")
	hosttest.Eventually(t, "the session has ended", func() bool {
		status, _ = w.do("POST", "/send", `{"type":"ping","id":"1"}`)
		return status == http.StatusNotFound
	})
}

// TestHTTPToken: with http.token, requests need the token, except for /health. Without it, the host only listens on
// addresses of this machine.
func TestHTTPToken(t *testing.T) {
	w := serveWeb(t, "http: {token: correct-horse}\n")
	for _, header := range []string{"", "correct-horse", "Bearer wrong", "Basic correct-horse"} {
		for _, path := range []string{"/session", "/mcp"} {
			status, text := w.do("POST", path, "", "Authorization", header)
			assert.That(t, status == 401 && !strings.Contains(text, "horse"), "%q: %d %s", header, status, text)
		}
	}
	status, _ := w.do("GET", "/health", "")
	assert.Equal(t, status, 200, "GET /health")
	w.headers.Set("Authorization", "bearer correct-horse")
	w.session()
	for address, says := range map[string]string{
		"0.0.0.0:0": "needs a token", "nonsense": "HOST:PORT",
		"127.0.0.1:99999": "invalid port",
	} {
		out, err := command(t, workDir(t), "./a2e", "serve", "--http", address).CombinedOutput()
		assert.That(t, err != nil && strings.Contains(string(out), says), "--http %s: %v %s", address, err, out)
	}
}

// TestHTTPCall: POST /call answers one request with one response, and leaves neither a session nor a process.
func TestHTTPCall(t *testing.T) {
	w := serveWeb(t, "http: {metrics: true, idle_seconds: 1}\n")
	for _, c := range []struct {
		body string
		want int
		says string
	}{
		{
			`{"type":"tool/call/req","tool_name":"echo","arguments":{"text":"hi"}}`, 200,
			`"req_id":"","data":{"success":true`,
		},
		{`{"type":"ping","id":7}`, 200, `"type":"pong"`},
		{`{"type":"tool/call/req","id":"\u0061","tool_name":"run_command","streaming":true,"arguments":{"command":["sleep","1.5"]}}`, 200, `"req_id":"\u0061","data":{"success":true`},
		{`{"type":"tool/call/req","id":"3","tool_name":"write_file","arguments":{"path":"a","content":"kept for the next call"}}`, 200, `"created":true`},
		{
			`{"type":"tool/call/req","id":"4","tool_name":"read_file","arguments":{"path":"a"}}`, 200,
			"kept for the next call",
		},
		{`{"type":"nope","id":"x"}`, 400, `"req_id":"x","code":"invalid_message"`},
		{`{"type":"TASK_DISPATCH","id":"x"}`, 400, `"code":"invalid_message"`},
		{`{"type":"cancel","req_id":"1"}`, 400, "has no answer; send it in a session"},
		{`{"type":"shutdown"}`, 400, "has no answer"},
		{`{"jsonrpc":"2.0","id":1,"method":"initialize"}`, 400, `has no \"type\"`},
		{`[]`, 400, "not an object"},
		{``, 400, "must be one message"},
	} {
		status, text := w.do("POST", "/call", c.body)
		assert.That(t, status == c.want && strings.Contains(text, c.says), "%s: %d %s", c.body, status, text)
	}
	gone, hangUp := context.WithCancel(t.Context())
	req := must.Get(http.NewRequestWithContext(gone, "POST", w.url+"/call", strings.NewReader(
		`{"type":"tool/call/req","tool_name":"run_command","arguments":{"command":["sleep","4242.8"]}}`)))(t)
	go func() {
		hosttest.Eventually(t, "the program runs", func() bool { return hosttest.Running(t, "4242.8") > 0 })
		hangUp()
	}()
	_, err := w.client.Do(req)
	assert.Is(t, err, context.Canceled)
	hosttest.Eventually(t, "the program has ended with its call",
		func() bool { return hosttest.Running(t, "4242.8") == 0 })
	hosttest.Eventually(t, "no session is left", func() bool {
		_, page := w.do("GET", "/metrics", "")
		return strings.Contains(page, "\na2e_sessions 0")
	})
}

// TestHTTPCallToken: the bearer of POST /call is the token of an agent, or http.token where that is set.
func TestHTTPCallToken(t *testing.T) {
	const ping, echo = `{"type":"ping"}`, `{"type":"tool/call/req","tool_name":"echo","arguments":{"text":"hi"}}`
	w := serveWeb(t, "auth_token: agents-token\n")
	for header, want := range map[string]int{"": 401, "Bearer wrong": 401, "Bearer agents-token": 200} {
		status, text := w.do("POST", "/call", echo, "Authorization", header)
		assert.That(t, status == want && !strings.Contains(text, "agents-token"), "%q: %d %s", header, status, text)
	}
	w = serveWeb(t, "auth_token: agents-token\nhttp: {token: correct-horse}\n")
	for header, want := range map[string]int{"Bearer agents-token": 401, "Bearer correct-horse": 200} {
		status, text := w.do("POST", "/call", ping, "Authorization", header)
		assert.Equal(t, status, want, "%q: %s", header, text)
	}
}

// TestHTTPIdle: a session without messages ends after http.idle_seconds.
func TestHTTPIdle(t *testing.T) {
	w := serveWeb(t, "http: {idle_seconds: 1}\n")
	w.session()
	hosttest.Eventually(t, "the session has ended", func() bool {
		status, _ := w.do("POST", "/send", "this is not a message, so it is not a use")
		return status == http.StatusNotFound
	})
}

// TestHTTPSlowReader: a session whose answers nobody reads refuses requests at some point, but loses no answer.
func TestHTTPSlowReader(t *testing.T) {
	w := serveWeb(t, "")
	w.session()
	w.send(webHello)
	text, sent := strings.Repeat("x", 500_000), 0
	for status := 200; status == 200; sent++ {
		must.That(t, sent < 1000, "500 MB were taken in")
		status, _ = w.do("POST", "/send", fmt.Sprintf(`{"type":"tool/call/req","id":"%d","tool_name":"echo","arguments":{"text":%q}}`, sent, text))
	}
	got := map[string]bool{}
	w.read(-1, func(e event) bool {
		got[fmt.Sprint(e.data["req_id"])] = true
		return len(got) < sent // sent - 1 answers, as the last request was refused, and that of the handshake
	})
	for i := range sent - 1 {
		assert.That(t, got[strconv.Itoa(i)], "no answer to %d of %d", i, sent)
	}
}

// TestHTTPEnd: on SIGTERM the host answers the requests that run, ends their processes, and closes the streams after
// the last answer.
func TestHTTPEnd(t *testing.T) {
	w := serveWeb(t, "")
	w.session()
	w.send(webHello)
	w.send(`{"type":"tool/call/req","id":"long","tool_name":"run_command","arguments":{"command":["sleep","4242.5"]}}`)
	hosttest.Eventually(t, "the program runs", func() bool { return hosttest.Running(t, "4242.5") > 0 })
	var last string
	w.read(-1, func(e event) bool {
		if e.data["req_id"] == "h" {
			must.OK(t, w.live.cmd.Process.Signal(syscall.SIGTERM))
		}
		last = fmt.Sprint(e.data["req_id"])
		return true
	})
	assert.Equal(t, last, "long", "the last answer")
	assert.That(t, w.live.cmd.Wait() == nil, "the end: %v", w.live.cmd.ProcessState)
	assert.Equal(t, hosttest.Running(t, "4242.5"), 0, "programs that are left")
}

// TestHTTPTwoSignals: a second SIGTERM ends the host at once, and with it a program that ignores SIGTERM.
func TestHTTPTwoSignals(t *testing.T) {
	w := serveWeb(t, "plugins: {tools: {allowed_commands: [sh]}}\n")
	w.session()
	w.send(webHello)
	w.send(`{"type":"tool/call/req","id":"long","tool_name":"run_command","arguments":{"command":["sh","-c","trap '' TERM; sleep 4242.8"]}}`)
	hosttest.Eventually(t, "the program runs", func() bool { return hosttest.Running(t, "4242.8") > 0 })
	must.OK(t, w.live.cmd.Process.Signal(syscall.SIGTERM))
	_ = w.live.cmd.Process.Signal(syscall.SIGTERM) // fails if the host has ended
	_ = w.live.cmd.Wait()
	hosttest.Eventually(t, "the program has ended", func() bool { return hosttest.Running(t, "4242.8") == 0 })
}

// TestHTTPDeleteDuringRequest: a session that its client deletes still answers the requests that it has received.
func TestHTTPDeleteDuringRequest(t *testing.T) {
	w := serveWeb(t, "")
	w.session()
	w.send(webHello)
	w.send(`{"type":"tool/call/req","id":"slow","tool_name":"run_command","arguments":{"command":["sh","-c","sleep 0.3; echo done"]}}`)
	status, _ := w.do("DELETE", "/session", "")
	assert.Equal(t, status, http.StatusNoContent, "DELETE /session")
	last := ""
	w.read(-1, func(e event) bool { last = fmt.Sprint(e.data); return true })
	assert.That(t, strings.Contains(last, "req_id:slow") && strings.Contains(last, "done"), "the last event is %s",
		last)
	hosttest.Eventually(t, "the session has ended", func() bool {
		status, _ = w.do("GET", "/stream", "")
		return status == http.StatusNotFound
	})
}

// TestHTTPBadPlugin: a wrong option of a plugin is reported when the host starts, not to the first client.
func TestHTTPBadPlugin(t *testing.T) {
	dir := workDir(t)
	must.OK(t, os.WriteFile(filepath.Join(dir, "c.yaml"), []byte("plugins: {memory: {embedder: {url: nonsense}}}\n"),
		0o600))
	out, err := command(t, dir, "./a2e", "serve", "--http", "127.0.0.1:0", "--config", "c.yaml").CombinedOutput()
	assert.That(t, exitCode(err) == 3 && strings.Contains(string(out), "c.yaml"), "it says %s", out)
}

// TestHTTPOverTLS: with a certificate the host serves HTTPS.
func TestHTTPOverTLS(t *testing.T) {
	dir := t.TempDir()
	key := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	about := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	cert := must.Get(x509.CreateCertificate(rand.Reader, about, about, &key.PublicKey, key))(t)
	secret := must.Get(x509.MarshalPKCS8PrivateKey(key))(t)
	for name, block := range map[string]*pem.Block{
		"cert.pem": {Type: "CERTIFICATE", Bytes: cert},
		"key.pem":  {Type: "PRIVATE KEY", Bytes: secret},
	} {
		must.OK(t, os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600))
	}
	w := serveWeb(t, fmt.Sprintf("http: {tls_cert: %q, tls_key: %q}\n", filepath.Join(dir, "cert.pem"),
		filepath.Join(dir, "key.pem")))
	assert.That(t, strings.HasPrefix(w.url, "https://"), "the address is %s", w.url)
	pool := x509.NewCertPool()
	pool.AddCert(must.Get(x509.ParseCertificate(cert))(t))
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}
	defer transport.CloseIdleConnections()
	w.client = &http.Client{Transport: transport}
	w.session()
	w.send(`{"type":"ping","id":"1"}`)
	w.read(-1, func(e event) bool {
		assert.Equal(t, e.data["type"], any("pong"), "the answer")
		return false
	})
}

// pageJudge is a Python program: it parses a page of metrics with the parser of its format, and prints the samples as
// JSON.
const pageJudge = `
import json, sys
if sys.argv[1] == "open":
    from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse
else:
    from prometheus_client.parser import text_string_to_metric_families as parse
print(json.dumps({s.name + "".join(f" {v}" for k, v in sorted(s.labels.items()) if k != "version"): s.value
    for family in parse(sys.stdin.read()) for s in family.samples}))`

// TestHTTPMetrics: the parsers of OpenMetrics and Prometheus can read the page of metrics. The page needs the token,
// and exists only with http.metrics.
func TestHTTPMetrics(t *testing.T) {
	w := serveWeb(t, "http: {metrics: true, token: correct-horse}\n")
	status, _ := w.do("GET", "/metrics", "")
	assert.Equal(t, status, 401, "without the token")
	w.headers.Set("Authorization", "Bearer correct-horse")
	w.session()
	w.send(webHello)
	w.send(`{"type":"tool/call/req","id":"1","tool_name":"echo","arguments":{"text":"x"}}`)
	w.send(`{"type":"tool/call/req","id":"2","tool_name":"none","arguments":{}}`)
	w.send(`{"type":"tool/call/req","id":"3","tool_name":"run_command","arguments":{"command":["sleep","4242.7"]}}`)
	hosttest.Eventually(t, "the program runs", func() bool { return hosttest.Running(t, "4242.7") > 0 })
	for form, accept := range map[string]string{"open": "application/openmetrics-text; version=1.0.0", "text": ""} {
		var page string
		hosttest.Eventually(t, "the answers", func() bool {
			status, page = w.do("GET", "/metrics", "", "Accept", accept)
			all := status == 200
			for _, line := range []string{
				`a2e_requests_total{outcome="ok",type="tool/call/req"}`,
				`a2e_requests_total{outcome="unknown_tool",type="tool/call/req"}`, "a2e_processes",
				"a2e_requests_open",
			} {
				all = all && strings.Contains(page, "\n"+line+" 1")
			}
			return all
		})
		judge := exec.CommandContext(t.Context(), root+"/testdata/peers/venv/bin/python", "-c", pageJudge, form)
		judge.Stdin, judge.Stderr = strings.NewReader(page+"\n"), os.Stderr
		var got map[string]float64
		must.OK(t, json.Unmarshal(must.Get(judge.Output())(t), &got))
		for name, want := range map[string]float64{
			"a2e_requests_total ok tool/call/req": 1, "a2e_requests_total unknown_tool tool/call/req": 1,
			"a2e_request_duration_seconds_count tool/call/req":       2,
			"a2e_request_duration_seconds_bucket +Inf tool/call/req": 2, "a2e_sessions": 1, "a2e_processes": 1,
			"a2e_requests_open": 1, "a2e_requests_waiting": 0, "go_info": 1,
		} {
			value, there := got[name]
			assert.That(t, there && value == want, "%s: %s is %v, should be %v", form, name, value, want)
		}
		assert.That(t, got["go_goroutines"] > 1 && got["process_start_time_seconds"] > 1e9 &&
			got["process_open_fds"] > 1, "%s: the process: %v", form, got)
	}
	off := serveWeb(t, "")
	status, _ = off.do("GET", "/metrics", "")
	assert.Equal(t, status, 404, "without http.metrics")
}

// TestMCPOverHTTP: each client of the MCP SDK has a session of its own.
func TestMCPOverHTTP(t *testing.T) {
	w := serveWeb(t, "")
	for range 2 {
		session := must.Get(sdk.NewClient(&sdk.Implementation{Name: "tester", Version: "1"}, nil).
			Connect(t.Context(), &sdk.StreamableClientTransport{Endpoint: w.url + "/mcp"}, nil))(t)
		res := must.Get(session.CallTool(t.Context(), &sdk.CallToolParams{
			Name:      "echo",
			Arguments: map[string]any{"text": "over HTTP"},
		}))(t)
		said := must.Get(json.Marshal(res))(t)
		assert.That(t, !res.IsError && regexp.MustCompile("over HTTP").Match(said), "it says %s", said)
		must.OK(t, session.Close())
	}
}

// mcp sends a message of MCP and returns the answer up to the end of its stream.
func (w *web) mcp(body string) (status int, answer string) {
	w.t.Helper()
	return w.do("POST", "/mcp", body, "Content-Type", "application/json", "Accept", "application/json, "+
		"text/event-stream")
}

const mcpHello = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":%q,"version":"1"},"_meta":{"a2e/auth_token":%q}}}`

// TestWallMCPOverHTTPAgents: an MCP client over HTTP cannot take the name of an agent that has a token. Where agents
// need tokens, a client without any token is refused.
func TestWallMCPOverHTTPAgents(t *testing.T) {
	const agents = "auth: [{agent_id: alice, token: alice-3f6c0a}]\n"
	for _, c := range []struct {
		config, bearer, name, token string
		in                          bool
	}{
		{agents, "", "alice", "", false},
		{agents, "", "carol", "", false},
		{agents, "", "alice", "wrong", false},
		{agents, "", "claude", "alice-3f6c0a", true},
		{agents + "http: {token: correct-horse}\n", "correct-horse", "alice", "", false},
		{agents + "http: {token: correct-horse}\n", "correct-horse", "alice", "wrong", false},
		{agents + "http: {token: correct-horse}\n", "correct-horse", "claude", "alice-3f6c0a", true},
		{agents + "http: {token: correct-horse}\n", "correct-horse", "carol", "", true},
		{"auth_token: sesame-1\n", "", "carol", "", false},
		{"auth_token: sesame-1\n", "", "carol", "sesame-1", true},
		{"", "", "carol", "", true},
	} {
		w := serveWeb(t, c.config)
		if c.bearer != "" {
			w.headers.Set("Authorization", "Bearer "+c.bearer)
		}
		_, text := w.mcp(fmt.Sprintf(mcpHello, c.name, c.token))
		assert.That(t, strings.Contains(text, "serverInfo") == c.in && strings.Contains(text, "unauthorized") != c.in,
			"%+v: %s", c, text)
	}
}

// TestMCPOverHTTPEachRequestEnds: each request is answered, also one that the client cancels and one whose id is
// refused.
func TestMCPOverHTTPEachRequestEnds(t *testing.T) {
	w := serveWeb(t, "")
	first := must.Get(http.NewRequestWithContext(t.Context(), "POST", w.url+"/mcp",
		strings.NewReader(fmt.Sprintf(mcpHello, "tester", ""))))(t)
	first.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}
	resp := must.Get(w.client.Do(first))(t)
	must.Get(io.Copy(io.Discard, resp.Body))(t)
	resp.Body.Close()
	w.headers.Set("Mcp-Session-Id", resp.Header.Get("Mcp-Session-Id"))
	w.mcp(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	for _, id := range []string{"7", `"seven"`} {
		ended := make(chan string, 1)
		go func() {
			_, text := w.mcp(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":"run_command","arguments":{"command":["sleep","4242.7"]}}}`, id))
			ended <- text
		}()
		hosttest.Eventually(t, "the program runs", func() bool { return hosttest.Running(t, "4242.7") > 0 })
		for _, id := range []string{"7.5", id, id} { // 7.5 is the id of no request
			status, text := w.mcp(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s}}`, id))
			assert.That(t, status == 202, "%d %s", status, text)
		}
		text := <-ended
		assert.That(t, strings.Contains(text, "cancelled") && strings.Count(text, "data:") <= 2, "%s ends with %q", id,
			text)
		hosttest.Eventually(t, "the program has ended", func() bool { return hosttest.Running(t, "4242.7") == 0 })
	}
	for id, want := range map[string]int{
		"9007199254740992": 200, "9007199254740993": 400, "1.5": 400,
		"-9007199254740993": 400, "1e2": 400, `"1.5"`: 200,
	} {
		status, text := w.mcp(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"ping"}`, id))
		assert.That(t, status == want && (want == 400) == strings.Contains(text, "2^53") &&
			(want == 400 || strings.Contains(text, `"id":`+id)), "id %s: %d %s", id, status, text)
	}
}

// TestMCPOverHTTPBothWays: progress and questions of an MCP server behind the host reach the client that called the
// tool. A call that the client cancels is stopped.
func TestMCPOverHTTPBothWays(t *testing.T) {
	peers := must.Get(filepath.Abs(filepath.Join(root, "testdata/peers/node_modules")))(t)
	w := serveWeb(t, fmt.Sprintf("mcpServers: {all: {command: node, args: [%q], read: [%q]}}\n",
		filepath.Join(peers, "@modelcontextprotocol/server-everything/dist/index.js"), peers))
	_, hello := w.mcp(fmt.Sprintf(mcpHello, "tester", ""))
	assert.That(t, strings.Contains(hello, "subscribe") && !strings.Contains(hello, `"tasks"`),
		"it offers what no request gets through: %s", hello)
	var heard atomic.Int64
	session := must.Get(sdk.NewClient(&sdk.Implementation{Name: "tester", Version: "1"}, &sdk.ClientOptions{
		ProgressNotificationHandler: func(context.Context, *sdk.ProgressNotificationClientRequest) { heard.Add(1) },
		CreateMessageHandler: func(context.Context, *sdk.CreateMessageRequest) (*sdk.CreateMessageResult, error) {
			return &sdk.CreateMessageResult{
				Role: "assistant", Model: "m",
				Content: &sdk.TextContent{Text: "it is heard"},
			}, nil
		},
	}).Connect(t.Context(), &sdk.StreamableClientTransport{Endpoint: w.url + "/mcp"}, nil))(t)
	res := must.Get(session.CallTool(t.Context(), &sdk.CallToolParams{
		Name:      "all__trigger-sampling-request",
		Arguments: map[string]any{"prompt": "hi"},
	}))(t)
	assert.Contains(t, string(must.Get(json.Marshal(res))(t)), "it is heard")
	params := &sdk.CallToolParams{Name: "all__trigger-long-running-operation", Arguments: map[string]any{
		"duration": 1,
		"steps":    3,
	}}
	params.SetProgressToken("token")
	must.Get(session.CallTool(t.Context(), params))(t)
	hosttest.Eventually(t, "progress", func() bool { return heard.Load() >= 3 })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := session.CallTool(ctx, &sdk.CallToolParams{
			Name:      "run_command",
			Arguments: map[string]any{"command": []string{"sleep", "4242.9"}},
		})
		ended <- err
	}()
	hosttest.Eventually(t, "the program runs", func() bool { return hosttest.Running(t, "4242.9") > 0 })
	cancel()
	assert.That(t, <-ended != nil, "a call that was taken back has a result")
	hosttest.Eventually(t, "the program has ended", func() bool { return hosttest.Running(t, "4242.9") == 0 })
	must.OK(t, session.Close())
}
