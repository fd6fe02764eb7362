package webguard

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// TestGuardAddresses: the guard refuses all kinds of addresses that are not public, and lets public ones pass.
func TestGuardAddresses(t *testing.T) {
	_, own, err := net.ParseCIDR("185.199.108.153/24")
	must.OK(t, err)
	own.IP = net.ParseIP("185.199.108.153")
	g := New(Options{Own: func() ([]net.Addr, error) { return []net.Addr{own}, nil }})
	for _, c := range []struct {
		want  bool
		addrs string
	}{
		{true, "1.1.1.1 8.8.8.8 93.184.215.14 100.63.255.255 100.128.0.1 172.15.0.1 172.32.0.1 192.167.1.1 " +
			"223.255.255.254 185.199.108.154"},
		{true, "2606:2800:21f:cb07:6820:80da:af6b:8b2c 2001:4860:4860::8888 2a00:1450::1 ::ffff:1.1.1.1 " +
			"64:ff9b::101:101"},
		{false, "0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.127.255.255 100.100.100.200 127.0.0.1 " +
			"127.255.255.255"},
		{false, "169.254.169.254 169.254.170.2 172.16.0.1 172.31.255.255 192.168.0.1 192.0.0.192 192.0.2.1 " +
			"198.18.0.1 198.19.255.255"},
		{false, "198.51.100.1 203.0.113.1 192.88.99.1 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255 " +
			"168.63.129.16 185.199.108.153"},
		{false, ":: ::1 ::127.0.0.1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:169.254.169.254 ::ffff:0:127.0.0.1 " +
			"::ffff:185.199.108.153"},
		{false, "64:ff9b::7f00:1 64:ff9b::a00:1 64:ff9b::a9fe:a9fe 64:ff9b:1::7f00:1 64:ff9b::a83f:8110 100::1 " +
			"5f00::1"},
		{false, "2002:7f00:1:: 2002:a00:1::1 2002:101:101::1 2001::1 2001:0:4136:e378:8000:63bf:3fff:fdd2 " +
			"2001:db8::1 2001:10::1 2001:20::1 3fff::1"},
		{false, "fc00::1 fd00::1 fd00:ec2::254 fd20:ce::254 fe80::1 fe80::1%eth0 fec0::1 ff02::1 ff0e::1 " +
			"2606:2800::1%lo"},
		{false, "2a00:1450::5efe:7f00:1 2a00:1450::200:5efe:a00:1"},
	} {
		for a := range strings.FieldsSeq(c.addrs) {
			addr := netip.MustParseAddr(a)
			err := g.Check("host.example", netip.AddrPortFrom(addr, 443))
			assert.Equal(t, (err == nil), c.want, "%s: %v, want allowed =", a, err)
		}
	}
}

// TestGuardParse: good URLs are returned in a normal form, and URLs that are refused do not show their password in
// the error.
func TestGuardParse(t *testing.T) {
	g := New(Options{})
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
		u, err := g.Parse(raw)
		assert.That(t, err == nil && u.String() == want, "%q: %v, %v, want %q", raw, u, err, want)
	}
	for _, raw := range []string{
		`http://example.com/a\b`, "http://example.com/a b", "http://example.com/a ", "http://example.com/\u0085",
		"http://example.com/?a\tb",
		"http://example.com/\xff", "http://user@example.com/", "http://example.com:99999/", "http://exa%6dple.com/",
		"http://exam!ple.com/",
		"http://" + strings.Repeat("abc.", 64) + "com/", "http://xn--a.example\u202e/",
	} {
		u, err := g.Parse(raw)
		assert.That(t, err != nil && err.Code == protocol.CodeToolError, "%q: %v, %v, want tool_error", raw, u, err)
	}
	const secret = "hunter2"
	for _, raw := range []string{
		"http://u:" + secret + "@example.com/", "http://u:" + secret + "@exa mple.com/",
		"http://u:" + secret + "@[::1/", "ftp://u:" + secret + "@example.com/",
	} {
		_, err := g.Parse(raw)
		assert.That(t, err != nil && !strings.Contains(err.Error(), secret), "the refusal of %q is %v", raw, err)
	}
}

// TestGuardPorts: on a public address only the usual web ports and high ports are open, unless private addresses are
// allowed.
func TestGuardPorts(t *testing.T) {
	g := New(Options{})
	open := New(Options{AllowPrivate: true})
	for port, want := range map[uint16]bool{
		80: true, 443: true, 1024: true, 3000: true, 8080: true, 8443: true, 9200: true, 65535: true,
		0: false, 1: false, 21: false, 22: false, 23: false, 25: false, 53: false, 110: false, 445: false, 587: false,
		1023: false,
		2049: false, 5060: false, 6000: false, 6667: false, 10080: false,
	} {
		to := netip.AddrPortFrom(netip.MustParseAddr("93.184.215.14"), port)
		err := g.Check("host.example", to)
		assert.Equal(t, (err == nil), want, "port %d: %v, want allowed =", port, err)
		err = open.Check("host.example", to)
		assert.That(t, err == nil, "port %d with http_allow_private: %v", port, err)
	}
}

// TestGuardDialer: the dialer itself refuses private addresses, whatever was checked before it, because it sees the
// address to which the kernel would connect.
func TestGuardDialer(t *testing.T) {
	inner := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer inner.Close()
	addr := netip.MustParseAddrPort(inner.Addr().String())
	conn := must.Get(New(Options{AllowPrivate: true}).Dial(t.Context(), "h.example", addr))(t)
	assert.OK(t, conn.Close())
	for _, a := range []netip.AddrPort{addr, netip.AddrPortFrom(netip.AddrFrom16(addr.Addr().As16()), addr.Port())} {
		conn, err := New(Options{}).Dial(t.Context(), "h.example", a)
		refusal := (*protocol.Error)(nil)
		assert.That(t, errors.As(err, &refusal) && refusal.Code == protocol.CodeToolDenied,
			"%v: %v, %v, want tool_denied", a, conn, err)
	}
}
