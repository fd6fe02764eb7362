package link

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"a2e/host/redact"
	"a2e/protocol"
)

func TestValidate(t *testing.T) {
	for name, tc := range map[string]struct {
		cfg  Config
		want string // "" = it fits
	}{
		"command":           {Config{ID: "a", Command: "x", Env: map[string]string{"A_1": "b"}}, ""},
		"url":               {Config{ID: "a-b_C9", URL: "https://example.org/mcp", Headers: map[string]string{"Authorization": "Bearer x"}}, ""},
		"sse":               {Config{ID: "a", URL: "http://127.0.0.1:1/sse", Transport: SSE}, ""},
		"no id":             {Config{Command: "x"}, "1 to 64 letters"},
		"long id":           {Config{ID: strings.Repeat("a", 65), Command: "x"}, "1 to 64 letters"},
		"odd id":            {Config{ID: "a b", Command: "x"}, "1 to 64 letters"},
		"id with __":        {Config{ID: "a__b", Command: "x"}, "write one _"},
		"neither":           {Config{ID: "a"}, "neither a command nor a url"},
		"both":              {Config{ID: "a", Command: "x", URL: "http://x"}, "one of them"},
		"transport":         {Config{ID: "a", Command: "x", Transport: "ws"}, "stdio, sse and http"},
		"sse without url":   {Config{ID: "a", Command: "x", Transport: SSE}, "needs a url"},
		"stdio with url":    {Config{ID: "a", URL: "http://x", Transport: Stdio}, "needs a command"},
		"scheme":            {Config{ID: "a", URL: "ftp://x"}, "https:// or http://"},
		"no scheme":         {Config{ID: "a", URL: "example.org/mcp"}, "https:// or http://"},
		"no host":           {Config{ID: "a", URL: "http:///mcp"}, "no host"},
		"no url":            {Config{ID: "a", URL: "http://x:%zz/s3cret"}, "cannot be read"},
		"header name":       {Config{ID: "a", URL: "http://x", Headers: map[string]string{"A b": "c"}}, "no name of an HTTP header"},
		"own header":        {Config{ID: "a", URL: "http://x", Headers: map[string]string{"Mcp-Session-Id": "c"}}, "set it themselves"},
		"header value":      {Config{ID: "a", URL: "http://x", Headers: map[string]string{"A": "s3cret\r\nB: c"}}, "line break"},
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
	dial := &url.Error{Op: "Post", URL: "http://x/?key=s3cret", Err: &net.OpError{Op: "dial", Err: errors.New("refused")}}
	ended, stop := context.WithCancelCause(t.Context())
	mine := errors.New("mine")
	stop(mine)
	for name, tc := range map[string]struct {
		outer context.Context
		err   error
		code  protocol.ErrorCode
		text  string
	}{
		"answer":      {nil, fmt.Errorf("calling: %w", &jsonrpc.Error{Code: -32000, Message: "no"}), protocol.CodeMCPProtocolError, "error -32000: no"},
		"no reason":   {nil, &jsonrpc.Error{Code: 5}, protocol.CodeMCPProtocolError, "error 5: no reason was given"},
		"no method":   {nil, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "m"}, protocol.CodeMCPCapabilityMissing, "error -32601: m"},
		"in a status": {nil, fmt.Errorf("%w: %w: Bad Request", &jsonrpc.Error{Code: -32600, Message: "bad"}, rejected), protocol.CodeMCPProtocolError, "bad"},
		"rejected":    {nil, fmt.Errorf("%w: Bad Gateway", rejected), protocol.CodeMCPTransportError, "Bad Gateway"},
		"dial":        {nil, fmt.Errorf("%w: %w", rejected, dial), protocol.CodeMCPServerUnavailable, "cannot be reached: the HTTP request failed: dial"},
		"no sense":    {nil, errors.New("unmarshalling"), protocol.CodeMCPProtocolError, "does not fit: unmarshalling"},
		"lost answer": {nil, errors.New("request terminated without response"), protocol.CodeMCPTransportError, "lost: request terminated"},
		"own":         {nil, protocol.Errorf(protocol.CodeToolDenied, "no"), protocol.CodeToolDenied, "no"},
		"cancelled":   {ended, context.Canceled, "", "mine"},
	} {
		l := &Link{cfg: Config{ID: "srv"}.withDefaults(), secrets: (&Config{URL: "http://x/?key=s3cret"}).secrets(nil), env: Env{Now: time.Now}}
		outer := tc.outer
		if outer == nil {
			outer = t.Context()
		}
		err := l.explain(outer, outer, newConn(l, HTTP), tc.err)
		var own *protocol.Error
		switch errors.As(err, &own); {
		case tc.code == "" && err != mine:
			t.Errorf("%s: %v", name, err)
		case tc.code != "" && (own == nil || own.Code != tc.code || !strings.Contains(own.Message, tc.text) || strings.Contains(own.Message, "s3cret")):
			t.Errorf("%s: %v", name, err)
		}
	}
}

func mustURL(t testing.TB, raw string) *url.URL {
	t.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func TestSecrets(t *testing.T) {
	cfg := Config{
		URL: "https://user:pass-word@x/y?token=a%20b%2Fc", Env: map[string]string{"A": "abcd", "B": "abcdef", "C": "no", "PEM": "line-one\nline-two", "Q": `qu"ote`},
		Headers: map[string]string{"Authorization": "Bearer xyzzy"},
	}
	s := cfg.secrets(nil)
	for text, want := range map[string]string{
		"abcdef, abcde":              redact.Text + ", " + redact.Text + "e",
		"no":                         "no",
		"Bearer xyzzy":               redact.Text,
		"token xyzzy!":               "token " + redact.Text + "!",
		"pass-word":                  redact.Text,
		"a b/c":                      redact.Text,
		"get ?token=a+b%2Fc":         "get ?token=" + redact.Text,
		"line-two":                   redact.Text,
		`{"x":"qu\"ote"}`:            `{"x":"` + redact.Text + `"}`,
		"nothing to see: user, Basi": "nothing to see: user, Basi",
	} {
		if got := s.Text(text); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
}
