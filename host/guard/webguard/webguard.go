// Package webguard decides which web addresses may be opened if an agent or a page names them. http_get, the toolkit
// http, the MCP servers that agents register and the model endpoints that they name all use it.
package webguard

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"code.dny.dev/ssrf"
	"golang.org/x/net/idna"

	"a2e/protocol"
)

// The limits for opening one connection.
const (
	maxURLBytes   = 8192
	maxDialAddrs  = 8                // addresses of one host that are tried
	nextAddrAfter = 3 * time.Second  // time limit of an address if there are further ones
	dialTimeout   = 10 * time.Second // time limit of the last address
)

// These are functions so that nobody can change them; netip and ssrf have such values only as variables.
func nat64() netip.Prefix        { return ssrf.IPv6NAT64Prefix }
func azureMetadata() netip.Addr  { return netip.AddrFrom4([4]byte{168, 63, 129, 16}) }
func isatapSuffix(b []byte) bool { return b[0]&^2 == 0 && b[1] == 0 && b[2] == 0x5e && b[3] == 0xfe }

// Options say what a Guard allows. A nil function means the real network.
type Options struct {
	AllowPrivate bool // allow any address and port
	// the config setting that would allow private addresses, for messages; "" = "http_allow_private: true"
	Setting string

	Own    func() ([]net.Addr, error)                                                    // addresses of this machine
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error)                  // not called for IP addresses
	Dial   func(ctx context.Context, host string, addr netip.AddrPort) (net.Conn, error) // dials one address
}

// Guard decides which addresses may be opened. The text of a URL is checked first, but the dialed address decides: each
// address of each connection is checked before the dial, and again in the dialer, with the very address that the kernel
// gets. So a name that changes its address between two lookups (DNS rebinding) achieves nothing.
type Guard struct {
	opts  Options
	addrs *ssrf.Guardian
}

// New makes a guard.
func New(o Options) *Guard {
	g := &Guard{opts: o, addrs: ssrf.New(ssrf.WithAnyPort())}
	g.opts.Setting = cmp.Or(o.Setting, "http_allow_private: true")
	if o.Own == nil {
		g.opts.Own = net.InterfaceAddrs
	}
	if o.Lookup == nil {
		g.opts.Lookup = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}
	if o.Dial == nil {
		g.opts.Dial = g.Dial
	}
	return g
}

// Parse parses a URL from a caller. It is stricter than a browser: it refuses a URL that two programs
// could read in two ways, instead of repairing it.
func (g *Guard) Parse(raw string) (*url.URL, *protocol.Error) {
	switch {
	case raw == "":
		return nil, BadURL("it is empty")
	case len(raw) > maxURLBytes:
		return nil, BadURL("it is longer than %d bytes", maxURLBytes)
	case !utf8.ValidString(raw):
		return nil, BadURL("it is not valid UTF-8")
	}
	for _, r := range raw {
		switch {
		case r == '\\':
			return nil, BadURL("it has a backslash; write / or %%5C")
		case r <= ' ' || r >= 0x7f && r <= 0x9f:
			return nil, BadURL("it has a space or control character (U+%04X); percent-encode it", r)
		}
	}
	u, err := url.Parse(raw)
	if err != nil {
		// the outer error text repeats the URL, which may contain a password
		if inner, ok := errors.AsType[*url.Error](err); ok {
			err = inner.Err
		}
		return nil, BadURL("%w", err)
	}
	if len(u.String()) > maxURLBytes { // encoding turns one byte into three
		return nil, BadURL("it is longer than %d bytes with what has to be percent-encoded", maxURLBytes)
	}
	return u, g.CheckURL(u)
}

// CheckURL checks a parsed URL against the rules and replaces its host by the canonical form.
func (g *Guard) CheckURL(u *url.URL) *protocol.Error {
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return BadURL("it should begin with https:// or http://")
	case u.Opaque != "" || u.Host == "":
		return BadURL("it names no host; it should look like https://example.com/page")
	case u.User != nil:
		return BadURL("it has a user name or password before the host (…@); leave that out")
	}
	port := u.Port()
	if n, err := strconv.ParseUint(port, 10, 16); port != "" && (err != nil || n == 0) {
		return BadURL("its port must be 1 to 65535")
	}
	host, err := canonicalHost(u)
	if err != nil {
		return err
	}
	if name := strings.TrimSuffix(host, "."); !g.opts.AllowPrivate && (name == "localhost" ||
		strings.HasSuffix(name, ".localhost")) {
		return g.refused(name, "it is this machine")
	}
	if u.Host = host; strings.Contains(host, ":") {
		u.Host = "[" + host + "]"
	}
	if port != "" {
		u.Host += ":" + port
	}
	return nil
}

// canonicalHost returns the host as lower case ASCII: an address in netip's notation, or a DNS name.
// Other notations of an IPv4 address (one number, octal, hexadecimal, fewer parts, digits or dots of
// other scripts) are errors, because resolvers read them differently.
func canonicalHost(u *url.URL) (string, *protocol.Error) {
	host := u.Hostname()
	if strings.HasPrefix(u.Host, "[") {
		addr, err := netip.ParseAddr(host)
		if err != nil || !addr.Is6() {
			return "", BadURL("the text in [] is not an IPv6 address")
		}
		return addr.String(), nil
	}
	if !isASCII(host) {
		ascii, err := idna.Lookup.ToASCII(host)
		if err != nil {
			return "", BadURL("its host is not a valid international domain name")
		}
		host = ascii
	}
	host = strings.ToLower(host)
	name := strings.TrimSuffix(host, ".")
	if !isDNSName(name) {
		return "", BadURL("its host %q is not a domain name", protocol.Clip(host, 80))
	}
	if endsInNumber(name) {
		addr, err := netip.ParseAddr(host)
		if err != nil || !isASCII(u.Host) {
			return "", BadURL("its host %q is not an IPv4 address; that is four decimal numbers, such as 192.0.2.1",
				protocol.Clip(host, 80))
		}
		return addr.String(), nil
	}
	return host, nil
}

func isASCII(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r >= utf8.RuneSelf }) < 0
}

func isDNSName(name string) bool {
	if len(name) > 253 {
		return false
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 {
			return false
		}
		for _, c := range []byte(label) {
			if !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '_') {
				return false
			}
		}
	}
	return true
}

// endsInNumber reports whether a program may take the name for an IPv4 address, by the rule of the WHATWG URL standard.
func endsInNumber(name string) bool {
	last := name[strings.LastIndexByte(name, '.')+1:]
	if hex, ok := strings.CutPrefix(last, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(last, "0123456789") == ""
}

// DialContext opens a connection for http.Transport. It refuses a host if any of its addresses is
// refused, so that the result does not depend on which address is dialed.
func (g *Guard) DialContext(ctx context.Context, _, address string) (net.Conn, error) {
	host, portText, err := net.SplitHostPort(address)
	if err != nil {
		return nil, BadURL("%w", err)
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return nil, BadURL("its port must be 1 to 65535")
	}
	addrs, err := g.resolve(ctx, host)
	if err != nil {
		return nil, err
	}
	for _, a := range addrs {
		if err := g.Check(host, netip.AddrPortFrom(a, uint16(port))); err != nil {
			return nil, err
		}
	}
	return g.dialFirst(ctx, host, addrs[:min(len(addrs), maxDialAddrs)], uint16(port))
}

// resolve returns at least one address, or an error.
func (g *Guard) resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	if addr, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{addr}, nil
	}
	addrs, err := g.opts.Lookup(ctx, host)
	if err == nil && len(addrs) == 0 {
		err = &net.DNSError{Err: "no addresses", Name: host, IsNotFound: true}
	}
	return addrs, err
}

// dialFirst dials the addresses in the resolver's order until one succeeds.
func (g *Guard) dialFirst(ctx context.Context, host string, addrs []netip.Addr, port uint16) (net.Conn, error) {
	var first error
	for i, a := range addrs {
		limit := nextAddrAfter
		if i == len(addrs)-1 {
			limit = dialTimeout
		}
		attempt, cancel := context.WithTimeout(ctx, limit)
		conn, err := g.opts.Dial(attempt, host, netip.AddrPortFrom(a, port))
		cancel()
		if err == nil {
			return conn, nil
		}
		if first == nil {
			first = err
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, first
}

// Dial dials one address. The address is checked again directly before the kernel connects.
func (g *Guard) Dial(ctx context.Context, host string, addr netip.AddrPort) (net.Conn, error) {
	d := net.Dialer{Control: func(_, address string, _ syscall.RawConn) error {
		dialed, err := netip.ParseAddrPort(address)
		if err != nil {
			return g.refused(host, "its address cannot be read")
		}
		return g.Check(host, dialed)
	}}
	return d.DialContext(ctx, "tcp", addr.String())
}

// Check refuses addresses that are not public, and ports that are not for web servers. The result is a
// plain error, so that a nil *protocol.Error does not become a non-nil error.
func (g *Guard) Check(host string, to netip.AddrPort) error {
	if g.opts.AllowPrivate {
		return nil
	}
	if why := g.addrProblem(to.Addr()); why != "" {
		if host != to.Addr().String() {
			why = "its address " + to.Addr().String() + " " + why
		} else {
			why = "it " + why
		}
		return g.refused(host, why)
	}
	if !webPort(to.Port()) {
		return g.refused(host, "port "+strconv.Itoa(int(to.Port()))+" is not for web servers; 80, 443 and most from "+
			"1024 up are")
	}
	return nil
}

// addrProblem returns the reason why an address is refused, or "". The ssrf package refuses all addresses that IANA
// lists as special, and IPv6 outside 2000::/3. addrProblem also refuses IPv4 addresses inside IPv6, a metadata service
// on a public address, and the public address of this machine, from which a firewall may not protect it.
func (g *Guard) addrProblem(ip netip.Addr) string {
	if ip.Zone() != "" {
		return "is link-local"
	}
	ip = ip.Unmap()
	if nat64().Contains(ip) {
		b := ip.As16()
		ip = netip.AddrFrom4([4]byte(b[12:]))
	}
	switch {
	case ip.IsUnspecified() || ip.IsLoopback():
		return "is this machine"
	case ip.IsPrivate():
		return "is in a private network"
	case ip.IsLinkLocalUnicast():
		return "is link-local or a metadata service"
	case ip == azureMetadata():
		return "is a metadata service"
	case g.addrs.SafeAddr(ip) != nil:
		return "is not a public address"
	}
	if b := ip.As16(); ip.Is6() && isatapSuffix(b[8:12]) {
		return "is a tunnel to an IPv4 address"
	}
	own, err := g.opts.Own()
	if err != nil {
		return "" // if the system does not say, the rules above must suffice
	}
	for _, a := range own {
		if n, ok := a.(*net.IPNet); ok && n.IP.Equal(ip.AsSlice()) {
			return "is this machine"
		}
	}
	return ""
}

// webPort reports whether web servers use a port. Below 1024 these are 80 and 443; above, all ports
// except those that browsers block because other protocols use them.
func webPort(port uint16) bool {
	if port < 1024 {
		return port == 80 || port == 443
	}
	switch port {
	case 1719, 1720, 1723, 2049, 3659, 4045, 4190, 5060, 5061, 6000, 6566,
		6665, 6666, 6667, 6668, 6669, 6679, 6697, 10080:
		return false
	}
	return true
}

// BadURL returns the error for a URL that cannot be used.
func BadURL(format string, args ...any) *protocol.Error {
	return protocol.Errorf(protocol.CodeToolError, "this URL cannot be used: "+format, args...)
}

func (g *Guard) refused(host, why string) *protocol.Error {
	return protocol.Errorf(protocol.CodeToolDenied,
		"%q is not opened: %s. Only public addresses are open, unless the config allows private ones (%s)",
		protocol.Clip(host, 80), why, g.opts.Setting)
}
