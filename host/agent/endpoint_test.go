package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v5"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/schema"
	"a2e/protocol"
)

const testKey = "sk-test-0123456789abcdef"

// modelServer answers each request with a function, and counts the requests.
type modelServer struct {
	*httptest.Server
	count atomic.Int32
}

func newModelServer(t *testing.T, answer func(w http.ResponseWriter, r *http.Request, nth int)) *modelServer {
	t.Helper()
	s := &modelServer{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer(w, r,
			int(s.count.Add(1)))
	}))
	t.Cleanup(s.Close)
	return s
}

// answers returns a handler that always sends the same answer.
func answers(status int, body string) func(http.ResponseWriter, *http.Request, int) {
	return func(w http.ResponseWriter, _ *http.Request, _ int) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

const fineAnswer = `{"choices":[{"message":{"role":"assistant","content":"fine"},"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":2}}`

// connect returns a model that does not pause between its tries.
func connect(t *testing.T, o EndpointOptions) *endpoint {
	t.Helper()
	o.Model, o.AllowPrivate = "m", true
	m := must.Get(NewEndpoint(o))(t)
	e := m.(*endpoint)
	e.server.BackOff = func() backoff.BackOff { return &backoff.ZeroBackOff{} }
	t.Cleanup(func() {
		assert.OK(t, e.Close())
	})
	return e
}

func TestEndpoint(t *testing.T) {
	var bodies []string
	s := newModelServer(t, func(w http.ResponseWriter, r *http.Request, nth int) {
		body, _ := io.ReadAll(r.Body)
		bodies = append(bodies, string(body))
		assert.That(t, r.Method == http.MethodPost && r.URL.Path == "/v1/chat/completions" &&
			r.Header.Get("Authorization") == "Bearer "+testKey, "%s %s %v", r.Method, r.URL, r.Header)
		if nth == 1 {
			_, _ = io.WriteString(w, `{"choices":[{"message":{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"dir_add","arguments":"{\"a\":1}"}},{"id":"c2","type":"function","function":{"name":"text","arguments":"[1"}}]},"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":100,"completion_tokens":10}}`)
			return
		}
		_, _ = io.WriteString(w, fineAnswer)
	})
	e := connect(t, EndpointOptions{URL: s.URL + "/v1", APIKey: testKey})
	tools := []Tool{
		{Name: "dir/add", Description: "adds", Schema: schema.Object(nil, false)},
		{Name: "dir.add", Schema: schema.Object(nil, false)},
		{Name: "text", Schema: schema.Object(nil, false)},
	}
	r := Request{System: "sys", Messages: []Message{{Role: RoleUser, Text: "hi"}}, Tools: tools}
	reply, err := e.Complete(t.Context(), r)
	if err != nil || len(reply.Calls) != 2 || reply.Calls[0].Name != "dir/add" ||
		string(reply.Calls[0].Arguments.Raw()) != `{"a":1}` || reply.Calls[1].Invalid == "" ||
		reply.Tokens != (Tokens{100, 10, false}) {
		t.Fatalf("%+v, %v", reply, err)
	}
	r.Messages = append(r.Messages, Message{Role: RoleAssistant, Calls: reply.Calls},
		Message{Role: RoleTool, Text: "3", Of: reply.Calls[0]})
	if reply, err = e.Complete(t.Context(), r); err != nil || reply.Text != "fine" {
		t.Fatalf("%+v, %v", reply, err)
	}
	want := `{"model":"m","messages":[{"role":"system","content":"sys"},{"role":"user","content":"hi"},{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"dir_add","arguments":"{\"a\":1}"}},{"id":"c2","type":"function","function":{"name":"text","arguments":"{}"}}]},{"role":"tool","content":"3","tool_call_id":"c1"}],"tools":[{"type":"function","function":{"name":"dir_add","description":"adds","parameters":{"type":"object","properties":{}}}},{"type":"function","function":{"name":"dir_add_2","description":"","parameters":{"type":"object","properties":{}}}},{"type":"function","function":{"name":"text","description":"","parameters":{"type":"object","properties":{}}}}],"stream":true,"stream_options":{"include_usage":true}}`
	assert.Equal(t, bodies[1], want, "sent")
}

// TestEndpointFails: which failures are tried again, how often, and what the error says at the end.
func TestEndpointFails(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(http.ResponseWriter, *http.Request, int)
		tries  int32
		says   string // part of the error; "" = no error
		retry  bool
	}{
		"fine": {answers(200, fineAnswer), 1, "", false},
		"busy, then fine": {func(w http.ResponseWriter, r *http.Request, nth int) {
			answers([]int{429, 503, 200}[nth-1], fineAnswer)(w, r, nth)
		}, 3, "", false},
		"asks for a moment": {func(w http.ResponseWriter, r *http.Request, nth int) {
			w.Header().Set("Retry-After", "0")
			answers([]int{429, 200}[nth-1], fineAnswer)(w, r, nth)
		}, 2, "", false},
		"asks for an hour": {func(w http.ResponseWriter, r *http.Request, nth int) {
			w.Header().Set("Retry-After", "3600")
			answers(429, "")(w, r, nth)
		}, 1, "status 429", true},
		"always busy":  {answers(500, `{"error":{"message":"too\nmany"}}`), maxModelTries, "too many", true},
		"unauthorized": {answers(401, `{}`), 1, "check api_key", false},
		"bad request":  {answers(400, `{"error":{"message":"what model?"}}`), 2, "what model?", false},
		"elsewhere": {func(w http.ResponseWriter, r *http.Request, _ int) {
			http.Redirect(w, r, "http://other.invalid/", http.StatusTemporaryRedirect)
		}, 1, "elsewhere", false},
		"no JSON":   {answers(200, `<html>`), 1, "not of the form", true},
		"no choice": {answers(200, `{"choices":[]}`), 1, "not of the form", true},
		"null":      {answers(200, `null`), 1, "not of the form", true},
		"huge": {answers(200, `{"choices":[{"message":{"content":"`+strings.Repeat("x",
			maxModelAnswer)+`"}}]}`), 1, "larger than", false},
		"huge error": {
			answers(400, `{"error":{"message":"`+strings.Repeat("x", 1<<20)+`"}}`), 2, "status 400",
			false,
		},
		"nested":        {answers(200, strings.Repeat("[", 1<<20)), 1, "not of the form", true},
		"hangs up":      {hangUp, maxModelTries, "EOF", true},
		"calls by null": {answers(200, `{"choices":[{"message":{"content":null,"tool_calls":null}}]}`), 1, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newModelServer(t, c.answer)
			e := connect(t, EndpointOptions{URL: s.URL, APIKey: testKey})
			_, err := e.Complete(t.Context(), Request{Messages: []Message{{Role: RoleUser, Text: "hi"}}})
			if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) ||
				s.count.Load() != c.tries {
				t.Errorf("%v after %d tries", err, s.count.Load())
			}
			refused := (*protocol.Error)(nil)
			assert.That(t, err == nil || errors.As(err, &refused) && refused.Retryable == c.retry &&
				len(err.Error()) <= 1000, "%#v", err)
		})
	}
}

func hangUp(w http.ResponseWriter, _ *http.Request, _ int) {
	if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
		_ = conn.Close()
	}
}

// TestEndpointTime: neither a silent server nor a cancelled caller waits longer than it should: a silent server ends
// with the timeout, and a caller that goes away gets its own error.
func TestEndpointTime(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	s := newModelServer(t, func(w http.ResponseWriter, r *http.Request, nth int) {
		if nth < maxModelTries {
			answers(503, "")(w, r, nth)
			return
		}
		_ = http.NewResponseController(w).Flush()
		select {
		case <-r.Context().Done():
		case <-release:
		}
	})
	defer close(release)
	// long enough for a busy machine to begin the answer
	e := connect(t, EndpointOptions{URL: s.URL, Timeout: 5 * time.Second})
	if _, err := e.Complete(t.Context(), Request{}); err == nil || !strings.Contains(err.Error(),
		"the answer stalled: nothing came for 5s") || s.count.Load() != maxModelTries {
		t.Error(err, s.count.Load())
	}
	gone := errors.New("gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(20*time.Millisecond, func() { cancel(gone) })
	_, err := connect(t, EndpointOptions{URL: s.URL}).Complete(ctx, Request{})
	assert.That(t, errors.Is(err, gone), "%v", err)
}

// TestEndpointSecrets: no failure shows a secret, and the key is not sent to a server to which a redirect leads.
func TestEndpointSecrets(t *testing.T) {
	const user, password, token = "bobthebuilder", "hunter2hunter2", "query-token-77"
	echo := newModelServer(t, func(w http.ResponseWriter, r *http.Request, nth int) {
		w.WriteHeader(400)
		fmt.Fprintf(w, `{"error":{"message":"%s %s"}}`, r.Header.Get("Authorization"), r.URL)
	})
	for _, o := range []EndpointOptions{
		{URL: strings.Replace(echo.URL, "://", "://"+user+":"+password+"@", 1) + "?t=" + token},
		{URL: echo.URL, APIKey: testKey},
		{URL: "http://" + user + ":" + password + "@127.0.0.1:1/?t=" + token, APIKey: testKey},
	} {
		e := connect(t, o)
		_, err := e.Complete(t.Context(), Request{})
		shown := fmt.Sprintf("%v %+v %#v %+v", err, err, err, e)
		for _, secret := range []string{testKey, user, password, token, testKey[:10]} {
			assert.That(t, err != nil && !strings.Contains(shown, secret), "%s is shown: %s", secret, shown)
		}
	}
	other := newModelServer(t, func(w http.ResponseWriter, r *http.Request, nth int) {
		t.Errorf("the other server was asked, with %q", r.Header.Get("Authorization"))
	})
	for _, status := range []int{301, 302, 303, 307, 308} {
		s := newModelServer(t, func(w http.ResponseWriter, r *http.Request, _ int) {
			http.Redirect(w, r, other.URL,
				status)
		})
		_, err := connect(t, EndpointOptions{URL: s.URL, APIKey: testKey}).Complete(t.Context(), Request{})
		assert.That(t, err != nil, "status %d went well", status)
	}
}

// TestEndpointPrivate: without AllowPrivate an endpoint connects to no private address.
func TestEndpointPrivate(t *testing.T) {
	s := newModelServer(t, answers(200, fineAnswer))
	for _, where := range []string{
		s.URL, strings.Replace(s.URL, "127.0.0.1", "localhost", 1), "http://10.0.0.1:1",
		"http://169.254.169.254", "http://[::1]:1",
	} {
		m, err := NewEndpoint(EndpointOptions{URL: where, Model: "m"})
		if err == nil {
			_, err = m.Complete(t.Context(), Request{})
		}
		assert.Fails(t, err, "private network", "%s", where)
	}
	assert.Equal(t, s.count.Load(), 0, "it was asked … times")
}

func TestEndpointOptions(t *testing.T) {
	for name, o := range map[string]EndpointOptions{
		"no url": {Model: "m"}, "no scheme": {URL: "example.org", Model: "m"}, "file": {
			URL:   "file:///etc/passwd",
			Model: "m",
		}, "no host": {URL: "http://", Model: "m"},
		"no model": {URL: "http://a"}, "key": {URL: "http://a", Model: "m", APIKey: "a\r\nX: y"},
		"key with space": {URL: "http://a", Model: "m", APIKey: "a b"},
		"timeout":        {URL: "http://a", Model: "m", Timeout: -1},
	} {
		_, err := NewEndpoint(o)
		assert.That(t, err != nil, "%s was taken", name)
	}
}

// TestServedBy: the providers of a model are asked for only at an endpoint that can have them, and only for names of
// models that are safe in a path.
func TestServedBy(t *testing.T) {
	told := `{"data":{"endpoints":[{"provider_name":"Two"},{"provider_name":"One"},{"provider_name":"Two"},{}]}}`
	for model, c := range map[string]struct {
		status     int
		body, path string // path of the request; "" = there is none
		want       string
	}{
		"a/m 1":     {200, told, "/v1/models/a/m%201/endpoints", "[One Two] false <nil>"},
		"m":         {200, `{"data":{"endpoints":[]}}`, "/v1/models/m/endpoints", "[] false <nil>"},
		"a/other":   {200, `{"data":{"id":"a/other"}}`, "/v1/models/a/other/endpoints", "[] true <nil>"},
		"a/page":    {200, `<html>`, "/v1/models/a/page/endpoints", "[] true <nil>"},
		"a/gone":    {404, told, "/v1/models/a/gone/endpoints", "[] true <nil>"},
		"a/refused": {401, told, "/v1/models/a/refused/endpoints", "status 401 Unauthorized: check api_key"},
		"../../x":   {200, told, "", "[] true <nil>"},
		"a//x":      {200, told, "", "[] true <nil>"},
	} {
		asked := ""
		s := newModelServer(t, func(w http.ResponseWriter, r *http.Request, nth int) {
			if asked = r.URL.EscapedPath(); r.Method != http.MethodGet ||
				r.Header.Get("Authorization") != "Bearer "+testKey {
				t.Errorf("%s %v", r.Method, r.Header)
			}
			answers(c.status, c.body)(w, r, nth)
		})
		providers, none, err := ServedBy(t.Context(), EndpointOptions{
			URL:    s.URL + "/v1/chat/completions",
			APIKey: testKey, AllowPrivate: true,
		}, model)
		got := fmt.Sprint(providers, none, err)
		assert.That(t, strings.HasSuffix(got, c.want) && asked == c.path, "%s: %s, %s asked", model, got, asked)
	}
}
