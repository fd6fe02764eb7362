package link

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"a2e/host/guard/redact"
	"a2e/host/guard/webguard"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

func TestValidate(t *testing.T) {
	for name, tc := range map[string]struct {
		cfg  Config
		want string // "" = valid
	}{
		"command": {Config{ID: "a", Command: "x", Env: map[string]string{"A_1": "b"}}, ""},
		"url": {Config{
			ID: "a-b_C9", URL: "https://example.org/mcp",
			Headers: map[string]string{"Authorization": "Bearer x"},
		}, ""},
		"sse":             {Config{ID: "a", URL: "http://127.0.0.1:1/sse", Transport: SSE}, ""},
		"no id":           {Config{Command: "x"}, "1 to 64 letters"},
		"long id":         {Config{ID: strings.Repeat("a", 65), Command: "x"}, "1 to 64 letters"},
		"odd id":          {Config{ID: "a b", Command: "x"}, "1 to 64 letters"},
		"id with __":      {Config{ID: "a__b", Command: "x"}, "write one _"},
		"neither":         {Config{ID: "a"}, "neither a command nor a url"},
		"both":            {Config{ID: "a", Command: "x", URL: "http://x"}, "one of them"},
		"transport":       {Config{ID: "a", Command: "x", Transport: "ws"}, "stdio, sse and http"},
		"sse without url": {Config{ID: "a", Command: "x", Transport: SSE}, "needs a url"},
		"stdio with url":  {Config{ID: "a", URL: "http://x", Transport: Stdio}, "needs a command"},
		"scheme":          {Config{ID: "a", URL: "ftp://x"}, "https:// or http://"},
		"no scheme":       {Config{ID: "a", URL: "example.org/mcp"}, "https:// or http://"},
		"no host":         {Config{ID: "a", URL: "http:///mcp"}, "no host"},
		"no url":          {Config{ID: "a", URL: "http://x:%zz/s3cret"}, "cannot be read"},
		"header name": {
			Config{ID: "a", URL: "http://x", Headers: map[string]string{"A b": "c"}},
			"not a name of an HTTP header",
		},
		"own header": {
			Config{ID: "a", URL: "http://x", Headers: map[string]string{"Mcp-Session-Id": "c"}},
			"set it themselves",
		},
		"header value": {
			Config{ID: "a", URL: "http://x", Headers: map[string]string{"A": "s3cret\r\nB: c"}},
			"line break",
		},
		"header of command": {Config{ID: "a", Command: "x", Headers: map[string]string{"A": "c"}}, "belong to a url"},
		"env name":          {Config{ID: "a", Command: "x", Env: map[string]string{"A=B": "s3cret"}}, "letters, digits and _"},
		"NUL":               {Config{ID: "a", Command: "x", Args: []string{"s3cret\x00"}}, "NUL"},
		"time":              {Config{ID: "a", Command: "x", PingEvery: -time.Second}, "0 or more"},
	} {
		err := tc.cfg.Validate()
		switch {
		case (err == nil) != (tc.want == ""), err != nil && !strings.Contains(err.Error(), tc.want):
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		case err != nil && strings.Contains(err.Error(), "s3cret"):
			t.Errorf("%s shows a secret: %v", name, err)
		}
	}
}

func TestExplain(t *testing.T) {
	rejected := &jsonrpc.Error{Code: codeRejected, Message: "rejected by transport"}
	dial := &url.Error{Op: "Post", URL: "http://x/?key=s3cret", Err: &net.OpError{
		Op:  "dial",
		Err: errors.New("refused"),
	}}
	ended, stop := context.WithCancelCause(t.Context())
	mine := errors.New("mine")
	stop(mine)
	for name, tc := range map[string]struct {
		outer context.Context
		err   error
		code  protocol.ErrorCode
		text  string
	}{
		"answer": {
			nil, fmt.Errorf("calling: %w", &jsonrpc.Error{Code: -32000, Message: "no"}),
			protocol.CodeMCPProtocolError, "error -32000: no",
		},
		"no reason": {nil, &jsonrpc.Error{Code: 5}, protocol.CodeMCPProtocolError, "error 5: no reason was given"},
		"no method": {
			nil, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "m"},
			protocol.CodeMCPCapabilityMissing, "error -32601: m",
		},
		"in a status": {
			nil, fmt.Errorf("%w: %w: Bad Request", &jsonrpc.Error{Code: -32600, Message: "bad"}, rejected),
			protocol.CodeMCPProtocolError, "bad",
		},
		"rejected": {nil, fmt.Errorf("%w: Bad Gateway", rejected), protocol.CodeMCPTransportError, "Bad Gateway"},
		"dial": {
			nil, fmt.Errorf("%w: %w", rejected, dial), protocol.CodeMCPServerUnavailable,
			"cannot be reached: the HTTP request failed: dial",
		},
		"no sense": {nil, errors.New("unmarshalling"), protocol.CodeMCPProtocolError, "does not fit: unmarshalling"},
		"lost answer": {
			nil, errors.New("request terminated without response"), protocol.CodeMCPTransportError,
			"lost: request terminated",
		},
		"own":       {nil, protocol.Errorf(protocol.CodeToolDenied, "no"), protocol.CodeToolDenied, "no"},
		"cancelled": {ended, context.Canceled, "", "mine"},
	} {
		l := &Link{cfg: Config{ID: "srv"}.withDefaults(), secrets: redact.New(nil), env: Env{Now: time.Now}}
		l.secrets.AddURL("http://x/?key=s3cret")
		outer := tc.outer
		if outer == nil {
			outer = t.Context()
		}
		err := l.explain(outer, outer, newConn(l, HTTP), tc.err)
		var own *protocol.Error
		switch errors.As(err, &own); {
		case tc.code == "" && err != mine:
			t.Errorf("%s: %v", name, err)
		case tc.code != "" && (own == nil || own.Code != tc.code || !strings.Contains(own.Message, tc.text) ||
			strings.Contains(own.Message, "s3cret")):
			t.Errorf("%s: %v", name, err)
		}
	}
}

func mustURL(t testing.TB, raw string) *url.URL {
	t.Helper()
	return must.Get(url.Parse(raw))(t)
}

func TestSecrets(t *testing.T) {
	cfg := Config{
		URL: "https://user:pass-word@x/y?token=a%20b%2Fc&page=last",
		Env: map[string]string{
			"A_KEY": "abcd", "B_SECRET": "abcdef", "C_PASS": "no", "PEM_KEY": "line-one\nline-two", "Q_TOKEN": `qu"ote`,
			"AWS_REGION": "us-east-1", "OTHER": "s3cret-value",
		},
		Headers: map[string]string{"Authorization": "Bearer xyzzy", "X-Tenant": "acme-1"},
	}
	s := redact.New(nil)
	cfg.AddSecrets(s)
	for text, want := range map[string]string{
		"abcdef, abcde":               redact.Text + ", " + redact.Text + "e",
		"no":                          "no",
		"Bearer xyzzy":                redact.Text,
		"token xyzzy!":                "token " + redact.Text + "!",
		"pass-word":                   redact.Text,
		"a b/c":                       redact.Text,
		"get ?token=a+b%2Fc":          "get ?token=" + redact.Text,
		"line-two":                    redact.Text,
		`{"x":"qu\"ote"}`:             `{"x":"` + redact.Text + `"}`,
		"nothing to see: user, Basi":  "nothing to see: user, Basi",
		"us-east-1 s3cret-value last": "us-east-1 s3cret-value last",
		"acme-1":                      "acme-1",
	} {
		assert.Equal(t, s.Text(text), want, "%q became", text)
	}
}

// The public addresses of the made-up network.
const (
	publicA = "93.184.215.14"
	ownIP   = "185.199.108.153" // this machine's
)

// nets is a network in which publicA is a server on 127.0.0.1. It records every other address that is
// dialed, after the guard let it pass.
type nets struct {
	guard *webguard.Guard
	to    string // address of the server

	mu     sync.Mutex
	looked map[string]int // how often a name was looked up
	other  []string       // addresses dialed
}

// newNets makes a network. Each look-up of a name returns its next answer; the last answer repeats.
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

// TestWallRegisteredURL: an agent cannot register a URL that leads to this machine or a private
// network: by the machine's public address, by an address within an address, or by the addresses of a
// name.
func TestWallRegisteredURL(t *testing.T) {
	hostile := map[string][]string{
		"mixed.example": {publicA + " 10.0.0.1"}, "mixed6.example": {publicA + " ::1"}, "own.example": {ownIP},
		"private.example": {"192.168.1.1"},
		"flip.example":    {publicA, "127.0.0.1"}, "good.example": {publicA}, "meta.example": {"169.254.169.254"},
		"isatap.example": {"2a00:1450::200:5efe:a00:1"},
	}
	for name, url := range map[string]string{
		"loopback": "http://127.0.0.1:PORT/mcp", "loopback 6": "http://[::1]:PORT/mcp",
		"localhost": "http://localhost:PORT/mcp", "a name below it": "http://x.localhost:PORT/mcp",
		"mapped": "http://[::ffff:127.0.0.1]:PORT/mcp", "NAT64": "http://[64:ff9b::7f00:1]/mcp",
		"6to4": "http://[2002:7f00:1::]/mcp", "Teredo": "http://[2001:0:4136:e378:8000:63bf:3fff:fdd2]/mcp",
		"ISATAP": "http://[2a00:1450::5efe:7f00:1]/mcp", "ISATAP by name": "http://isatap.example/mcp",
		"link local": "http://[fe80::1]/mcp", "unique local": "http://[fd00:ec2::254]/mcp",
		"metadata": "http://169.254.169.254/mcp", "metadata by name": "http://meta.example/mcp",
		"metadata elsewhere": "http://168.63.129.16/mcp", "own address": "http://" + ownIP + "/mcp",
		"own, mapped": "http://[::ffff:" + ownIP + "]/mcp", "own by name": "http://own.example/mcp",
		"private": "http://10.0.0.1/mcp", "private by name": "http://private.example/mcp",
		"shared": "http://100.64.0.1/mcp", "unspecified": "http://0.0.0.0:PORT/mcp",
		"one number": "http://2130706433/mcp", "octal": "http://0177.0.0.1/mcp", "hexadecimal": "http://0x7f.1/mcp",
		"mixed answers": "http://mixed.example/mcp", "mixed families": "http://mixed6.example/mcp",
		"user name": "http://good.example@127.0.0.1/mcp", "user of a good one": "http://user:word@good.example/mcp",
		"port of another service": "http://good.example:22/mcp", "mail": "http://good.example:25/mcp",
		"dot at the end": "http://localhost.:PORT/mcp",
	} {
		for _, transport := range []Transport{HTTP, SSE} {
			t.Run(name+" by "+string(transport), func(t *testing.T) {
				at := newSite(t, transport)
				n := newNets(at.Listener.Addr().String(), hostile)
				_, port, _ := net.SplitHostPort(n.to)
				s := newStage(t, Config{
					URL: strings.Replace(url, "PORT", port, 1), Transport: transport,
					Guard: n.guard,
				}, nil)
				refusedWith(t, s, n)
				if len(at.methods()) != 0 {
					t.Errorf("the server was asked: %v", at.methods())
				}
			})
		}
	}
}

// refusedWith checks that no session is made, and that only the public address was dialed.
func refusedWith(t *testing.T, s *stage, n *nets) {
	t.Helper()
	_, err := s.Session(t.Context())
	wantError(t, err, protocol.CodeMCPServerUnavailable, "")
	n.mu.Lock()
	defer n.mu.Unlock()
	assert.That(t, len(n.other) == 0, "%v was dialed", n.other)
}

// TestWallRegisteredURLRedirects: a public server cannot send the host to this machine or a private
// network, neither by a redirect nor by the endpoint of SSE nor by a name whose address changes.
func TestWallRegisteredURLRedirects(t *testing.T) {
	for name, to := range map[string]string{
		"loopback": "http://127.0.0.1:PORT/mcp", "mapped": "http://[::ffff:127.0.0.1]:PORT/mcp",
		"localhost": "http://localhost:PORT/mcp", "own": "http://" + ownIP + ":PORT/mcp",
		"ISATAP": "http://[2a00:1450::5efe:7f00:1]/mcp", "6to4": "http://[2002:7f00:1::]/mcp",
		"mixed": "http://mixed.example/mcp", "metadata": "http://169.254.169.254/latest",
		"a port": "http://good.example:22/mcp", "user": "http://u@good.example/other",
		"a scheme": "ftp://good.example/mcp",
	} {
		for _, status := range []int{http.StatusTemporaryRedirect, http.StatusPermanentRedirect, http.StatusFound} {
			t.Run(fmt.Sprint(name, " ", status), func(t *testing.T) {
				at := newSite(t, HTTP)
				n := newNets(at.Listener.Addr().String(), map[string][]string{
					"good.example":  {publicA},
					"mixed.example": {publicA + " 127.0.0.1"},
				})
				_, port, _ := net.SplitHostPort(n.to)
				at.through(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
					assert.That(t, r.Host == "good.example" && r.URL.Path == "/mcp", "the redirect to http://%s%s "+
						"was followed", r.Host, r.URL.Path)
					http.Redirect(w, r, strings.Replace(to, "PORT", port, 1), status)
				})
				refusedWith(t, newStage(t, Config{URL: "http://good.example/mcp", Transport: HTTP, Guard: n.guard},
					nil), n)
			})
		}
	}
	t.Run("the endpoint of SSE", func(t *testing.T) {
		at := newSite(t, SSE)
		n := newNets(at.Listener.Addr().String(), map[string][]string{"good.example": {publicA}})
		at.through(func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
			assert.Equal(t, r.Method, http.MethodGet, "… %s%s came", r.Host, r.URL)
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

// TestRegisteredURL: a public server is reached without a proxy, also by a redirect within the server.
func TestRegisteredURL(t *testing.T) {
	at := newSite(t, HTTP)
	n := newNets(at.Listener.Addr().String(), map[string][]string{"good.example": {publicA}})
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "ALL_PROXY"} {
		t.Setenv(name, "http://127.0.0.1:1") // must not be used
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
	assert.Equal(t, s.must("echo", echoArgs{"hi"}), "hi", "echo")
}
