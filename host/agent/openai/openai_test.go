package openai

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
)

const testKey = "sk-test-0123456789abcdef"

// connect returns a client that does not pause between its tries.
func connect(t *testing.T, o Options) *Client {
	t.Helper()
	o.Path, o.AllowPrivate = "things", true
	if o.Timeout == 0 {
		o.Timeout = time.Minute
	}
	c := must.Get(New(o))(t)
	c.BackOff = func() backoff.BackOff { return &backoff.ZeroBackOff{} }
	t.Cleanup(func() { must.OK(t, c.Close()) })
	return c
}

// TestPost: a request has the right path, headers and body, and Where does not show secrets.
func TestPost(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		user, password, _ := r.BasicAuth()
		fmt.Fprintf(w, "%s %s %s:%s%s %s %s", r.Method, r.URL, user, password, r.Header.Get("Authorization")[:6],
			r.Header.Get("X-Org"), body)
	}))
	defer s.Close()
	for from, want := range map[string]string{
		"":               "POST /things :Bearer me {}",
		"/":              "POST /things :Bearer me {}",
		"/v1?k=v#x":      "POST /v1/things?k=v :Bearer me {}",
		"/v1/things":     "POST /v1/things :Bearer me {}",
		"/v1/things/?k=": "POST /v1/things/?k= :Bearer me {}",
		"/v1/nothings":   "POST /v1/nothings/things :Bearer me {}",
	} {
		c := connect(t, Options{URL: s.URL + from, APIKey: testKey, Headers: map[string]string{"X-Org": "me"}})
		raw, err := c.Post(t.Context(), []byte("{}"), 100)
		assert.That(t, err == nil && string(raw) == want, "%s: %q, %v, want %q", from, raw, err, want)
		if path := strings.Fields(want)[1]; c.Where() != s.URL+strings.Split(path, "?")[0] {
			t.Errorf("%s: it is at %s", from, c.Where())
		}
	}
	c := connect(t, Options{URL: strings.Replace(s.URL, "://", "://bob:hunter22@", 1)})
	if raw, err := c.Post(t.Context(), nil, 100); err != nil || !strings.Contains(string(raw), " bob:hunter22Basic ") ||
		strings.Contains(c.Where(), "bob") {
		t.Errorf("%q, %v, at %s", raw, err, c.Where())
	}
}

// TestFault: a failure is tried again as often as makes sense, its Fault says what it is without secrets, and an
// answer that is too long is refused.
func TestFault(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		body   string
		after  string // the header Retry-After
		tries  int32
		want   Fault
	}{
		"busy": {500, `{"error":{"message":"too\nmany"}}`, "", 3, Fault{
			500, false,
			"status 500 Internal Server Error: too many",
		}},
		"for a moment": {429, ``, "0", 3, Fault{429, false, "status 429 Too Many Requests"}},
		"for an hour":  {429, ``, "3600", 1, Fault{429, false, "status 429 Too Many Requests"}},
		"the input's": {400, `{"error":{"message":"too long"}}`, "", 1, Fault{
			400, true,
			"status 400 Bad Request: too long",
		}},
		"the key's": {
			401, `{"error":{"message":"` + testKey + `"}}`, "", 1,
			Fault{401, true, "status 401 Unauthorized: check api_key"},
		},
		"half a key": {
			404, `{"error":{"message":"no ` + testKey[:9] + `***"}}`, "", 1,
			Fault{404, true, "status 404 Not Found: (a text with a secret in it)"},
		},
		"its end": {
			400, `{"error":{"message":"no ***` + testKey[len(testKey)-8:] + `"}}`, "", 1,
			Fault{400, true, "status 400 Bad Request: (a text with a secret in it)"},
		},
		"elsewhere": {302, ``, "", 1, Fault{302, true, "status 302 Found: it sends requests elsewhere; set url " +
			"to the right address"}},
		"a long answer": {200, strings.Repeat("x", 101), "", 1, Fault{200, true, "the answer is larger than 100 " +
			"bytes"}},
	} {
		t.Run(name, func(t *testing.T) {
			var count atomic.Int32
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				count.Add(1)
				if c.after != "" {
					w.Header().Set("Retry-After", c.after)
				}
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, c.body)
			}))
			defer s.Close()
			_, err := connect(t, Options{
				URL: s.URL, APIKey: testKey, Tries: 3,
				LongestWait: time.Second,
			}).Post(t.Context(), nil, 100)
			if f := (*Fault)(nil); !errors.As(err, &f) || *f != c.want || count.Load() != c.tries {
				t.Errorf("%#v after %d tries, want %+v after %d", err, count.Load(), c.want, c.tries)
			}
		})
	}
}

// TestEnds: a caller that goes away gets its own error, and a silent server ends with the timeout.
func TestEnds(t *testing.T) {
	arrived := make(chan struct{}, 1)
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		_, _ = io.Copy(io.Discard, r.Body) // otherwise the server does not notice that the client has gone
		<-r.Context().Done()
	}))
	defer s.Close()
	gone := errors.New("gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		<-arrived
		cancel(gone)
	}()
	if _, err := connect(t, Options{URL: s.URL, Tries: 3}).Post(ctx, nil, 100); !errors.Is(err, gone) {
		t.Error(err)
	}
	want := Fault{0, false, "no answer within 50ms"}
	_, err := connect(t, Options{URL: s.URL, Tries: 3, Timeout: 50 * time.Millisecond}).Post(t.Context(), nil, 100)
	f := (*Fault)(nil)
	assert.That(t, errors.As(err, &f) && *f == want, "%v", err)
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2024, 5, 6, 7, 8, 9, 0, time.UTC)
	c := &Client{now: func() time.Time { return now }}
	for header, want := range map[string]time.Duration{
		"": -1, "x": -1, "-1": -1, "1.5": -1, "99999999999": -1, "0": 0, "3": 3 * time.Second,
		now.Add(4 * time.Second).Format(http.TimeFormat): 4 * time.Second,
		now.Add(-time.Hour).Format(http.TimeFormat):      0,
	} {
		got, asked := c.waits(header)
		assert.That(t, asked == (want >= 0) && (!asked || got == want), "%q: %v, %v", header, got, asked)
	}
}
