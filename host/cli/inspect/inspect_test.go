package inspect_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"a2e/host/cli/inspect"
	"a2e/host/guard/redact"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

const header = `{"a2e_record":1,"version":"v1","started":1.5,"workspace":"/w"}` + "\n"

// serve serves a source until the test ends, and returns the address.
func serve(t *testing.T, source inspect.Source) string {
	t.Helper()
	ready, done := make(chan string, 1), make(chan error, 1)
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		done <- inspect.Serve(ctx, inspect.Options{
			Source: source, Chains: oneChain{}, MaxLine: 1000,
			Ready: func(url string) { ready <- url },
		})
	}()
	t.Cleanup(func() {
		stop()
		assert.OK(t, <-done)
	})
	return <-ready
}

// oneChain is a folder with one saved chain.
type oneChain struct{}

func (oneChain) Saved() []string { return []string{"greet"} }

func (oneChain) ReadSaved(name string) (path string, text []byte, err error) {
	if name != "greet" {
		return "", nil, errors.New("is wrong, as there is none")
	}
	return "chains/greet.yaml", []byte("nodes: []\n"), nil
}

// recordOf writes a record and returns its path.
func recordOf(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "r.ndjson")
	must.OK(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

// open returns the source of a file.
func open(t *testing.T, file string, follow bool) inspect.Source {
	t.Helper()
	return must.Get(inspect.OpenFile(file, follow))(t)
}

// asked sends a request, with headers as name and value, and returns status and body.
func asked(t *testing.T, method, url, body string, headers ...string) (int, string) {
	t.Helper()
	req := must.Get(http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body)))(t)
	for i := 0; i < len(headers); i += 2 {
		if req.Header.Set(headers[i], headers[i+1]); headers[i] == "Host" {
			req.Host = headers[i+1]
		}
	}
	resp := must.Get(http.DefaultTransport.RoundTrip(req))(t)
	defer resp.Body.Close()
	for name, want := range map[string]string{
		"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff",
		"Referrer-Policy": "no-referrer",
	} {
		assert.Equal(t, resp.Header.Get(name), want, "%s", name)
	}
	policy := resp.Header.Get("Content-Security-Policy")
	assert.That(t, strings.HasPrefix(policy, "default-src 'self';") && !strings.Contains(policy, "unsafe"),
		"the policy is %q", policy)
	return resp.StatusCode, string(must.Get(io.ReadAll(resp.Body))(t))
}

// TestNobodyElseGetsIn: only requests of this machine's page, at the whole address with its secret word, are served.
func TestNobodyElseGetsIn(t *testing.T) {
	t.Parallel()
	url := serve(t, open(t, recordOf(t, header), false))
	base := url[:strings.LastIndex(strings.TrimSuffix(url, "/"), "/")]
	assert.That(t, len(url)-len(base) > 22, "the word in %s is short", url)
	port := base[strings.LastIndex(base, ":"):]
	for _, c := range []struct {
		url     string
		headers []string
		status  int
	}{
		{url, nil, 200},
		{url + "api/info", nil, 200},
		{url + "api/info", []string{"Origin", base, "Sec-Fetch-Site", "same-origin"}, 200},
		{url + "api/info", []string{"Host", "localhost" + port}, 200},
		{
			url + "api/info",
			[]string{"Host", "[::1]" + port},
			200,
		},
		{base + "/", nil, 404},
		{base, nil, 404},
		{strings.TrimSuffix(url, "/"), nil, 404},
		{base + "/wrong/api/info", nil, 404},
		{base + "/api/info", nil, 404},
		{base + "//", nil, 404},
		{url[:len(url)-2] + "/api/info", nil, 404},
		{
			strings.ToUpper(url[len(base):]), nil,
			404,
		},
		{url + "../api/info", nil, 404},
		{url + "page/index.html", nil, 404},
		{url + "%2e%2e/inspect.go", nil, 404},
		{url + "..%2finspect.go", nil, 404},
		{url + "/etc/passwd", nil, 404},
		{url + "js/../index.html", nil, 404},
		{url + "js", nil, 404},
		{url + "api/", nil, 404},
		{url + "api/secrets", nil, 404},
		{url + "api/info", []string{"Host", "evil.example" + port}, 403},
		{url, []string{"Host", "evil.example"}, 403},
		{url, []string{"Host", "127.0.0.1.evil.example"}, 403},
		{url, []string{"Host", "10.0.0.1" + port}, 403},
		{url, []string{"Host", ""}, 200},
		{url + "api/info", []string{"Origin", "http://evil.example"}, 403},
		{
			url + "api/info",
			[]string{"Origin", "null"},
			403,
		},
		{url + "api/info", []string{"Origin", "http://127.0.0.1:1"}, 403},
		{
			url + "api/stream",
			[]string{"Sec-Fetch-Site", "cross-site"},
			403,
		},
		{url + "api/stream?after=x", nil, 400},
		{url + "api/stream?after=-1", nil, 400},
		{url + "api/send", nil, 405},
	} {
		if !strings.HasPrefix(c.url, "http") {
			c.url = base + c.url
		}
		status, body := asked(t, http.MethodGet, c.url, "", c.headers...)
		assert.Equal(t, status, c.status, "GET %s %q: %.80s", c.url, c.headers, body)
	}
	for _, what := range []string{"send", "start", "stop"} {
		status, body := asked(t, http.MethodPost, url+"api/"+what, "{}")
		assert.That(t, status == 409 && strings.Contains(body, `{"error":"`), "POST %s to a record: %d %s", what,
			status, body)
	}
}

// TestRecordAsItIs: the stream has the entries of a record byte for byte. A line that is not an entry is sent as the
// text of a broken entry, and only the head of a line of a gigabyte.
func TestRecordAsItIs(t *testing.T) {
	t.Parallel()
	first := `{"n":1,"ts":1.000000,"dir":"in","msg":{"type":"ping"}}`
	file := recordOf(t, header+first+"\nrubbish \xff\n"+strings.Replace(first, `"n":1`, `"n":3`, 1)+"\n")
	f := must.Get(os.OpenFile(file, os.O_RDWR, 0))(t)
	end := must.Get(f.Seek(0, io.SeekEnd))(t)
	const huge = 1 << 30 // of zeros, which need no space on the disk
	must.OK(t, f.Truncate(end+huge))
	must.Get(f.WriteAt([]byte("\n{\"n\":5,\"ts\":1,\"dir\":\"in\",\"te"), end+huge))(t)
	must.OK(t, f.Close())
	url := serve(t, open(t, file, false))
	_, body := asked(t, http.MethodGet, url+"api/stream", "")
	lines := strings.Split(strings.TrimSpace(body), "\n")
	must.Equal(t, len(lines), 6, "lines of %.2000s", body)
	assert.Equal(t, lines[0], first)
	assert.Equal(t, lines[1], `{"n":2,"broken":true,"text":"rubbish `+"\uFFFD"+`"}`)
	assert.That(t, strings.Contains(lines[3], `{"n":4,"broken":true,`) && strings.HasSuffix(lines[3],
		fmt.Sprintf(`"cut":true,"size":%d}`, huge)) && len(lines[3]) < 50_000, "the huge line is %.200s", lines[3])
	assert.Equal(t, lines[4], `{"n":5,"broken":true,"text":"{\"n\":5,\"ts\":1,\"dir\":\"in\",\"te"}`)
	assert.Equal(t, lines[5], `{"end":true,"entries":5}`)
	_, body = asked(t, http.MethodGet, url+"api/stream?after=2", "")
	assert.That(t, strings.HasPrefix(body, `{"n":3,`), "behind the second: %.200s", body)
	_, body = asked(t, http.MethodGet, url+"api/info", "")
	assert.Equal(t, body, `{"mode":"record","version":"v1","workspace":"/w","file":"`+file+`","can_send":false}`)
}

// streamed opens a stream. next returns its lines, without the beats.
func streamed(t *testing.T, url string) (next func() string) {
	t.Helper()
	resp := must.Get(http.DefaultTransport.RoundTrip(must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet,
		url, nil))(t)))(t)
	t.Cleanup(func() { resp.Body.Close() })
	lines := bufio.NewReader(resp.Body)
	return func() string {
		for {
			line := must.Get(lines.ReadString('\n'))(t)
			if line != "{\"beat\":true}\n" {
				return strings.TrimSpace(line)
			}
		}
	}
}

// TestFollow: a record is followed before its file exists, while it grows by parts of lines, when it is truncated,
// and when another file takes its name.
func TestFollow(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "r.ndjson")
	next := streamed(t, serve(t, open(t, file, true))+"api/stream")
	entry := func(n int) string { return fmt.Sprintf(`{"n":%d,"ts":1,"dir":"in","msg":{}}`, n) }
	write := func(text string) {
		f := must.Get(os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600))(t)
		must.Get(f.WriteString(text))(t)
		must.OK(t, f.Close())
	}
	write(header[:10])
	write(header[10:] + entry(1) + "\n" + entry(2)[:9])
	assert.Equal(t, next(), entry(1))
	write(entry(2)[9:] + "\n")
	assert.Equal(t, next(), entry(2))
	must.OK(t, os.WriteFile(file, []byte(header), 0o600))
	assert.Equal(t, next(), `{"reset":true}`)
	write(entry(1) + "\n")
	assert.Equal(t, next(), entry(1))
	must.OK(t, os.Rename(file, file+".1"))
	write(header + entry(7) + "\n")
	assert.Equal(t, next(), `{"reset":true}`)
	assert.Equal(t, next(), entry(7))
}

// TestRefusedFiles: a file that is not a record is refused, and so is one that could make the program wait forever.
func TestRefusedFiles(t *testing.T) {
	t.Parallel()
	for text, says := range map[string]string{
		"": "not a record", "x": "not a record", `{"a":1}` + "\n": "not a record",
		`{"a2e_record":2,"version":"v9"}` + "\n": "has the format 2",
	} {
		_, err := inspect.OpenFile(recordOf(t, text), false)
		assert.Fails(t, err, says, "%q", text)
	}
	_, err := inspect.OpenFile(t.TempDir(), true)
	assert.Fails(t, err, "not a regular file")
	_, err = inspect.OpenFile(filepath.Join(t.TempDir(), "none"), false)
	assert.Fails(t, err, "no such file")
}

// liveOf starts a shell script as the host of a page.
func liveOf(t *testing.T, script string) (live *inspect.Live, url string) {
	t.Helper()
	secrets := redact.New(nil)
	secrets.AddSecret("canary-of-config")
	live = inspect.NewLive(inspect.LiveOptions{
		Command: func() *exec.Cmd { return exec.Command("sh", "-c", script) }, MaxLine: 1000, Secrets: secrets,
		Environ: []string{"MY_TOKEN=canary-of-env"},
		Info:    inspect.Info{Mode: inspect.ModeLive, CanSend: true},
	})
	must.OK(t, live.Start())
	t.Cleanup(live.Stop)
	return live, serve(t, live)
}

// event has the members of an entry that the tests read.
type event struct {
	N     int64          `json:"n"`
	Dir   string         `json:"dir"`
	Src   string         `json:"src"`
	Event string         `json:"event"`
	Code  *int           `json:"code"`
	Text  string         `json:"text"`
	Cut   bool           `json:"cut"`
	Msg   map[string]any `json:"msg"`
}

func read(t *testing.T, line string) (e event) {
	t.Helper()
	assert.That(t, !strings.Contains(line, "canary"), "a secret is in %s", line)
	must.OK(t, json.Unmarshal([]byte(line), &e))
	return e
}

// TestLive: messages of the page reach the host, and lines of the host reach the page, without secrets. The host can
// be stopped and started again, and its death is shown.
func TestLive(t *testing.T) {
	t.Parallel()
	_, url := liveOf(t, `echo canary-of-env >&2; while read line; do case $line in '"die"') exit 3;; '"long"') head -c 5000 /dev/zero | tr '\0' x; echo;; *) echo "$line";; esac; done`)
	next := streamed(t, url+"api/stream")
	send := func(body string, want int) {
		t.Helper()
		status, answer := asked(t, http.MethodPost, url+"api/send", body)
		assert.Equal(t, status, want, "sent %.50s: %s", body, answer)
	}
	assert.Equal(t, read(t, next()).Event, "started")
	assert.Equal(t, read(t, next()).Text, "[redacted]", "stderr")
	send(`{"id":1,"auth_token":"canary-of-handshake","x":"canary-of-config","y":"curl 'https://me:canary-of-address@h.example/?page=2&api_key=canary-of-query'"}`, 204)
	for _, dir := range []string{"in", "out"} {
		e := read(t, next())
		assert.That(t, e.Dir == dir && (e.Src == "page") == (dir == "in") && e.Msg["id"] == 1.0, "%s: %+v", dir, e)
	}
	send(`{"id":`, 400)
	send("{}\n{}", 400)
	send(`"`+strings.Repeat("x", 2000)+`"`, 413)
	send(`"long"`, 204)
	next()
	assert.That(t, read(t, next()).Cut, "the long line is whole")
	send(`"die"`, 204)
	next()
	e := read(t, next())
	must.That(t, e.Event == "ended" && e.Code != nil && *e.Code == 3, "the end is %+v", e)
	send(`{}`, 409)
	for _, what := range []string{"start", "start", "stop"} {
		status, body := asked(t, http.MethodPost, url+"api/"+what, "")
		assert.Equal(t, status, 204, "%s: %s", what, body)
	}
	for _, want := range []string{"started", "ended", "started", "ended"} {
		for e = read(t, next()); e.Dir == "err"; e = read(t, next()) {
		}
		assert.Equal(t, e.Event, want)
	}
}

// TestStalledPage: a page that reads nothing does not stop the host. A page is told how many entries were dropped.
func TestStalledPage(t *testing.T) {
	t.Parallel()
	const lines = 230_000
	_, url := liveOf(t, fmt.Sprintf(`yes '{"id":1}' | head -n %d; echo '{"id":"last"}'; read line`, lines))
	resp := must.Get(http.DefaultTransport.RoundTrip(must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet,
		url+"api/stream", nil))(t)))(t)
	defer resp.Body.Close() // nothing is read from it
	last := read(t, streamed(t, url+fmt.Sprintf("api/stream?after=%d", lines+1))())
	assert.Equal(t, last.Msg["id"], any("last"))
	next := streamed(t, url+"api/stream")
	first := next()
	assert.Contains(t, first, fmt.Sprintf(`"dropped":%d}`, lines+2-200_000))
	assert.Equal(t, read(t, next()).N, read(t, first).N+1, "the entry behind")
}

// TestChains: the page gets the saved chains, the text of one, and YAML as JSON.
func TestChains(t *testing.T) {
	_, url := liveOf(t, "cat")
	for _, c := range []struct {
		method, path, body string
		status             int
		says               string
	}{
		{"GET", "api/chains", "", 200, `{"chains":["greet"]}`},
		{"GET", "api/chains?name=greet", "", 200, `{"text":"nodes: []\n"}`},
		{"GET", "api/chains?name=..%2Fx", "", 404, "there is none"},
		{"POST", "api/json", "a: [1, {b: yes}]", 200, `{"value":{"a":[1,{"b":"yes"}]}}`},
		{"POST", "api/json", `{"a": 1}`, 200, `{"value":{"a":1}}`},
		{"POST", "api/json", "a: [1", 200, `{"error":"line`},
		{"POST", "api/json", "", 200, `{"error":"the file is empty"}`},
		{"POST", "api/json", strings.Repeat("x", 1001), 413, "longer than"},
		{"GET", "api/json", "", 405, "should be POST"},
		{"GET", "api/what", "", 404, "chains, info, json, send, start, stop, stream"},
	} {
		status, text := asked(t, c.method, url+c.path, c.body)
		assert.That(t, status == c.status && strings.Contains(text, c.says), "%s %s: %d %s", c.method, c.path, status,
			text)
	}
}
