package tools

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"

	"a2e/host/webguard"
	"a2e/protocol"
)

// TestHTTPGetIgnoresProxies guards against a proxy from the environment, which
// would be dialed instead of the host.
func TestHTTPGetIgnoresProxies(t *testing.T) {
	inner := newInnerServer(t, "127.0.0.1:0", secretHandler())
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"} {
		t.Setenv(name, inner.URL)
	}
	h := newHTTPGet(httpConfig{})
	t.Cleanup(h.Close)
	if proxy := h.http().Transport.(*http.Transport).Proxy; proxy != nil {
		t.Error("the transport has a proxy function")
	}
}

// TestHTTPGetRebinding guards against names that change their address: between
// two fetches, between a redirect and its target, and within one answer.
func TestHTTPGetRebinding(t *testing.T) {
	inner := newInnerServer(t, "127.0.0.1:0", secretHandler())
	front := newInnerServer(t, "127.0.0.1:0", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if to := r.URL.Query().Get("to"); to != "" {
			http.Redirect(w, r, to, http.StatusFound)
			return
		}
		w.Header().Set("Connection", "close")
		fmt.Fprint(w, "public page")
	}))
	n := &testNet{
		names: map[string][][]string{
			"flip.example":    {{publicA}, {"127.0.0.1"}},
			"hop.example":     {{publicA}},
			"six.example":     {{publicB, "::ffff:127.0.0.1"}},
			"meta.example":    {{"169.254.169.254"}},
			"metadata":        {{"169.254.169.254"}},
			"instance-data":   {{"169.254.169.254"}},
			"metadata.google": {{"fd00:ec2::254"}},
			"nat64.example":   {{"64:ff9b::7f00:1"}},
			"sixtofour.com":   {{"2002:7f00:1::"}},
		},
		public: map[string]string{publicA: front.Listener.Addr().String(), publicB: inner.Listener.Addr().String()},
	}
	h := n.tool(t, httpConfig{})
	flip := "http://flip.example:" + inner.port + "/"
	if res, _, err := get(t, h, flip); err != nil || res.Content != "public page" {
		t.Fatalf("the first answer is public: %+v, %v", res, err)
	}
	before := inner.accepted.Load()
	for _, u := range []string{
		flip, "http://hop.example/?to=" + url.QueryEscape(flip), "http://six.example/",
		"http://meta.example/latest/meta-data/", "http://metadata/computeMetadata/v1/", "http://instance-data/", "http://metadata.google/",
		"http://nat64.example/", "http://sixtofour.com/", "http://169.254.169.254/latest/meta-data/", "http://[fd00:ec2::254]/",
	} {
		if res, _, err := get(t, h, u); codeOfError(err) != protocol.CodeToolDenied {
			t.Errorf("%s: %+v, %v, want tool_denied", u, res, err)
		}
	}
	if inner.accepted.Load() != before {
		t.Error("the inner server was reached")
	}
}

// FuzzURL feeds any text as a URL to a tool whose names resolve to all kinds of
// addresses. No address that is not public may reach the dialer, judged by the
// net package instead of the guard.
func FuzzURL(f *testing.F) {
	opened, refused, malformed := innerURLs()
	for _, u := range slices.Concat(opened, refused, malformed) {
		f.Add(strings.ReplaceAll(u, "PORT", "8080"))
	}
	f.Add("https://example.com:8443/a?b=c#d")
	f.Add("http://[64:ff9b::7f00:1]/")
	answers := []string{"127.0.0.1", publicA, "10.0.0.1", publicB, "::1", "169.254.169.254", "fd00::1", "::ffff:192.168.1.1", "224.0.0.1"}
	errNoNet := errors.New("no network here")
	f.Fuzz(func(t *testing.T, raw string) {
		h := newHTTPGet(httpConfig{Options: webguard.Options{
			Own: func() ([]net.Addr, error) { return nil, nil },
			Lookup: func(_ context.Context, host string) ([]netip.Addr, error) {
				if _, err := netip.ParseAddr(host); err == nil || host == "" {
					t.Errorf("%q: the resolver was asked for %q", raw, host)
				}
				sum := fnv.New32a()
				_, _ = sum.Write([]byte(host))
				return []netip.Addr{netip.MustParseAddr(answers[sum.Sum32()%uint32(len(answers))])}, nil
			},
			Dial: func(_ context.Context, host string, addr netip.AddrPort) (net.Conn, error) {
				ip := net.IP(addr.Addr().Unmap().AsSlice())
				if !ip.IsGlobalUnicast() || ip.IsPrivate() || addr.Addr().Zone() != "" {
					t.Errorf("%q: %s (%q) was dialed", raw, addr, host)
				}
				return nil, errNoNet
			},
		}})
		u, bad := h.guard().Parse(raw)
		if bad != nil {
			return
		}
		again, bad := h.guard().Parse(u.String())
		if bad != nil || again.Host != u.Host || again.Scheme != u.Scheme {
			t.Errorf("%q became %q, which reads as %v, %v", raw, u, again, bad)
		}
		port := u.Port()
		if port == "" {
			port = "80"
		}
		// Without the client: its goroutines would make coverage, and with it the
		// search, depend on luck.
		if _, err := h.guard().DialContext(t.Context(), "tcp", net.JoinHostPort(u.Hostname(), port)); err == nil {
			t.Errorf("%q was opened without a network", raw)
		}
	})
}
