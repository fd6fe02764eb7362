package embed

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// clock is moved by hand.
type clock struct{ seconds atomic.Int64 }

func (c *clock) now() time.Time { return time.Unix(1e9+c.seconds.Load(), 0) }

// A failing endpoint is left alone for a while, and then asked by one call.
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
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("at %d s: %v, want %q", at, err, want)
		}
		if n := s.count.Load() - before; n != requests {
			t.Errorf("at %d s: %d requests, want %d", at, n, requests)
		}
	}
	call(0, 200, 1, "")
	call(0, 500, 3, "500")
	call(1, 200, 0, "not asked again for 29s: status 500")
	call(29, 200, 0, "not asked again for 1s")
	call(30, 503, 3, "503")
	call(59, 200, 0, "503")
	call(60, 200, 1, "")
	call(60, 400, 1, "400") // says nothing about other texts
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
	if err := <-probe; err != nil {
		t.Error(err)
	}
	call(100, 200, 1, "")
}

// A call that is cancelled while it tries an endpoint anew leaves that to the next.
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
	if _, err := e.Embed(ctx, []string{"a"}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	embedded(t, e, "a")
}
