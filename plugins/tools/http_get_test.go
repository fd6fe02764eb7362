package tools

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"a2e/host/guard/webguard"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

const httpSecret = "the secret of the inner network"

// Addresses of the public hosts in the tests. The dial hook leads them to a server on the loopback, so that nothing
// leaves the machine.
const (
	publicA = "93.184.215.14"
	publicB = "2606:2800:21f:cb07:6820:80da:af6b:8b2c"
)

// innerServer is a server on a loopback address, which the tool must not reach.
type innerServer struct {
	*httptest.Server
	port     string
	accepted atomic.Int64
}

// countingListener counts the connections that reach a server.
type countingListener struct {
	net.Listener
	n *atomic.Int64
}

func (l countingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.n.Add(1)
	}
	return c, err
}

func newInnerServer(t *testing.T, listen string, h http.Handler) *innerServer {
	t.Helper()
	l := must.Get(net.Listen("tcp", listen))(t)
	s := &innerServer{}
	s.Server = httptest.NewUnstartedServer(h)
	must.OK(t, s.Server.Listener.Close())
	s.Server.Listener = countingListener{l, &s.accepted}
	s.Start()
	t.Cleanup(s.Close)
	_, s.port, _ = net.SplitHostPort(l.Addr().String())
	return s
}

func secretHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, httpSecret) })
}

// testNet is the network as the tool under test sees it. It has names with the answers to their first, second, …
// lookup, and loopback servers that stand for public addresses. It really dials all other addresses.
type testNet struct {
	names  map[string][][]string
	public map[string]string // public address to host:port of its server

	mu      sync.Mutex
	lookups map[string]int
	dialed  []netip.AddrPort
}

func (n *testNet) lookup(_ context.Context, host string) ([]netip.Addr, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	answers := n.names[strings.TrimSuffix(host, ".")]
	if len(answers) == 0 {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	if n.lookups == nil {
		n.lookups = make(map[string]int)
	}
	at := min(n.lookups[host], len(answers)-1)
	n.lookups[host]++
	var out []netip.Addr
	for _, a := range answers[at] {
		out = append(out, netip.MustParseAddr(a))
	}
	return out, nil
}

// dial leads a public address to its loopback server, and passes all other addresses to the guard's own dialer.
func (n *testNet) dial(g func() *webguard.Guard) func(context.Context, string, netip.AddrPort) (net.Conn, error) {
	return func(ctx context.Context, host string, addr netip.AddrPort) (net.Conn, error) {
		n.mu.Lock()
		n.dialed = append(n.dialed, addr)
		to, ok := n.public[addr.Addr().String()]
		n.mu.Unlock()
		if ok {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", to)
		}
		return g().Dial(ctx, host, addr)
	}
}

// httpConfig has the options that differ between the tools of these tests.
type httpConfig struct {
	webguard.Options
	maxOutput int
	roots     *x509.CertPool
	timeout   time.Duration
}

func newHTTPGet(cfg httpConfig) *Web {
	w := NewWeb(cfg.Options, cfg.maxOutput, nil)
	w.roots, w.timeout = cfg.roots, cmp.Or(cfg.timeout, w.timeout)
	return w
}

func (n *testNet) tool(t *testing.T, cfg httpConfig) *Web {
	t.Helper()
	var h *Web
	cfg.Lookup = n.lookup
	cfg.Dial = n.dial(func() *webguard.Guard { return h.guard() })
	h = newHTTPGet(cfg)
	t.Cleanup(h.Close)
	return h
}

// get calls the tool the way the registry does.
func get(t *testing.T, h *Web, url string) (*WebAnswer, *Outcome, error) {
	t.Helper()
	raw := must.Get(json.Marshal(map[string]string{"url": url}))(t)
	args, err := protocol.ParseObject(raw)
	if err != nil {
		return nil, nil, err
	}
	out, err := h.tool().Call(t.Context(), args, nil)
	if err != nil {
		return nil, nil, err
	}
	return out.Data.(*WebAnswer), out, nil
}

func codeOfError(err error) protocol.ErrorCode {
	var e *protocol.Error
	if !errors.As(err, &e) {
		return ""
	}
	return e.Code
}

const (
	denied = protocol.CodeToolDenied
	broken = protocol.CodeToolError
)

// innerURLs returns URLs that lead to 127.0.0.1 or ::1 in some spelling; PORT stands for the port there. The open ones
// lead to the secret with http_allow_private, the refused ones are refused for the address they lead to, and the
// malformed ones are not valid URLs.
func innerURLs() (open, refused, malformed []string) {
	hosts := func(text string) (urls []string) {
		for h := range strings.FieldsSeq(text) {
			urls = append(urls, "http://"+h+":PORT/")
		}
		return urls
	}
	open = append(hosts(`127.0.0.1 0.0.0.0 localhost LocalHost localhost. app.localhost a.b.LOCALHOST. localhost.localdomain inner.example.com
		inner.example.com. INNER.Example.COM 127.0.0.1.nip.example.com intranet _in_ner.example.com mixed.example.com mapped.example.com
		ｌｏｃａｌｈｏｓｔ ⓛⓞⓒⓐⓛⓗⓞⓢⓣ inner。example。com inner．example．com [::ffff:127.0.0.1] [::ffff:7f00:1] [0:0:0:0:0:ffff:7f00:0001]`),
		"HTTP://127.0.0.1:PORT/", "http://127.0.0.1:PORT/latest/meta-data/",
		"http://127.0.0.1:PORT/?x=http://example.com/", "http://127.0.0.1:PORT/#@example.com/",
		"http://local\u00adhost:PORT/", "http://local\u200bhost:PORT/",
		"http://[::1]:PORT6/", "http://[0000:0000:0000:0000:0000:0000:0000:0001]:PORT6/", "http://[::]:PORT6/")
	refused = append(hosts(`127.9.8.7 127.255.255.254 mixed2.example.com`), "http://[::1%25lo]:PORT6/",
		"https://127.0.0.1:PORT/")
	malformed = append(hosts(`2130706433 0177.0.0.1 017700000001 0000177.0000.0000.0001 127.000.000.001 0x7f000001 0X7F000001 0x7f.0x0.0x0.0x1 127.0.0.0x 0x7f.0.1
		127.1 127.0.1 0 127.0.0.1.1 4294967297 127.0.0.257 `+strings.Repeat("9", 60)+` 127.0.0.1. 127.0.0.1.. 127。0。0。1 127｡0｡0｡1 127．0．0．1 １２７.０.０.１
		①②⑦.⓪.⓪.① ¹²⁷.0.0.1 %EF%BC%91%EF%BC%92%EF%BC%97.0.0.1 %31%32%37.0.0.1 [127.0.0.1] [localhost] [v1.127001] 1.1.1.1@127.0.0.1 `+publicA+`@127.0.0.1
		user:pass@127.0.0.1 @127.0.0.1 a@example.com@127.0.0.1 example.com#@127.0.0.1 example.com\.127.0.0.1 inner..example.com `+strings.Repeat("a", 64)+`.example.com`),
		"http://127.0.0.1%2f@example.com:PORT/", "http://127.0.0.1:PORT@example.com/",
		`http://127.0.0.1:PORT\@example.com/`, `http:\\127.0.0.1:PORT\`,
		"http://127.0.0.1 :PORT/", " http://127.0.0.1:PORT/", "http://127.0.\t0.1:PORT/",
		"http://127.0.0.1:PORT/\nHost: example.com", "http://127.0.0.1:PORT/\r\nX: y",
		"http://127.0.0.1\x00.example.com:PORT/", "http://127.0.0.1:PORT/\x00", "http://127.0.0.1\x7f:PORT/",
		"http://127.0.0.1\u0085:PORT/", "http:///127.0.0.1:PORT/",
		"http://:PORT/", "http:127.0.0.1:PORT/", "127.0.0.1:PORT/", "//127.0.0.1:PORT/", "", "file:///etc/passwd",
		"file://127.0.0.1/etc/passwd",
		"gopher://127.0.0.1:PORT/_GET%20/", "ftp://127.0.0.1:PORT/", "data:text/plain,x", "unix:///var/run/docker.sock",
		"javascript:alert(1)", "http://127.0.0.1:0/",
		"http://127.0.0.1:65616/", "http://127.0.0.1:+PORT/", "http://127.0.0.1:80a/", "http://127.0.0.1:80:PORT/", "http://127.0.0.1:PORT/"+strings.Repeat("a", 8192), "http://127.0.0.1:PORT/"+strings.Repeat("`", 4096))
	return open, refused, malformed
}

// TestHTTPGetInnerURLs guards against every way to write an inner address: none returns the secret or even opens a
// connection, though the server answers the same URL when the config allows private addresses.
func TestHTTPGetInnerURLs(t *testing.T) {
	inner := newInnerServer(t, "127.0.0.1:0", secretHandler())
	inner6 := newInnerServer(t, "[::1]:0", secretHandler())
	names := &testNet{names: map[string][][]string{
		"localhost": {{"127.0.0.1"}}, "app.localhost": {{"127.0.0.1"}}, "a.b.localhost": {{"127.0.0.1"}},
		"localhost.localdomain": {{"127.0.0.1"}}, "intranet": {{"127.0.0.1"}}, "_in_ner.example.com": {{"127.0.0.1"}},
		"inner.example.com": {{"127.0.0.1"}}, "127.0.0.1.nip.example.com": {{"127.0.0.1"}},
		"mapped.example.com": {{"::ffff:127.0.0.1"}},
		"mixed.example.com":  {{"127.0.0.1", publicA}}, "mixed2.example.com": {{publicA, "127.0.0.1"}},
	}}
	open, shut := names.tool(t, httpConfig{Options: webguard.Options{AllowPrivate: true}}), names.tool(t, httpConfig{})
	res, _, err := get(t, open, inner.URL)
	must.That(t, err == nil && res.Content == httpSecret, "the inner server gives %+v, %v", res, err)
	opened, refused, malformed := innerURLs()
	n := len(opened) + len(refused) + len(malformed)
	assert.That(t, n >= 100, "%d URLs, want 100 or more", n)
	ports := strings.NewReplacer("PORT6", inner6.port, "PORT", inner.port)
	for _, u := range opened {
		res, _, err := get(t, open, ports.Replace(u))
		assert.That(t, err == nil && res.Content == httpSecret, "%q with http_allow_private: %+v, %v, want the secret",
			u, res, err)
	}
	try := func(u string, code protocol.ErrorCode) {
		before := inner.accepted.Load() + inner6.accepted.Load()
		res, _, err := get(t, shut, ports.Replace(u))
		switch {
		case err == nil || codeOfError(err) != code:
			t.Errorf("%q gave %+v, %v, want %s", u, res, err, code)
		case code == denied && !strings.Contains(err.Error(), "http_allow_private"),
			strings.Contains(err.Error(), httpSecret):
			t.Errorf("%q: %v", u, err)
		case inner.accepted.Load()+inner6.accepted.Load() != before:
			t.Errorf("%q opened a connection", u)
		}
	}
	for _, u := range append(opened, refused...) {
		try(u, denied)
	}
	for _, u := range malformed {
		try(u, broken)
	}
}

// TestHTTPGetIgnoresProxies guards against a proxy from the environment, which would be dialed instead of the host.
func TestHTTPGetIgnoresProxies(t *testing.T) {
	inner := newInnerServer(t, "127.0.0.1:0", secretHandler())
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"} {
		t.Setenv(name, inner.URL)
	}
	h := newHTTPGet(httpConfig{})
	t.Cleanup(h.Close)
	proxy := h.http().Transport.(*http.Transport).Proxy
	assert.That(t, proxy == nil, "the transport has a proxy function")
}

// TestHTTPGetRebinding guards against names that change their address: between two fetches, between a redirect and its
// target, and within one answer.
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
	res, _, err := get(t, h, flip)
	must.That(t, err == nil && res.Content == "public page", "the first answer is public: %+v, %v", res, err)
	before := inner.accepted.Load()
	for _, u := range []string{
		flip, "http://hop.example/?to=" + url.QueryEscape(flip), "http://six.example/",
		"http://meta.example/latest/meta-data/", "http://metadata/computeMetadata/v1/", "http://instance-data/",
		"http://metadata.google/",
		"http://nat64.example/", "http://sixtofour.com/", "http://169.254.169.254/latest/meta-data/",
		"http://[fd00:ec2::254]/",
	} {
		res, _, err := get(t, h, u)
		assert.Equal(t, codeOfError(err), protocol.CodeToolDenied, "%s: %+v, %v, want tool_denied", u, res, err)
	}
	assert.Equal(t, inner.accepted.Load(), before, "the inner server was reached")
}

// FuzzURL passes any text as a URL to a tool whose names resolve to all kinds of addresses. No address that is not
// public may reach the dialer. Here the net package decides which address is public, not the guard.
func FuzzURL(f *testing.F) {
	opened, refused, malformed := innerURLs()
	for _, u := range slices.Concat(opened, refused, malformed) {
		f.Add(strings.ReplaceAll(u, "PORT", "8080"))
	}
	f.Add("https://example.com:8443/a?b=c#d")
	f.Add("http://[64:ff9b::7f00:1]/")
	answers := []string{
		"127.0.0.1", publicA, "10.0.0.1", publicB, "::1", "169.254.169.254", "fd00::1",
		"::ffff:192.168.1.1", "224.0.0.1",
	}
	errNoNet := errors.New("no network here")
	f.Fuzz(func(t *testing.T, raw string) {
		h := newHTTPGet(httpConfig{Options: webguard.Options{
			Own: func() ([]net.Addr, error) { return nil, nil },
			Lookup: func(_ context.Context, host string) ([]netip.Addr, error) {
				_, err := netip.ParseAddr(host)
				assert.That(t, err != nil && host != "", "%q: the resolver was asked for %q", raw, host)
				sum := fnv.New32a()
				_, _ = sum.Write([]byte(host))
				return []netip.Addr{netip.MustParseAddr(answers[sum.Sum32()%uint32(len(answers))])}, nil
			},
			Dial: func(_ context.Context, host string, addr netip.AddrPort) (net.Conn, error) {
				ip := net.IP(addr.Addr().Unmap().AsSlice())
				assert.That(t, ip.IsGlobalUnicast() && !ip.IsPrivate() && addr.Addr().Zone() == "",
					"%q: %s (%q) was dialed", raw, addr, host)
				return nil, errNoNet
			},
		}})
		u, bad := h.guard().Parse(raw)
		if bad != nil {
			return
		}
		again, bad := h.guard().Parse(u.String())
		assert.That(t, bad == nil && again.Host == u.Host && again.Scheme == u.Scheme,
			"%q became %q, which reads as %v, %v", raw, u, again, bad)
		port := u.Port()
		if port == "" {
			port = "80"
		}
		// The HTTP client is left out: its goroutines would make coverage, and so the search, depend on chance.
		_, err := h.guard().DialContext(t.Context(), "tcp", net.JoinHostPort(u.Hostname(), port))
		assert.That(t, err != nil, "%q was opened without a network", raw)
	})
}
