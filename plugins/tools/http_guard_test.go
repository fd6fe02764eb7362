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
	"strings"
	"testing"

	"a2e/protocol"
)

// TestHTTPGuardAddresses goes through the kinds of address there are. The same
// guard lets the public ones pass.
func TestHTTPGuardAddresses(t *testing.T) {
	_, own, err := net.ParseCIDR("185.199.108.153/24")
	if err != nil {
		t.Fatal(err)
	}
	own.IP = net.ParseIP("185.199.108.153")
	g := newHTTPGuard(httpConfig{own: func() ([]net.Addr, error) { return []net.Addr{own}, nil }})
	for _, c := range []struct {
		want  bool
		addrs string
	}{
		{true, "1.1.1.1 8.8.8.8 93.184.215.14 100.63.255.255 100.128.0.1 172.15.0.1 172.32.0.1 192.167.1.1 223.255.255.254 185.199.108.154"},
		{true, "2606:2800:21f:cb07:6820:80da:af6b:8b2c 2001:4860:4860::8888 2a00:1450::1 ::ffff:1.1.1.1 64:ff9b::101:101"},
		{false, "0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.127.255.255 100.100.100.200 127.0.0.1 127.255.255.255"},
		{false, "169.254.169.254 169.254.170.2 172.16.0.1 172.31.255.255 192.168.0.1 192.0.0.192 192.0.2.1 198.18.0.1 198.19.255.255"},
		{false, "198.51.100.1 203.0.113.1 192.88.99.1 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255 168.63.129.16 185.199.108.153"},
		{false, ":: ::1 ::127.0.0.1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:169.254.169.254 ::ffff:0:127.0.0.1 ::ffff:185.199.108.153"},
		{false, "64:ff9b::7f00:1 64:ff9b::a00:1 64:ff9b::a9fe:a9fe 64:ff9b:1::7f00:1 64:ff9b::a83f:8110 100::1 5f00::1"},
		{false, "2002:7f00:1:: 2002:a00:1::1 2002:101:101::1 2001::1 2001:0:4136:e378:8000:63bf:3fff:fdd2 2001:db8::1 2001:10::1 2001:20::1 3fff::1"},
		{false, "fc00::1 fd00::1 fd00:ec2::254 fd20:ce::254 fe80::1 fe80::1%eth0 fec0::1 ff02::1 ff0e::1 2606:2800::1%lo"},
		{false, "2a00:1450::5efe:7f00:1 2a00:1450::200:5efe:a00:1"},
	} {
		for a := range strings.FieldsSeq(c.addrs) {
			addr := netip.MustParseAddr(a)
			if err := g.check("host.example", netip.AddrPortFrom(addr, 443)); (err == nil) != c.want {
				t.Errorf("%s: %v, want allowed = %v", a, err, c.want)
			}
		}
	}
}

// TestHTTPGuardParse checks the form that a good URL gets, and what is refused
// in a URL to a public host.
func TestHTTPGuardParse(t *testing.T) {
	g := newHTTPGuard(httpConfig{})
	for raw, want := range map[string]string{
		"http://example.com":                         "http://example.com",
		"HTTPS://Example.COM:8443/A?b=%20#c":         "https://example.com:8443/A?b=%20#c",
		"http://example.com./":                       "http://example.com./",
		"https://bücher.example/ü":                   "https://xn--bcher-kva.example/%C3%BC",
		"https://例え。テスト/":                            "https://xn--r8jz45g.xn--zckzah/",
		"http://93.184.215.14/":                      "http://93.184.215.14/",
		"http://[2606:2800:0:0:0:0:0:0001]:80/x@y":   "http://[2606:2800::1]:80/x@y",
		"http://1.2.3.4.example.com/?u=http://[::1]": "http://1.2.3.4.example.com/?u=http://[::1]",
		"http://0x7f.example/":                       "http://0x7f.example/",
		"http://example.com:/":                       "http://example.com/",
	} {
		u, err := g.parse(raw)
		if err != nil || u.String() != want {
			t.Errorf("%q: %v, %v, want %q", raw, u, err, want)
		}
	}
	for _, raw := range []string{
		`http://example.com/a\b`, "http://example.com/a b", "http://example.com/a ", "http://example.com/\u0085", "http://example.com/?a\tb",
		"http://example.com/\xff", "http://user@example.com/", "http://example.com:99999/", "http://exa%6dple.com/", "http://exam!ple.com/",
		"http://" + strings.Repeat("abc.", 64) + "com/", "http://xn--a.example\u202e/",
	} {
		if u, err := g.parse(raw); err == nil || err.Code != protocol.CodeToolError {
			t.Errorf("%q: %v, %v, want tool_error", raw, u, err)
		}
	}
	const secret = "hunter2"
	for _, raw := range []string{"http://u:" + secret + "@example.com/", "http://u:" + secret + "@exa mple.com/", "http://u:" + secret + "@[::1/", "ftp://u:" + secret + "@example.com/"} {
		if _, err := g.parse(raw); err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("the refusal of %q is %v", raw, err)
		}
	}
}

// TestHTTPGuardPorts checks the ports on a public address.
func TestHTTPGuardPorts(t *testing.T) {
	g := newHTTPGuard(httpConfig{})
	open := newHTTPGuard(httpConfig{allowPrivate: true})
	for port, want := range map[uint16]bool{
		80: true, 443: true, 1024: true, 3000: true, 8080: true, 8443: true, 9200: true, 65535: true,
		0: false, 1: false, 21: false, 22: false, 23: false, 25: false, 53: false, 110: false, 445: false, 587: false, 1023: false,
		2049: false, 5060: false, 6000: false, 6667: false, 10080: false,
	} {
		to := netip.AddrPortFrom(netip.MustParseAddr(publicA), port)
		if err := g.check("host.example", to); (err == nil) != want {
			t.Errorf("port %d: %v, want allowed = %v", port, err, want)
		}
		if err := open.check("host.example", to); err != nil {
			t.Errorf("port %d with http_allow_private: %v", port, err)
		}
	}
}

// TestHTTPGuardDialer checks that the dialer itself refuses, whatever happened
// before it: what it gets is the address that the kernel would connect to.
func TestHTTPGuardDialer(t *testing.T) {
	inner := newInnerServer(t, "127.0.0.1:0", secretHandler())
	addr := netip.MustParseAddrPort(inner.Listener.Addr().String())
	conn, err := newHTTPGuard(httpConfig{allowPrivate: true}).dialAddr(t.Context(), "h.example", addr)
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	for _, a := range []netip.AddrPort{addr, netip.AddrPortFrom(netip.AddrFrom16(addr.Addr().As16()), addr.Port())} {
		conn, err := newHTTPGuard(httpConfig{}).dialAddr(t.Context(), "h.example", a)
		if codeOfError(err) != protocol.CodeToolDenied {
			t.Errorf("%v: %v, %v, want tool_denied", a, conn, err)
		}
	}
}

// TestHTTPGetIgnoresProxies guards against a proxy from the environment, which
// would be dialed instead of the host.
func TestHTTPGetIgnoresProxies(t *testing.T) {
	inner := newInnerServer(t, "127.0.0.1:0", secretHandler())
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"} {
		t.Setenv(name, inner.URL)
	}
	h := newHTTPGet(httpConfig{})
	t.Cleanup(h.close)
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

// TestHTTPGetTriesAddresses checks that a dead first address is no failure.
func TestHTTPGetTriesAddresses(t *testing.T) {
	front := newInnerServer(t, "127.0.0.1:0", secretHandler())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	n := &testNet{
		names:  map[string][][]string{"two.example": {{publicB, publicA}}, "dead.example": {{publicB}}},
		public: map[string]string{publicA: front.Listener.Addr().String(), publicB: dead},
	}
	h := n.tool(t, httpConfig{})
	if res, _, err := get(t, h, "http://two.example/"); err != nil || res.Content != httpSecret {
		t.Errorf("%+v, %v, want the answer of the second address", res, err)
	}
	if len(n.dialed) != 2 {
		t.Errorf("dialed %v, want both addresses", n.dialed)
	}
	for _, u := range []string{"http://dead.example/", "http://unknown.example/"} {
		var e *protocol.Error
		if _, _, err := get(t, h, u); !errors.As(err, &e) || e.Code != protocol.CodeToolError || !e.Retryable {
			t.Errorf("%s: %v, want a retryable tool_error", u, err)
		}
	}
}

// FuzzURL feeds any text as a URL to a tool whose names resolve to all kinds of
// addresses. No address that is not public may reach the dialer, judged by the
// net package instead of the guard.
func FuzzURL(f *testing.F) {
	for _, c := range innerURLs() {
		f.Add(strings.ReplaceAll(c.url, "PORT", "8080"))
	}
	f.Add("https://example.com:8443/a?b=c#d")
	f.Add("http://[64:ff9b::7f00:1]/")
	answers := []string{"127.0.0.1", publicA, "10.0.0.1", publicB, "::1", "169.254.169.254", "fd00::1", "::ffff:192.168.1.1", "224.0.0.1"}
	errNoNet := errors.New("no network here")
	f.Fuzz(func(t *testing.T, raw string) {
		h := newHTTPGet(httpConfig{
			own: func() ([]net.Addr, error) { return nil, nil },
			lookup: func(_ context.Context, host string) ([]netip.Addr, error) {
				if _, err := netip.ParseAddr(host); err == nil || host == "" {
					t.Errorf("%q: the resolver was asked for %q", raw, host)
				}
				sum := fnv.New32a()
				_, _ = sum.Write([]byte(host))
				return []netip.Addr{netip.MustParseAddr(answers[sum.Sum32()%uint32(len(answers))])}, nil
			},
			dial: func(_ context.Context, host string, addr netip.AddrPort) (net.Conn, error) {
				ip := net.IP(addr.Addr().Unmap().AsSlice())
				if !ip.IsGlobalUnicast() || ip.IsPrivate() || addr.Addr().Zone() != "" {
					t.Errorf("%q: %s (%q) was dialed", raw, addr, host)
				}
				return nil, errNoNet
			},
		})
		u, bad := h.guard().parse(raw)
		if bad != nil {
			return
		}
		again, bad := h.guard().parse(u.String())
		if bad != nil || again.Host != u.Host || again.Scheme != u.Scheme {
			t.Errorf("%q became %q, which reads as %v, %v", raw, u, again, bad)
		}
		port := u.Port()
		if port == "" {
			port = "80"
		}
		// Without the client: its goroutines would make coverage, and with it the
		// search, depend on luck.
		if _, err := h.guard().dialContext(t.Context(), "tcp", net.JoinHostPort(u.Hostname(), port)); err == nil {
			t.Errorf("%q was opened without a network", raw)
		}
	})
}
