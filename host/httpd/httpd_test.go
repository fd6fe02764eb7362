package httpd_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"a2e/host/hosttest/assert"
	"a2e/host/httpd"
)

// echo is a host that says what it hears.
func echo(_ context.Context, _ httpd.Protocol, in io.Reader, out io.Writer) error {
	if _, err := io.Copy(out, in); !errors.Is(err, io.ErrClosedPipe) {
		return err
	}
	return nil
}

// do serves one request.
func do(s *httpd.Server, ctx context.Context, method, path, session, body string) *httptest.ResponseRecorder {
	got := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(ctx, method, "http://127.0.0.1"+path, strings.NewReader(body))
	if session != "" {
		r.Header.Set(httpd.Header, session)
	}
	s.ServeHTTP(got, r)
	return got
}

// TestIdle: a session lives while it is used or has a stream, on which there is a comment now
// and then; then it ends.
func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := httpd.New(httpd.Options{Serve: echo, Idle: time.Minute, Beat: 10 * time.Second, Loopback: true})
		id := strings.Split(do(s, t.Context(), "POST", "/session", "", "").Body.String(), `"`)[3]
		send := func() int { return do(s, t.Context(), "POST", "/send", id, `{"a":1}`).Code }
		for range 3 {
			time.Sleep(50 * time.Second)
			assert.Equal(t, send(), http.StatusOK, "a session that is used")
		}
		ctx, hangUp := context.WithCancel(t.Context())
		heard := make(chan string)
		go func() { heard <- do(s, ctx, "GET", "/stream", id, "").Body.String() }()
		time.Sleep(5*time.Minute - time.Second)
		hangUp()
		text := <-heard
		assert.Equal(t, strings.Count(text, "data: {\"a\":1}\n"), 3, "events")
		assert.Equal(t, strings.Count(text, ":\n\n"), 30, "comments: one at the beginning, and each 10 s")
		assert.Equal(t, send(), http.StatusOK, "a session with a stream until now")
		time.Sleep(61 * time.Second)
		assert.Equal(t, send(), http.StatusNotFound, "a session that nobody uses")
		s.Close(t.Context())
	})
}

// TestTakeOver: a second stream ends the first, and goes on after it.
func TestTakeOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := httpd.New(httpd.Options{Serve: echo, Loopback: true, Kept: 100})
		id := strings.Split(do(s, t.Context(), "POST", "/session", "", "").Body.String(), `"`)[3]
		streams := make(chan string, 2)
		listen := func() {
			go func() { streams <- do(s, t.Context(), "GET", "/stream", id, "").Body.String() }()
			synctest.Wait()
		}
		listen()
		for range 50 {
			do(s, t.Context(), "POST", "/send", id, `{"n":1}`)
			synctest.Wait()
		}
		listen()
		assert.Equal(t, strings.Count(<-streams, "data:"), 50, "events of the first stream")
		do(s, t.Context(), "POST", "/send", id, `{"n":2}`)
		synctest.Wait()
		r := httptest.NewRequestWithContext(t.Context(), "GET", "http://127.0.0.1/stream", nil)
		r.Header.Set(httpd.Header, id)
		r.Header.Set("Last-Event-ID", "3")
		gone := httptest.NewRecorder()
		s.ServeHTTP(gone, r)
		assert.That(t, gone.Code == http.StatusGone && strings.Contains(gone.Body.String(), "not kept any more"), "an old event: %d %s", gone.Code, gone.Body)
		do(s, t.Context(), "DELETE", "/session", id, "")
		assert.That(t, strings.HasSuffix(<-streams, "id: 51\ndata: {\"n\":2}\n\n"), "the second stream")
		s.Close(t.Context())
	})
}
