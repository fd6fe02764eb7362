package embed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/go-json-experiment/json"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

const testKey = "sk-test-0123456789abcdef"

// asked is a request as a server sees it.
type asked struct {
	Model string   `json:"model"`
	Input []string `json:"input"`
}

// server answers requests with a function, and counts them.
type server struct {
	*httptest.Server
	count atomic.Int32
}

func newServer(t *testing.T, answer func(w http.ResponseWriter, r *http.Request, nth int)) *server {
	t.Helper()
	s := &server{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer(w, r, int(s.count.Add(1)))
	}))
	t.Cleanup(s.Close)
	return s
}

// good answers with a vector for each input: its length in runes, and its place
// in the request.
func good(w http.ResponseWriter, r *http.Request, _ int) {
	var q asked
	if err := json.UnmarshalRead(r.Body, &q); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var data []string
	for i, in := range q.Input {
		data = append(data, fmt.Sprintf(`{"object":"embedding","index":%d,"embedding":[%d,%d]}`, i, len([]rune(in)),
			i+1))
	}
	slices.Reverse(data) // only the indexes give the order
	fmt.Fprintf(w, `{"object":"list","model":"m","data":[%s],"usage":{"total_tokens":1}}`, strings.Join(data, ","))
}

// says returns a function that always sends the same answer.
func says(status int, body string) func(http.ResponseWriter, *http.Request, int) {
	return func(w http.ResponseWriter, _ *http.Request, _ int) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// connect returns an embedder that does not pause between its tries.
func connect(t *testing.T, e Endpoint) *endpoint {
	t.Helper()
	if e.Model == "" {
		e.Model = "m"
	}
	made := must.Get(NewEndpoint(e))(t)
	out := made.(*endpoint)
	out.server.BackOff = func() backoff.BackOff { return &backoff.ZeroBackOff{} }
	t.Cleanup(func() { _ = out.Close() })
	return out
}

func TestEndpoint(t *testing.T) {
	var mu sync.Mutex
	var requests []asked
	s := newServer(t, func(w http.ResponseWriter, r *http.Request, nth int) {
		raw, _ := io.ReadAll(r.Body)
		var q asked
		err := json.Unmarshal(raw, &q, json.RejectUnknownMembers(true))
		assert.That(t, err == nil, "%s: %v", raw, err)
		mu.Lock()
		requests = append(requests, q)
		mu.Unlock()
		if r.Method != http.MethodPost || r.URL.Path != "/v1/embeddings" ||
			r.Header.Get("Authorization") != "Bearer "+testKey || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s %s %v", r.Method, r.URL, r.Header)
		}
		r.Body = io.NopCloser(strings.NewReader(string(raw)))
		good(w, r, nth)
	})
	e := connect(t, Endpoint{URL: s.URL + "/v1/", Model: "small", APIKey: testKey, Batch: 2})
	m := e.Model()
	assert.That(t, m == (Model{"small", 0}), "before the first answer: %+v", m)
	texts := []string{"a", "", "bb\xff\x00c", " \n\x00", strings.Repeat("é", 9000), "dddd", "eeeee"}
	got := embedded(t, e, texts...)
	want := []Vector{{32767, 32767}, nil, {32767, 13107}, nil, {32767, 4}, {32767, 16384}, {32767, 6553}}
	for i := range want {
		if !slices.Equal(got[i], want[i]) || (got[i] == nil) != (want[i] == nil) {
			t.Errorf("%.10q has the vector %v, want %v", texts[i], got[i], want[i])
		}
	}
	must.That(t, len(requests) == 3 && len(requests[0].Input) == 2 && len(requests[2].Input) == 1 &&
		requests[0].Model == "small",
		"%d requests", len(requests))
	assert.Equal(t, requests[0].Input[1], "bb\ufffd c", "sent as")
	assert.Equal(t, len([]rune(requests[1].Input[0])), maxRunes, "… runes of a long text are sent")
	m = e.Model()
	assert.That(t, m == (Model{"small", 2}), "after the first answer: %+v", m)
	v := embedded(t, e, "", "\x00")
	assert.That(t, v[0] == nil && v[1] == nil && s.count.Load() == 3, "nothing to embed: %v", v)
}

// TestEndpointTries: a request is sent again after a passing error, but not after a lasting one.
func TestEndpointTries(t *testing.T) {
	fail := func(times, status int) func(http.ResponseWriter, *http.Request, int) {
		return func(w http.ResponseWriter, r *http.Request, nth int) {
			if nth > times {
				good(w, r, nth)
				return
			}
			w.WriteHeader(status)
		}
	}
	drop := func(http.ResponseWriter, *http.Request, int) { panic(http.ErrAbortHandler) }
	for name, c := range map[string]struct {
		answer func(http.ResponseWriter, *http.Request, int)
		tries  int32
		err    string // "" = success
	}{
		"500, then well":       {fail(1, 500), 2, ""},
		"a dropped connection": {drop, 3, "EOF"},
		"400":                  {fail(9, 400), 1, "400"},
		"401":                  {fail(9, 401), 1, "api_key"},
		"a message that leaks": {says(500, `{"error":{"message":"wrong key `+testKey+`"}}`), 3, "secret"},
		"no JSON":              {says(200, `<html>`), 1, "form"},
		"too many": {
			says(200, `{"data":[{"embedding":[1]},{"embedding":[1]},{"embedding":[1]}]}`), 1,
			"3 vectors for 2 texts",
		},
		"without an index": {says(200, `{"data":[{"embedding":[1]},{"embedding":[1]}]}`), 1, ""},
		"an index twice": {
			says(200, `{"data":[{"index":1,"embedding":[1]},{"index":1,"embedding":[1]}]}`), 1,
			"index 1",
		},
		"an index too high": {
			says(200, `{"data":[{"index":0,"embedding":[1]},{"index":2,"embedding":[1]}]}`), 1,
			"index 2",
		},
		"an index below": {
			says(200, `{"data":[{"index":-1,"embedding":[1]},{"index":0,"embedding":[1]}]}`), 1,
			"index -1",
		},
		"two sizes": {
			says(200, `{"data":[{"index":0,"embedding":[1,2]},{"index":1,"embedding":[1]}]}`), 1,
			"2 and of 1 dimensions",
		},
		"no numbers": {
			says(200, `{"data":[{"index":0,"embedding":[]},{"index":1,"embedding":[]}]}`), 1,
			"dimensions",
		},
		"a number without size": {
			says(200, `{"data":[{"index":0,"embedding":[1e999]},{"index":1,"embedding":[1]}]}`),
			1, "32 bits",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, c.answer)
			e := connect(t, Endpoint{URL: s.URL, APIKey: testKey})
			v, err := e.Embed(t.Context(), []string{"one", "two"})
			assert.That(t, (err == nil) == (c.err == "") && (err == nil || strings.Contains(err.Error(), c.err) &&
				v == nil),
				"%v, %v, want an error with %q", v, err, c.err)
			assert.That(t, err == nil || !strings.Contains(err.Error(), testKey[:8]), "the key is in %q", err)
			assert.Equal(t, s.count.Load(), c.tries, "… requests")
		})
	}
}

// TestEndpointSize: vectors of another size than those before are refused.
func TestEndpointSize(t *testing.T) {
	s := newServer(t, func(w http.ResponseWriter, _ *http.Request, nth int) {
		fmt.Fprintf(w, `{"data":[{"index":0,"embedding":[1%s]}]}`, strings.Repeat(",1", nth))
	})
	e := connect(t, Endpoint{URL: s.URL})
	embedded(t, e, "a")
	_, err := e.Embed(t.Context(), []string{"a"})
	assert.That(t, err != nil && strings.Contains(err.Error(), "3 dimensions, and 2 are expected"), "%v", err)
	e = connect(t, Endpoint{URL: s.URL, Size: 9})
	m := e.Model()
	assert.Equal(t, m.Size, 9, "%+v", m)
	_, err = e.Embed(t.Context(), []string{"a"})
	assert.That(t, err != nil && strings.Contains(err.Error(), "4 dimensions, and 9 are expected"), "%v", err)
}

func TestNewEndpoint(t *testing.T) {
	for _, c := range []struct {
		e    Endpoint
		want string // in the error; else the address
		well bool
	}{
		{Endpoint{URL: "https://api.example.org/v1", Model: "m"}, "https://api.example.org/v1/embeddings", true},
		{Endpoint{URL: "https://api.example.org/v1/", Model: "m"}, "https://api.example.org/v1/embeddings", true},
		{Endpoint{URL: "http://[::1]:8080", Model: "m"}, "http://[::1]:8080/embeddings", true},
		{Endpoint{URL: "https://x.example/v1/embeddings?v=1", Model: "m"}, "https://x.example/v1/embeddings", true},
		{Endpoint{Model: "m"}, "url", false},
		{Endpoint{URL: "api.example.org/v1", Model: "m"}, "url", false},
		{Endpoint{URL: "ftp://api.example.org", Model: "m"}, "url", false},
		{Endpoint{URL: "https:///v1", Model: "m"}, "url", false},
		{Endpoint{URL: "https://:443/v1", Model: "m"}, "url", false},
		{Endpoint{URL: "https://a b", Model: "m"}, "url", false},
		{Endpoint{URL: "https://x.example"}, "model", false},
		{Endpoint{URL: "https://x.example", Model: "m", APIKey: "a\nb"}, "api_key", false},
		{Endpoint{URL: "https://x.example", Model: "m", Batch: -1}, "batch", false},
		{Endpoint{URL: "https://x.example", Model: "m", Batch: 5000}, "batch", false},
		{Endpoint{URL: "https://x.example", Model: "m", Timeout: -1}, "timeout", false},
		{Endpoint{URL: "https://x.example", Model: "m", Size: -1}, "size", false},
	} {
		made, err := NewEndpoint(c.e)
		switch {
		case (err == nil) != c.well:
			t.Errorf("%v: %v", c.e, err)
		case err != nil && !strings.Contains(err.Error(), c.want):
			t.Errorf("%v: %v does not name %q", c.e, err, c.want)
		case err == nil && (made.(*endpoint).server.Where() != c.want || made.(*endpoint).batch != 64):
			t.Errorf("%v: %v", c.e, made)
		}
	}
}

// clock is moved by hand.
type clock struct{ seconds atomic.Int64 }

func (c *clock) now() time.Time { return time.Unix(1e9+c.seconds.Load(), 0) }

// TestEndpointBreaker: a failing endpoint is not asked for a while; then a single call tries it again.
func TestEndpointBreaker(t *testing.T) {
	var status atomic.Int32
	held, release := make(chan struct{}, 1), make(chan struct{})
	s := newServer(t, func(w http.ResponseWriter, r *http.Request, nth int) {
		switch code := int(status.Load()); code {
		case 200:
			good(w, r, nth)
		case 0: // hold
			held <- struct{}{}
			<-release
			good(w, r, nth)
		default:
			w.WriteHeader(code)
		}
	})
	var c clock
	e := connect(t, Endpoint{URL: s.URL, Now: c.now})
	call := func(at int64, code, requests int32, want string) {
		t.Helper()
		c.seconds.Store(at)
		status.Store(code)
		before := s.count.Load()
		_, err := e.Embed(t.Context(), []string{"a"})
		assert.That(t, (err == nil) == (want == "") && (err == nil || strings.Contains(err.Error(), want)),
			"at %d s: %v, want %q", at, err, want)
		assert.Equal(t, s.count.Load()-before, requests, "at %d s: … requests", at)
	}
	call(0, 200, 1, "")
	call(0, 500, 3, "500")
	call(1, 200, 0, "not asked again for 29s: status 500")
	call(29, 200, 0, "not asked again for 1s")
	call(30, 503, 3, "503")
	call(59, 200, 0, "503")
	call(60, 200, 1, "")
	call(60, 400, 1, "400") // tells nothing about other texts
	call(60, 200, 1, "")
	call(60, 401, 1, "401")
	call(61, 200, 0, "401")

	c.seconds.Store(100)
	status.Store(0)
	probe := make(chan error)
	go func() {
		_, err := e.Embed(context.Background(), []string{"a"})
		probe <- err
	}()
	<-held
	call(100, 200, 0, "401") // while the first one waits
	close(release)
	assert.OK(t, <-probe)
	call(100, 200, 1, "")
}

// TestEndpointBreakerCancelled: if a call is cancelled while it tries a failed endpoint again, the next
// call may try.
func TestEndpointBreakerCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := newServer(t, func(w http.ResponseWriter, r *http.Request, nth int) {
		switch nth {
		case 1:
			w.WriteHeader(404)
		case 2:
			_, _ = io.Copy(io.Discard, r.Body)
			cancel()
			<-r.Context().Done()
		default:
			good(w, r, nth)
		}
	})
	var c clock
	e := connect(t, Endpoint{URL: s.URL, Now: c.now})
	_, _ = e.Embed(t.Context(), []string{"a"})
	c.seconds.Store(31)
	_, err := e.Embed(ctx, []string{"a"})
	assert.That(t, errors.Is(err, context.Canceled), "%v", err)
	embedded(t, e, "a")
}

// TestEndpointRedirects: the key is sent only to the server that it is for, also after a redirect.
func TestEndpointRedirects(t *testing.T) {
	other := newServer(t, func(w http.ResponseWriter, r *http.Request, nth int) {
		t.Errorf("the other server was asked, with %q", r.Header.Get("Authorization"))
		good(w, r, nth)
	})
	for _, c := range []struct {
		target string
		status int
		well   bool
	}{
		{"/right", 308, true},
		{"/right", 307, true},
		{"/right", 302, false},
		{"/right", 303, false},
		{other.URL + "/v1/embeddings", 308, false},
		{"/embeddings", 308, false},
	} {
		s := newServer(t, func(w http.ResponseWriter, r *http.Request, nth int) {
			if r.URL.Path == "/right" {
				good(w, r, nth)
				return
			}
			http.Redirect(w, r, c.target, c.status)
		})
		e := connect(t, Endpoint{URL: s.URL, APIKey: testKey})
		_, err := e.Embed(t.Context(), []string{"a"})
		assert.That(t, (err == nil) == c.well && (err == nil || strings.Contains(err.Error(), "elsewhere")),
			"%d to %s: %v", c.status, c.target, err)
	}
}

// TestEndpointKeepsSecrets: no error and no text of an endpoint shows a secret of the config, whatever
// fails.
func TestEndpointKeepsSecrets(t *testing.T) {
	const user, password, token = "bobthebuilder", "hunter2hunter2", "query-token-77"
	echo := newServer(t, func(w http.ResponseWriter, r *http.Request, nth int) {
		name, pass, _ := r.BasicAuth()
		assert.That(t, name == user && pass == password && r.URL.Query().Get("t") == token, "not sent along: %s %v",
			r.URL, r.Header)
		if nth <= maxTries { // the first answers are not even HTTP
			conn, rw, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = rw.WriteString(r.Header.Get("Authorization") + " " + r.URL.String() + "\r\n\r\n")
			_ = rw.Flush()
			_ = conn.Close()
			return
		}
		w.WriteHeader(http.StatusBadGateway)
		fmt.Fprintf(w, `{"error":{"message":"%s %s"}}`, r.Header.Get("Authorization"), r.URL)
	})
	// the connection holds its own port, so no program listens there
	held := must.Get(net.Dial("tcp", echo.Listener.Addr().String()))(t)
	defer held.Close()
	gone := "http://" + held.LocalAddr().String()
	for _, server := range []string{echo.URL, gone} {
		address := strings.Replace(server, "http://", "http://"+user+":"+password+"@", 1) + "/v1?t=" + token + "#frag"
		var c clock
		e := connect(t, Endpoint{URL: address, Now: c.now})
		var texts []string
		for _, at := range []int64{0, 1, 50, 51} { // the server is asked at 0 and 50
			c.seconds.Store(at)
			_, err := e.Embed(t.Context(), []string{"a"})
			texts = append(texts, fmt.Sprint(err), fmt.Sprintf("%+v %#v", e, e))
			for ; err != nil; err = errors.Unwrap(err) {
				texts = append(texts, fmt.Sprintf("%+v", err))
			}
		}
		_, err := NewEndpoint(Endpoint{URL: address + "%zz\x7f", APIKey: testKey, Model: "m"})
		_, keyErr := NewEndpoint(Endpoint{URL: address, APIKey: testKey + "\n", Model: "m"})
		texts = append(texts, fmt.Sprint(err, keyErr))
		for _, text := range texts {
			for _, secret := range []string{user, password, token, testKey, "Ym9idGhl"} {
				assert.That(t, !strings.Contains(text, secret), "%q is in %q", secret, text)
			}
		}
		assert.Contains(t, texts[0], server+"/v1/embeddings", "… does not name the endpoint")
		if server == gone && !strings.Contains(texts[0], "refused") {
			t.Errorf("%q does not say why", texts[0])
		}
	}
	assert.Equal(t, echo.count.Load(), 2*maxTries, "the server was asked … times")
}

// TestArabicRoot: words of one root have one key, whatever their pattern; words of other roots have
// other keys.
func TestArabicRoot(t *testing.T) {
	for _, group := range [][]string{
		{"درب", "تدريب", "يتدرب", "متدربون", "التدريب"},
		{"موظف", "وظيفه", "وظايف", "الموظفون"},
		{"جديد", "الجدد", "جديدة"},
		{"كتاب", "كتب", "مكتبة", "مكاتب", "الكاتب"},
		{"استخدام", "مستخدم", "المستخدمين", "يستخدم"},
		{"اجتماع", "الاجتماعات", "جمع", "مجموع"},
		{"قاعدة", "القواعد", "لقاعدة"},
		{"فاتورة", "الفواتير"},
		{"عقد", "العقود"},
		{"سجل", "سجلات"},
		{"ضريبة", "ضرايب"},
	} {
		for _, word := range group[1:] {
			if got, want := arabicRoot(word), arabicRoot(group[0]); got != want || got == "" {
				t.Errorf("%s has the root %q, %s has %q", word, got, group[0], want)
			}
		}
	}
	assert.That(t, arabicRoot("درب") != arabicRoot("كتب"), "two roots are one")
	for _, word := range []string{"ا", "ال", "والال", "ةةة", "اااااااااا"} {
		_ = arabicRoot(word) // must not panic
	}
}
