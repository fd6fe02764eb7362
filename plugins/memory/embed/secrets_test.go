package embed

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// The key goes to the server that it is for, and to no other.
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
		{"/right", 308, true}, {"/right", 307, true}, {"/right", 302, false}, {"/right", 303, false},
		{other.URL + "/v1/embeddings", 308, false}, {"/embeddings", 308, false},
	} {
		s := newServer(t, func(w http.ResponseWriter, r *http.Request, nth int) {
			if r.URL.Path == "/right" {
				good(w, r, nth)
				return
			}
			http.Redirect(w, r, c.target, c.status)
		})
		e := connect(t, Endpoint{URL: s.URL, APIKey: testKey})
		if _, err := e.Embed(t.Context(), []string{"a"}); (err == nil) != c.well || err != nil && !strings.Contains(err.Error(), "elsewhere") {
			t.Errorf("%d to %s: %v", c.status, c.target, err)
		}
	}
}

// No secret of the configuration is shown, whatever fails.
func TestEndpointKeepsSecrets(t *testing.T) {
	const user, password, token = "bobthebuilder", "hunter2hunter2", "query-token-77"
	echo := newServer(t, func(w http.ResponseWriter, r *http.Request, nth int) {
		if name, pass, _ := r.BasicAuth(); name != user || pass != password || r.URL.Query().Get("t") != token {
			t.Errorf("not sent along: %s %v", r.URL, r.Header)
		}
		if nth <= maxTries { // not even HTTP
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
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	for _, server := range []string{echo.URL, gone.URL} {
		address := strings.Replace(server, "http://", "http://"+user+":"+password+"@", 1) + "/v1?t=" + token + "#frag"
		var c clock
		e := connect(t, Endpoint{URL: address, Now: c.now})
		var texts []string
		for _, at := range []int64{0, 1, 50, 51} { // asked at 0 and 50
			c.seconds.Store(at)
			_, err := e.Embed(t.Context(), []string{"a"})
			texts = append(texts, fmt.Sprint(err), fmt.Sprintf("%+v %#v", e, e))
			for ; err != nil; err = errors.Unwrap(err) {
				texts = append(texts, fmt.Sprintf("%+v", err))
			}
		}
		cfg := Endpoint{URL: address, APIKey: testKey, Model: "m"}
		texts = append(texts, fmt.Sprintf("%v %+v %#v %s", cfg, &cfg, cfg, []Endpoint{cfg}))
		_, err := NewEndpoint(Endpoint{URL: address + "%zz\x7f", APIKey: testKey, Model: "m"})
		_, keyErr := NewEndpoint(Endpoint{URL: address, APIKey: testKey + "\n", Model: "m"})
		texts = append(texts, fmt.Sprint(err, keyErr))
		for _, text := range texts {
			for _, secret := range []string{user, password, token, testKey, "Ym9idGhl"} {
				if strings.Contains(text, secret) {
					t.Errorf("%q is in %q", secret, text)
				}
			}
		}
		if !strings.Contains(texts[0], server+"/v1/embeddings") {
			t.Errorf("%q does not name the endpoint", texts[0])
		}
		if server == gone.URL && !strings.Contains(texts[0], "refused") {
			t.Errorf("%q does not say why", texts[0])
		}
	}
	if n := echo.count.Load(); n != 2*maxTries {
		t.Errorf("the server was asked %d times", n)
	}
}
