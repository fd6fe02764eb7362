package tools

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"a2e/host/webguard"
	"a2e/protocol"
)

const httpSecret = "the secret of the inner network"

// The addresses of the tests' public hosts. The dial hook leads them to a
// server on the loopback; nothing leaves the machine.
const (
	publicA = "93.184.215.14"
	publicB = "2606:2800:21f:cb07:6820:80da:af6b:8b2c"
)

// innerServer is a server on a loopback address that nobody may reach.
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
	l, err := net.Listen("tcp", listen)
	if err != nil {
		t.Fatal(err)
	}
	s := &innerServer{}
	s.Server = httptest.NewUnstartedServer(h)
	if err := s.Server.Listener.Close(); err != nil {
		t.Fatal(err)
	}
	s.Server.Listener = countingListener{l, &s.accepted}
	s.Start()
	t.Cleanup(s.Close)
	_, s.port, _ = net.SplitHostPort(l.Addr().String())
	return s
}

func secretHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, httpSecret) })
}

// testNet is the network as the tool under test sees it: names with the answers
// of their first, second, … lookup, and the loopback servers that stand for
// public addresses. What is no public address is dialed for real.
type testNet struct {
	names  map[string][][]string
	public map[string]string // public address → host:port

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

// dial leads a public address to its loopback server and gives everything else
// to the guard's own dialer.
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

// httpConfig is what a Web of the tests differs in.
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

// get calls the tool as the registry does.
func get(t *testing.T, h *Web, url string) (*httpResult, *Outcome, error) {
	t.Helper()
	raw, err := json.Marshal(map[string]string{"url": url})
	if err != nil {
		t.Fatal(err)
	}
	args, err := protocol.ParseObject(raw)
	if err != nil {
		return nil, nil, err
	}
	out, err := h.tool().Call(t.Context(), args, nil)
	if err != nil {
		return nil, nil, err
	}
	return out.Data.(*httpResult), out, nil
}

func codeOfError(err error) protocol.ErrorCode {
	var e *protocol.Error
	if !errors.As(err, &e) {
		return ""
	}
	return e.Code
}

// urlCase is a URL that leads to a secret, or tries to.
type urlCase struct {
	name string
	url  string // PORT stands for the inner server's port
	code protocol.ErrorCode
	open bool // the same URL gives the secret with http_allow_private
}

const (
	denied = protocol.CodeToolDenied
	broken = protocol.CodeToolError
)

// innerURLs lead to 127.0.0.1 or ::1 in some spelling.
func innerURLs() []urlCase {
	return []urlCase{
		{"loopback", "http://127.0.0.1:PORT/", denied, true},
		{"loopback net", "http://127.9.8.7:PORT/", denied, false},
		{"loopback last", "http://127.255.255.254:PORT/", denied, false},
		{"upper scheme", "HTTP://127.0.0.1:PORT/", denied, true},
		{"path", "http://127.0.0.1:PORT/latest/meta-data/", denied, true},
		{"query", "http://127.0.0.1:PORT/?x=http://example.com/", denied, true},
		{"fragment", "http://127.0.0.1:PORT/#@example.com/", denied, true},
		{"zero", "http://0.0.0.0:PORT/", denied, true},
		{"localhost", "http://localhost:PORT/", denied, true},
		{"LOCALHOST", "http://LocalHost:PORT/", denied, true},
		{"localhost dot", "http://localhost.:PORT/", denied, true},
		{"sub localhost", "http://app.localhost:PORT/", denied, true},
		{"sub localhost dot", "http://a.b.LOCALHOST.:PORT/", denied, true},
		{"localdomain", "http://localhost.localdomain:PORT/", denied, true},
		{"name of 127.0.0.1", "http://inner.example.com:PORT/", denied, true},
		{"name dot", "http://inner.example.com.:PORT/", denied, true},
		{"name upper", "http://INNER.Example.COM:PORT/", denied, true},
		{"name like an address", "http://127.0.0.1.nip.example.com:PORT/", denied, true},
		{"single label", "http://intranet:PORT/", denied, true},
		{"underscore", "http://_in_ner.example.com:PORT/", denied, true},
		{"mixed answer", "http://mixed.example.com:PORT/", denied, true},
		{"mixed answer, private last", "http://mixed2.example.com:PORT/", denied, false},
		{"mapped answer", "http://mapped.example.com:PORT/", denied, true},
		{"fullwidth localhost", "http://ｌｏｃａｌｈｏｓｔ:PORT/", denied, true},
		{"circled localhost", "http://ⓛⓞⓒⓐⓛⓗⓞⓢⓣ:PORT/", denied, true},
		{"soft hyphen", "http://local\u00adhost:PORT/", denied, true},
		{"zero width", "http://local\u200bhost:PORT/", denied, true},
		{"ideographic dot name", "http://inner。example。com:PORT/", denied, true},
		{"fullwidth dot name", "http://inner．example．com:PORT/", denied, true},
		{"mapped", "http://[::ffff:127.0.0.1]:PORT/", denied, true},
		{"mapped hex", "http://[::ffff:7f00:1]:PORT/", denied, true},
		{"mapped long", "http://[0:0:0:0:0:ffff:7f00:0001]:PORT/", denied, true},
		{"v6 loopback", "http://[::1]:PORT6/", denied, true},
		{"v6 loopback long", "http://[0000:0000:0000:0000:0000:0000:0000:0001]:PORT6/", denied, true},
		{"v6 unspecified", "http://[::]:PORT6/", denied, true},
		{"v6 zone", "http://[::1%25lo]:PORT6/", denied, false},
		{"https", "https://127.0.0.1:PORT/", denied, false},
		{"decimal", "http://2130706433:PORT/", broken, false},
		{"octal", "http://0177.0.0.1:PORT/", broken, false},
		{"octal whole", "http://017700000001:PORT/", broken, false},
		{"octal padded", "http://0000177.0000.0000.0001:PORT/", broken, false},
		{"leading zeros", "http://127.000.000.001:PORT/", broken, false},
		{"hex", "http://0x7f000001:PORT/", broken, false},
		{"hex upper", "http://0X7F000001:PORT/", broken, false},
		{"hex dotted", "http://0x7f.0x0.0x0.0x1:PORT/", broken, false},
		{"hex empty", "http://127.0.0.0x:PORT/", broken, false},
		{"mixed bases", "http://0x7f.0.1:PORT/", broken, false},
		{"two parts", "http://127.1:PORT/", broken, false},
		{"three parts", "http://127.0.1:PORT/", broken, false},
		{"one zero", "http://0:PORT/", broken, false},
		{"five parts", "http://127.0.0.1.1:PORT/", broken, false},
		{"overflowing", "http://4294967297:PORT/", broken, false},
		{"overflowing part", "http://127.0.0.257:PORT/", broken, false},
		{"huge number", "http://" + strings.Repeat("9", 60) + ":PORT/", broken, false},
		{"trailing dot", "http://127.0.0.1.:PORT/", broken, false},
		{"two trailing dots", "http://127.0.0.1..:PORT/", broken, false},
		{"ideographic dots", "http://127。0。0。1:PORT/", broken, false},
		{"halfwidth dots", "http://127｡0｡0｡1:PORT/", broken, false},
		{"fullwidth dots", "http://127．0．0．1:PORT/", broken, false},
		{"fullwidth digits", "http://１２７.０.０.１:PORT/", broken, false},
		{"enclosed digits", "http://①②⑦.⓪.⓪.①:PORT/", broken, false},
		{"superscript", "http://¹²⁷.0.0.1:PORT/", broken, false},
		{"percent fullwidth", "http://%EF%BC%91%EF%BC%92%EF%BC%97.0.0.1:PORT/", broken, false},
		{"percent digits", "http://%31%32%37.0.0.1:PORT/", broken, false},
		{"percent host", "http://127.0.0.1%2f@example.com:PORT/", broken, false},
		{"v4 in brackets", "http://[127.0.0.1]:PORT/", broken, false},
		{"name in brackets", "http://[localhost]:PORT/", broken, false},
		{"future address", "http://[v1.127001]:PORT/", broken, false},
		{"userinfo", "http://1.1.1.1@127.0.0.1:PORT/", broken, false},
		{"userinfo public", "http://" + publicA + "@127.0.0.1:PORT/", broken, false},
		{"userinfo password", "http://user:pass@127.0.0.1:PORT/", broken, false},
		{"userinfo empty", "http://@127.0.0.1:PORT/", broken, false},
		{"userinfo port", "http://127.0.0.1:PORT@example.com/", broken, false},
		{"two ats", "http://a@example.com@127.0.0.1:PORT/", broken, false},
		{"hash before at", "http://example.com#@127.0.0.1:PORT/", broken, false},
		{"backslash at", `http://127.0.0.1:PORT\@example.com/`, broken, false},
		{"backslashes", `http:\\127.0.0.1:PORT\`, broken, false},
		{"backslash host", `http://example.com\.127.0.0.1:PORT/`, broken, false},
		{"space", "http://127.0.0.1 :PORT/", broken, false},
		{"leading space", " http://127.0.0.1:PORT/", broken, false},
		{"tab", "http://127.0.\t0.1:PORT/", broken, false},
		{"newline", "http://127.0.0.1:PORT/\nHost: example.com", broken, false},
		{"carriage return", "http://127.0.0.1:PORT/\r\nX: y", broken, false},
		{"NUL", "http://127.0.0.1\x00.example.com:PORT/", broken, false},
		{"NUL in path", "http://127.0.0.1:PORT/\x00", broken, false},
		{"delete", "http://127.0.0.1\x7f:PORT/", broken, false},
		{"C1 control", "http://127.0.0.1\u0085:PORT/", broken, false},
		{"no host", "http:///127.0.0.1:PORT/", broken, false},
		{"only port", "http://:PORT/", broken, false},
		{"opaque", "http:127.0.0.1:PORT/", broken, false},
		{"no scheme", "127.0.0.1:PORT/", broken, false},
		{"relative", "//127.0.0.1:PORT/", broken, false},
		{"empty", "", broken, false},
		{"file", "file:///etc/passwd", broken, false},
		{"file host", "file://127.0.0.1/etc/passwd", broken, false},
		{"gopher", "gopher://127.0.0.1:PORT/_GET%20/", broken, false},
		{"ftp", "ftp://127.0.0.1:PORT/", broken, false},
		{"data", "data:text/plain,x", broken, false},
		{"unix", "unix:///var/run/docker.sock", broken, false},
		{"javascript", "javascript:alert(1)", broken, false},
		{"port zero", "http://127.0.0.1:0/", broken, false},
		{"port too big", "http://127.0.0.1:65616/", broken, false},
		{"port sign", "http://127.0.0.1:+PORT/", broken, false},
		{"port letters", "http://127.0.0.1:80a/", broken, false},
		{"two ports", "http://127.0.0.1:80:PORT/", broken, false},
		{"empty label", "http://inner..example.com:PORT/", broken, false},
		{"long label", "http://" + strings.Repeat("a", 64) + ".example.com:PORT/", broken, false},
		{"long URL", "http://127.0.0.1:PORT/" + strings.Repeat("a", 8192), broken, false},
	}
}

// TestHTTPGetInnerURLs guards against every way of writing an inner address:
// none gives the secret or even opens a connection, though the server answers
// the same URL when the config opens it.
func TestHTTPGetInnerURLs(t *testing.T) {
	inner := newInnerServer(t, "127.0.0.1:0", secretHandler())
	inner6 := newInnerServer(t, "[::1]:0", secretHandler())
	names := &testNet{names: map[string][][]string{
		"localhost": {{"127.0.0.1"}}, "app.localhost": {{"127.0.0.1"}}, "a.b.localhost": {{"127.0.0.1"}},
		"localhost.localdomain": {{"127.0.0.1"}}, "intranet": {{"127.0.0.1"}}, "_in_ner.example.com": {{"127.0.0.1"}},
		"inner.example.com": {{"127.0.0.1"}}, "127.0.0.1.nip.example.com": {{"127.0.0.1"}}, "mapped.example.com": {{"::ffff:127.0.0.1"}},
		"mixed.example.com": {{"127.0.0.1", publicA}}, "mixed2.example.com": {{publicA, "127.0.0.1"}},
	}}
	open, shut := names.tool(t, httpConfig{Options: webguard.Options{AllowPrivate: true}}), names.tool(t, httpConfig{})
	if res, _, err := get(t, open, inner.URL); err != nil || res.Content != httpSecret {
		t.Fatalf("the inner server gives %+v, %v", res, err)
	}
	cases := innerURLs()
	if len(cases) < 80 {
		t.Errorf("%d URLs, want 80 or more", len(cases))
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			url := strings.NewReplacer("PORT6", inner6.port, "PORT", inner.port).Replace(c.url)
			if c.open {
				if res, _, err := get(t, open, url); err != nil || res.Content != httpSecret {
					t.Fatalf("with http_allow_private: %+v, %v, want the secret", res, err)
				}
			}
			before := inner.accepted.Load() + inner6.accepted.Load()
			res, _, err := get(t, shut, url)
			if err == nil {
				t.Fatalf("%s gave %+v", url, res)
			}
			if got := codeOfError(err); got != c.code {
				t.Errorf("%s gave %v, want %s", url, err, c.code)
			}
			if c.code == denied && !strings.Contains(err.Error(), "http_allow_private") {
				t.Errorf("%v does not name the option", err)
			}
			if strings.Contains(err.Error(), httpSecret) {
				t.Errorf("%v has the secret in it", err)
			}
			if after := inner.accepted.Load() + inner6.accepted.Load(); after != before {
				t.Errorf("%s opened a connection", url)
			}
		})
	}
}
