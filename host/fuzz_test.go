package host_test

import (
	"bytes"
	"crypto/sha256"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/guard/auth"
	"a2e/host/hosttest"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// FuzzHandshake sends any text in place of a handshake, and then a ping. The host answers in complete valid lines and
// continues, and it opens a session only for a handshake with the token.
func FuzzHandshake(f *testing.F) {
	const token = "open sesame"
	for _, s := range []string{
		`{"type":"handshake/req","id":"1","agent_caps":["tools"],"auth_token":"open sesame"}`,
		`{"type":"handshake/req","id":"1","agent_caps":["tools"],"auth_token":"open sesam\u0065"}`,
		`{"type":"handshake/req","id":"1","agent_caps":["env","streaming","x",""],"auth_token":"open sesame"}`,
		`{"type":"handshake/req","id":"1","agent_caps":["tools"],"auth_token":"open sesame","auth_token":"x"}`,
		`{"type":"handshake/req","id":"1","AUTH_TOKEN":"open sesame"}`,
		`{"type":"handshake/req","a2e":"2.0","auth_token":"open sesame"}`,
		`{"type":"handshake/req","auth_token":null}` + "\n" + `{"type":"tool/call/req","arguments":{}}`,
		`{"type":"handshake/req","id":7,"agent_id":{}}`, `{"type":"shutdown","timeout":0}`, "\ufeff\r\n\n{",
		`{"type":"cancel","req_id":"1"}`,
	} {
		f.Add([]byte(s))
	}
	sum := sha256.Sum256([]byte(token))
	f.Fuzz(func(t *testing.T, text []byte) {
		if lines := bytes.SplitAfterN(text, []byte("\n"),
			4); len(lines) > 3 { // three failed handshakes delay the next answer by a second
			text = bytes.Join(lines[:3], nil)
		}
		h := must.Get(host.New(host.Options{Plugins: []host.Plugin{newLab()}, Tokens: auth.Tokens{{Sum: sum}}}))(t)
		var out bytes.Buffer
		in := string(text) + "\n" + hosttest.Request(protocol.TypePing, "the last", "")
		must.OK(t, h.Serve(strings.NewReader(in), &out))
		opened, ponged := false, false
		for line := range bytes.Lines(out.Bytes()) {
			hosttest.CheckLine(t, line)
			opened = opened || bytes.Contains(line, []byte(`"ok":true`))
			ponged = ponged || bytes.Contains(line, []byte(`"req_id":"the last"`))
		}
		stopped, brought := model(text, token)
		if opened && !brought {
			t.Fatalf("a session without the token: %q\n%s", text, out.Bytes())
		}
		if !ponged && !stopped {
			t.Fatalf("the ping was not answered: %q\n%s", text, out.Bytes())
		}
	})
}

// model reports whether a text contains a shutdown, and whether it contains a handshake with the token. It uses
// json/v2, not the parser under test.
func model(text []byte, token string) (stopped, brought bool) {
	text = bytes.TrimPrefix(text, []byte("\ufeff"))
	for line := range bytes.Lines(text) {
		var m map[string]jsontext.Value
		if json.Unmarshal(line, &m) != nil {
			continue
		}
		var kind, have string
		_ = json.Unmarshal(m["type"], &kind)
		_ = json.Unmarshal(m["auth_token"], &have)
		stopped = stopped || kind == "shutdown"
		brought = brought || kind == "handshake/req" && have == token
	}
	return stopped, brought
}
