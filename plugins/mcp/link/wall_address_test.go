package link

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"a2e/host/webguard"
	"a2e/protocol"
)

// The public addresses of the made-up network.
const (
	publicA = "93.184.215.14"
	ownIP   = "185.199.108.153" // this machine's
)

// nets is a network in which publicA is a server on 127.0.0.1; whatever else is dialed is
// noted, after the guard let it pass.
type nets struct {
	guard *webguard.Guard
	to    string // address of the server

	mu     sync.Mutex
	looked map[string]int // how often a name was looked up
	other  []string       // addresses dialed
}

// newNets makes one. The answers of a name go from one to the next.
func newNets(to string, names map[string][]string) *nets {
	n := &nets{to: to, looked: make(map[string]int)}
	n.guard = webguard.New(webguard.Options{
		Own: func() ([]net.Addr, error) {
			return []net.Addr{&net.IPNet{IP: net.ParseIP(ownIP), Mask: net.CIDRMask(24, 32)}}, nil
		},
		Lookup: func(_ context.Context, host string) (all []netip.Addr, err error) {
			n.mu.Lock()
			defer n.mu.Unlock()
			answers, ok := names[strings.TrimSuffix(host, ".")]
			if !ok {
				return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
			}
			for a := range strings.FieldsSeq(answers[min(n.looked[host], len(answers)-1)]) {
				all = append(all, netip.MustParseAddr(a))
			}
			n.looked[host]++
			return all, nil
		},
		Dial: func(ctx context.Context, _ string, addr netip.AddrPort) (net.Conn, error) {
			if addr.Addr().String() != publicA {
				n.mu.Lock()
				defer n.mu.Unlock()
				n.other = append(n.other, addr.String())
				return nil, fmt.Errorf("%s was dialed", addr)
			}
			return new(net.Dialer).DialContext(ctx, "tcp", n.to)
		},
	})
	return n
}

// TestWallRegisteredURL guards against URLs that an agent registers and that lead to this
// machine or a private network: by its own public address, by addresses within addresses,
// by what a name resolves to, by a redirect or by what the server says of itself.
func TestWallRegisteredURL(t *testing.T) {
	hostile := map[string][]string{
		"mixed.example": {publicA + " 10.0.0.1"}, "mixed6.example": {publicA + " ::1"}, "own.example": {ownIP}, "private.example": {"192.168.1.1"},
		"flip.example": {publicA, "127.0.0.1"}, "good.example": {publicA}, "meta.example": {"169.254.169.254"}, "isatap.example": {"2a00:1450::200:5efe:a00:1"},
	}
	for name, url := range map[string]string{
		"loopback": "http://127.0.0.1:PORT/mcp", "loopback 6": "http://[::1]:PORT/mcp", "localhost": "http://localhost:PORT/mcp", "a name below it": "http://x.localhost:PORT/mcp",
		"mapped": "http://[::ffff:127.0.0.1]:PORT/mcp", "NAT64": "http://[64:ff9b::7f00:1]/mcp", "6to4": "http://[2002:7f00:1::]/mcp", "Teredo": "http://[2001:0:4136:e378:8000:63bf:3fff:fdd2]/mcp",
		"ISATAP": "http://[2a00:1450::5efe:7f00:1]/mcp", "ISATAP by name": "http://isatap.example/mcp", "link local": "http://[fe80::1]/mcp", "unique local": "http://[fd00:ec2::254]/mcp",
		"metadata": "http://169.254.169.254/mcp", "metadata by name": "http://meta.example/mcp", "metadata elsewhere": "http://168.63.129.16/mcp", "own address": "http://" + ownIP + "/mcp",
		"own, mapped": "http://[::ffff:" + ownIP + "]/mcp", "own by name": "http://own.example/mcp", "private": "http://10.0.0.1/mcp", "private by name": "http://private.example/mcp",
		"shared": "http://100.64.0.1/mcp", "unspecified": "http://0.0.0.0:PORT/mcp", "one number": "http://2130706433/mcp", "octal": "http://0177.0.0.1/mcp", "hexadecimal": "http://0x7f.1/mcp",
		"mixed answers": "http://mixed.example/mcp", "mixed families": "http://mixed6.example/mcp", "user name": "http://good.example@127.0.0.1/mcp", "user of a good one": "http://user:word@good.example/mcp",
		"port of another service": "http://good.example:22/mcp", "mail": "http://good.example:25/mcp", "dot at the end": "http://localhost.:PORT/mcp",
	} {
		for _, transport := range []Transport{HTTP, SSE} {
			t.Run(name+" by "+string(transport), func(t *testing.T) {
				at := newSite(t, transport)
				n := newNets(at.Listener.Addr().String(), hostile)
				_, port, _ := net.SplitHostPort(n.to)
				s := newStage(t, Config{URL: strings.Replace(url, "PORT", port, 1), Transport: transport, Guard: n.guard}, nil)
				refusedWith(t, s, n)
				if len(at.methods()) != 0 {
					t.Errorf("the server was asked: %v", at.methods())
				}
			})
		}
	}
}

// refusedWith sees that no session comes about, and that nothing but the public address
// was dialed.
func refusedWith(t *testing.T, s *stage, n *nets) {
	t.Helper()
	_, err := s.Session(t.Context())
	wantError(t, err, protocol.CodeMCPServerUnavailable, "")
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.other) > 0 {
		t.Errorf("%v was dialed", n.other)
	}
}

// TestWallRegisteredURLRedirects: the same for what a public server answers with.
func TestWallRegisteredURLRedirects(t *testing.T) {
	for name, to := range map[string]string{
		"loopback": "http://127.0.0.1:PORT/mcp", "mapped": "http://[::ffff:127.0.0.1]:PORT/mcp", "localhost": "http://localhost:PORT/mcp", "own": "http://" + ownIP + ":PORT/mcp",
		"ISATAP": "http://[2a00:1450::5efe:7f00:1]/mcp", "6to4": "http://[2002:7f00:1::]/mcp", "mixed": "http://mixed.example/mcp", "metadata": "http://169.254.169.254/latest",
		"a port": "http://good.example:22/mcp", "user": "http://u@good.example/other", "a scheme": "ftp://good.example/mcp",
	} {
		for _, status := range []int{http.StatusTemporaryRedirect, http.StatusPermanentRedirect, http.StatusFound} {
			t.Run(fmt.Sprint(name, " ", status), func(t *testing.T) {
				at := newSite(t, HTTP)
				n := newNets(at.Listener.Addr().String(), map[string][]string{"good.example": {publicA}, "mixed.example": {publicA + " 127.0.0.1"}})
				_, port, _ := net.SplitHostPort(n.to)
				at.through(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
					if r.Host != "good.example" || r.URL.Path != "/mcp" {
						t.Errorf("the redirect to http://%s%s was followed", r.Host, r.URL.Path)
					}
					http.Redirect(w, r, strings.Replace(to, "PORT", port, 1), status)
				})
				refusedWith(t, newStage(t, Config{URL: "http://good.example/mcp", Transport: HTTP, Guard: n.guard}, nil), n)
			})
		}
	}
	t.Run("the endpoint of SSE", func(t *testing.T) {
		at := newSite(t, SSE)
		n := newNets(at.Listener.Addr().String(), map[string][]string{"good.example": {publicA}})
		at.through(func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
			if r.Method != http.MethodGet {
				t.Errorf("%s %s%s came", r.Method, r.Host, r.URL)
			}
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprintf(w, "event: endpoint\ndata: http://%s/mcp\n\n", n.to)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		})
		refusedWith(t, newStage(t, Config{URL: "http://good.example/mcp", Transport: SSE, Guard: n.guard}, nil), n)
	})
	t.Run("a name that changes", func(t *testing.T) {
		at := newSite(t, HTTP)
		n := newNets(at.Listener.Addr().String(), map[string][]string{"flip.example": {publicA, "10.0.0.1"}})
		at.through(func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
			w.Header().Set("Connection", "close") // so that the next request looks the name up anew
			http.Redirect(w, r, "http://flip.example/other", http.StatusTemporaryRedirect)
		})
		refusedWith(t, newStage(t, Config{URL: "http://flip.example/mcp", Transport: HTTP, Guard: n.guard}, nil), n)
	})
}

// TestRegisteredURL: a public server is reached all the same, redirects within it too.
func TestRegisteredURL(t *testing.T) {
	at := newSite(t, HTTP)
	n := newNets(at.Listener.Addr().String(), map[string][]string{"good.example": {publicA}})
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "ALL_PROXY"} {
		t.Setenv(name, "http://127.0.0.1:1") // is not asked
	}
	at.through(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.URL.Path == "/old" {
			http.Redirect(w, r, "/mcp", http.StatusTemporaryRedirect)
			return
		}
		r.Host = n.to // the SDK serves no other name on 127.0.0.1
		next.ServeHTTP(w, r)
	})
	s := newStage(t, Config{URL: "http://good.example/old", Transport: HTTP, Guard: n.guard}, nil)
	if got := s.must("echo", echoArgs{"hi"}); got != "hi" {
		t.Errorf("echo gave %q", got)
	}
}
