package link

import (
	"bufio"
	"bytes"
	"context"
	stdjson "encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// parrot returns the answer to a request. A call of a tool is answered with the text in its arguments,
// in which ID stands for the id of the request, and LONG for a text that is too long for a message.
func parrot(m posted) string {
	var params struct {
		Arguments echoArgs `json:"arguments"`
	}
	switch _ = json.Unmarshal(m.Params, &params); m.Method {
	case "initialize":
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-03-26","capabilities":{}}}`,
			m.ID)
	case "tools/call":
		text := strings.ReplaceAll(params.Arguments.Text, "ID", string(m.ID))
		return strings.ReplaceAll(text, "LONG", strings.Repeat("x", maxLine))
	}
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{}}`, m.ID)
}

// playParrot runs parrot on stdin and stdout.
func playParrot() int {
	out := bufio.NewWriter(os.Stdout)
	_, _ = out.WriteString("\ufeff")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var m posted
		if json.Unmarshal(lines.Bytes(), &m) == nil && m.ID != nil {
			fmt.Fprintln(out, parrot(m))
			_ = out.Flush()
		}
	}
	return 0
}

// begin is the start of an answer.
const begin = `{"jsonrpc":"2.0","id":ID,`

// oddAnswers are answers to a request, each with words of the error that it causes; "" = it is
// accepted.
var oddAnswers = map[string][2]string{
	"id as text":           {`{"jsonrpc":"2.0","id":"ID",` + done + `}`, ""},
	"id with a fraction":   {`{"jsonrpc":"2.0","id":ID.0,` + done + `}`, ""},
	"id with an exponent":  {`{` + done + `,"id":ID0e-1,"jsonrpc":"2.0"}`, ""},
	"error null":           {begin + done + `,"error":null}`, ""},
	"method null":          {begin + done + `,"method":null}`, ""},
	"names twice":          {`{"jsonrpc":"1.0","jsonrpc":"2.0","id":ID,` + done + `}`, ""},
	"BOM":                  {"\ufeff" + begin + done + `}`, ""},
	"batch":                {`[` + begin + done + `},1,` + listChanged + `]`, ""},
	"batch of one":         {`[` + begin + done + `}]`, ""},
	"a batch in a batch":   {`[[{"jsonrpc":"2.0","id":1,"result":{}}],` + begin + done + `}]`, ""},
	"half characters":      {begin + `"x":"` + "\xff" + `\ud800",` + done + `}`, ""},
	"long, id first":       {begin + `"result":{"content":[{"type":"text","text":"LONG"}]}}`, "longer than 16 MiB"},
	"long, id last":        {`{"result":{"content":"LONG","id":999},"jsonrpc":"2.0","id":"ID"}`, "longer than 16 MiB"},
	"long batch":           {`[` + begin + `"result":"LONG"}]`, "longer than 16 MiB"},
	"error a text":         {begin + `"error":"boom"}`, `its error is "boom"; it should be an object`},
	"error a list":         {begin + `"error":[1]}`, "its error is [1]; it should be an object"},
	"error true":           {begin + `"error":true,"result":{}}`, "its error is true"},
	"error without code":   {begin + `"error":{"message":"boom"}}`, "boom"},
	"error code a word":    {begin + `"error":{"code":"E1","message":"boom"}}`, "E1"},
	"error code as text":   {begin + `"error":{"code":"-32051","message":"boom"}}`, "error -32051: boom"},
	"error message a list": {begin + `"error":{"code":-32052.0,"message":["a"],"data":1}}`, `error -32052: ["a"]`},
	"nothing":              {`{"jsonrpc":"2.0","id":ID}`, "neither a method nor a result nor an error"},
	"another version":      {`{"jsonrpc":"1.0","id":ID,` + done + `}`, `its "jsonrpc" is "1.0"; it should be "2.0"`},
	"version a number":     {`{"jsonrpc":2.0,"id":ID,` + done + `}`, `its "jsonrpc" is 2.0`},
	"cut off":              {begin + `"result":{"content":[{"type":"text","text":"x`, "unexpected"},
	"two on one line":      {begin + done + `}` + begin + done + `}`, "after top-level value"},
	"many levels":          {begin + `"result":` + strings.Repeat("[", 1e3) + strings.Repeat("]", 1e3) + `}`, "levels"},
	"result a text":        {begin + `"result":"x"}`, "it should be an object"},
	"content a text":       {begin + `"result":{"content":"x"}}`, "content"},
	"text a number":        {begin + `"result":{"content":[{"type":"text","text":7}]}}`, "text is of the type number"},
	"isError a text":       {begin + `"result":{"content":[],"isError":"no"}}`, "it should be true or false"},
	"a part of no type":    {begin + `"result":{"content":[{}]}}`, "content"},
}

// ofGo matches words of Go's decoders, which do not help the reader of an error.
var ofGo = regexp.MustCompile(`json: |jsontext|unmarshal|Go |mcp\.|\bmap\[|struct|interface`)

// TestOddAnswers: an odd answer is accepted if its meaning is clear. Otherwise its request fails at
// once, and the error says why. This holds for each way in which an answer is sent.
func TestOddAnswers(t *testing.T) {
	over := func(write func(w http.ResponseWriter, text string)) Config {
		return Config{Transport: HTTP, URL: newPlain(t, func(w http.ResponseWriter, _ *http.Request, m posted) bool {
			if m.ID == nil || m.Method == "" {
				return false
			}
			write(w, parrot(m))
			return true
		})}
	}
	for name, cfg := range map[string]Config{
		"stdio": server(t, "parrot"),
		"JSON": over(func(w http.ResponseWriter, text string) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, text)
		}),
		"events": over(func(w http.ResponseWriter, text string) { streams(w, text) }),
	} {
		t.Run(name, func(t *testing.T) {
			cfg.CallTimeout = hosttest.Patience
			s := newStage(t, cfg, nil)
			for odd, want := range oddAnswers {
				if name == "JSON" && odd == "a batch in a batch" {
					continue // its inner batch may be taken for the answer, which may lack the id in JSON
				}
				got, err := s.tool(t.Context(), "x", echoArgs{want[0]})
				if want[1] == "" {
					assert.That(t, got == "done" && err == nil, "%s: %q, %v", odd, got, err)
					continue
				}
				own := wantError(t, err, protocol.CodeMCPProtocolError, want[1])
				assert.That(t, !ofGo.MatchString(own.Message), "%s: %s", odd, own.Message)
			}
			assert.Equal(t, s.State().Restarts, 0)
			assert.That(t, !ofGo.MatchString(s.log.String()), "%s", s.log)
		})
	}
}

// TestAnswersWithoutID: an answer may lack the id if it can only belong to one request.
func TestAnswersWithoutID(t *testing.T) {
	answers := map[string]string{
		"null":    `{"jsonrpc":"2.0","id":null,"error":{"code":-32053,"message":"parse error"}}`,
		"none":    `{"jsonrpc":"2.0","error":{"code":-32053,"message":"parse error"}}`,
		"a word":  `{"jsonrpc":"2.0","id":"server-error","error":{"code":-32053,"message":"parse error"}}`,
		"another": `{"jsonrpc":"2.0","id":77,"error":{"code":-32053,"message":"parse error"}}`,
	}
	url := newPlain(t, func(w http.ResponseWriter, _ *http.Request, m posted) bool {
		if m.Method == "tools/call" {
			var tool struct {
				Name string `json:"name"`
			}
			must.OK(t, json.Unmarshal(m.Params, &tool))
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, answers[tool.Name])
			return true
		}
		return false
	})
	s := newStage(t, Config{URL: url, Transport: HTTP, CallTimeout: hosttest.Patience}, nil)
	for name := range answers {
		want := "error -32053: parse error"
		if name == "another" {
			want = "the answer to another request"
		}
		_, err := s.tool(t.Context(), name, nil)
		wantError(t, err, protocol.CodeMCPProtocolError, want)
	}
}

// TestOddPing: any answer to a ping shows that the server works.
func TestOddPing(t *testing.T) {
	for _, answer := range []string{
		`"result":"pong"`, `"result":[]`, `"result":null`, `"error":{"code":-32601,"message":"no"}`, `"error":1`,
	} {
		url := newPlain(t, func(w http.ResponseWriter, _ *http.Request, m posted) bool {
			if m.Method == "ping" {
				m.answer(w, answer)
			}
			return m.Method == "ping"
		})
		s := newStage(t, Config{URL: url, Transport: HTTP}, nil)
		s.ping()
		assert.Equal(t, s.State().Restarts, 0, "restarts for %s", answer)
	}
}

// TestOddIntroductions: the host connects to a server whose answer to initialize is odd, and uses its
// valid members.
func TestOddIntroductions(t *testing.T) {
	for members, want := range map[string]string{
		`"serverInfo":{"name":"x","version":1.0}`:                              `"name":"x","version":"1.0"`,
		`"serverInfo":{"name":7}`:                                              `"name":"7","version":""`,
		`"serverInfo":{"name":"x","title":3,"description":[],"websiteUrl":{}}`: `{"name":"x","version":""}`,
		`"capabilities":{}`:                                                    `{"name":"","version":""}`,
		`"serverInfo":null`:                                                    `{"name":"","version":""}`,
		`"serverInfo":"mine"`:                                                  `"name":"mine"`,
		`"serverInfo":[]`:                                                      `{"name":"","version":""}`,
		`"serverInfo":{"icons":[{"src":"u","sizes":"any"},{"sizes":"any"},7]}`: `"icons":[{"src":"u","sizes":["any"]}]`,
		`"serverInfo":{"icons":[{"src":"v","sizes":["1x1",2],"theme":3}]}`:     `"icons":[{"src":"v","sizes":["1x1"]}]`,
		`"serverInfo":{"icons":"u"}`:                                           `{"name":"","version":""}`,
		`"instructions":["a"]`:                                                 `"Instructions":""`,
		`"instructions":null`:                                                  `"Instructions":""`,
		`"instructions":7`:                                                     `"Instructions":""`,
		`"instructions":"do"`:                                                  `"Instructions":"do"`,
		`"_meta":[]`:                                                           `"Capabilities":{}`,
		`"capabilities":null`:                                                  `"Capabilities":{}`,
		`"capabilities":["tools"]`:                                             `"Capabilities":{}`,
		`"capabilities":{"tools":true,"completions":1}`:                        `{"completions":{},"tools":{}}`,
		`"capabilities":{"tools":null,"prompts":false,"resources":{}}`:         `"Capabilities":{"resources":{}}`,
		`"capabilities":{"tools":[],"experimental":[],"extensions":true}`:      `"Capabilities":{"tools":{}}`,
		`"capabilities":{"tools":{"listChanged":"yes"}}`:                       `"Capabilities":{"tools":{}}`,
		`"capabilities":{"resources":{"subscribe":true,"listChanged":1}}`:      `"resources":{"subscribe":true}`,
		`"capabilities":{},"capabilities":{"tools":{},"tools":{}}`:             `"Capabilities":{"tools":{}}`,
		`"protocolVersion":20250618`:                                           unversioned,
		`"protocolVersion":null`:                                               unversioned,
		`"protocolVersion":["2025-06-18"]`:                                     unversioned,
		`"protocolVersion":""`:                                                 unversioned,
		`"x":1`:                                                                unversioned,
	} {
		if want != unversioned {
			members += `,"protocolVersion":"2025-06-18"`
		}
		url := newPlain(t, func(w http.ResponseWriter, _ *http.Request, m posted) bool {
			if m.Method == "initialize" {
				m.answer(w, `"result":{`+members+`}`)
			}
			return m.Method == "initialize"
		})
		s := newStage(t, Config{URL: url, Transport: HTTP}, nil)
		_, err := s.tool(t.Context(), "x", nil)
		st := s.State()
		got := string(must.Get(stdjson.Marshal(map[string]any{ // leaves out fields that are empty in the SDK
			"Server": st.Server, "Instructions": st.Instructions, "Version": st.ProtocolVersion,
			"Capabilities": st.Capabilities,
		}))(t))
		assert.That(t, err == nil && strings.Contains(got, want), "%s: %v, %s", members, err, got)
	}
}

// TestNoIntroduction: an answer to initialize that cannot be used becomes an error that says why.
func TestNoIntroduction(t *testing.T) {
	for result, want := range map[string]string{
		`"result":"hello"`: `its result is "hello"; it should be an object`,
		`"result":null`:    "its result is null",
		`"result":{"protocolVersion":"1999-01-01"}`: `"1999-01-01"`,
		`"error":"no"`: `its error is "no"`,
	} {
		url := newPlain(t, func(w http.ResponseWriter, _ *http.Request, m posted) bool {
			if m.Method == "initialize" {
				m.answer(w, result)
			}
			return m.Method == "initialize"
		})
		s := newStage(t, Config{URL: url, Transport: HTTP}, nil)
		_, err := s.Session(t.Context())
		own := wantError(t, err, protocol.CodeMCPServerUnavailable, want)
		assert.That(t, !ofGo.MatchString(own.Message), "%s", own.Message)
	}
}

// TestIDsOfTheServer: the answer to a request of the server has the id unchanged, whatever number or
// text it is, and a cancellation finds the request. An error names no types of Go.
func TestIDsOfTheServer(t *testing.T) {
	ids := []string{
		`1765432109876543210`, `1.0`, `-0`, `1e2`, `5`, `"5"`, `"a\u0062\ud800"`, `""`, `"` + markPrefix + `1"`, `0.1`,
		`123456789012345678901234567890`,
	}
	ask := func(id, message string) string {
		const text = `{"jsonrpc":"2.0","id":%s,"method":"elicitation/create","params":{"message":%s}}`
		return fmt.Sprintf(text, id, message)
	}
	cancel := func(params string) string {
		return `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{` + params + `}}`
	}
	var mu sync.Mutex
	got := make(map[string]string)
	url := newPlain(t, func(w http.ResponseWriter, _ *http.Request, m posted) bool {
		switch {
		case m.Method == "" && m.ID != nil:
			mu.Lock()
			got[string(m.ID)] = m.text
			mu.Unlock()
		case m.Method == "tools/call":
			var events []string
			for _, id := range ids {
				events = append(events, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"ping"}`, id))
			}
			streams(w, append(events, ask("9007199254740993", `"?"`), ask(`"bad"`, "3"), cancel(""),
				cancel(`"requestId":9007199254740992`), cancel(`"requestId":9007199254740993`),
				fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,%s}`, m.ID, done))...)
			return true
		}
		return false
	})
	s := newStage(t, Config{URL: url, Transport: HTTP}, func(e *Env) {
		asked := func(ctx context.Context, _ *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		e.Client = func() *mcp.ClientOptions { return &mcp.ClientOptions{ElicitationHandler: asked} }
	})
	s.must("x", nil)
	hosttest.Eventually(t, "all answers", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(got) == len(ids)+2
	})
	for _, id := range append(ids, `9007199254740993`, `"bad"`) {
		assert.Contains(t, got[id], `"id":`+id+`,`)
	}
	bad := got[`"bad"`]
	assert.Contains(t, bad, " message is of the type number; it should be a string")
	assert.That(t, !ofGo.MatchString(bad), "%s", bad)
}

// TestEnvelope: the id in a text that is too long to keep is found, however the text is cut into
// pieces.
func TestEnvelope(t *testing.T) {
	for _, tc := range [][2]string{
		{`{"jsonrpc":"2.0","id":7,"result":{"id":8,"x":["a",{"jsonrpc":"2.0"}]}}`, "7"},
		{`{"result" : {"text":"\"id\":9,\\"},` + "\n" + ` "id" : "7" , "jsonrpc":"2.0"}`, "7"},
		{`[{"jsonrpc":"2.0","id":1,"error":{}}, {"jsonrpc":"2.0","id":2,"method":"x"}]`, "1"},
		{`[{"id":3,"result":1},{"jsonrpc":"2.0","result":[],"id":4.0},{"jsonrpc":"2.0","result":[],"id":5}`, "4 5"},
		{`{"jsonrpc":"2.0","id":7,"result":"cut`, "7"},
		{`{"jsonrpc":"2.0","id":7,"method":"cut`, ""},
		{`{"jsonrpc":"2.0","id":7,"meth`, ""},
		{`{"jsonrpc":"2.0","id":7}`, "7"},
		{`{"level":"error","id":7,"error":"log"}`, ""},
		{`{"jsonrpc":"2.0","id":{"id":7},"result":1}`, ""},
		{`{"jsonrpc":"2.0","id":[7],"result":1}`, ""},
		{`{"jsonrpc":"2.0","id":null,"result":1}`, ""},
		{`]}"{[:,`, ""},
		{``, ""},
	} {
		text, want := tc[0], tc[1]
		for _, size := range []int{1, 3, 1000} {
			var e envelope
			for p := []byte(text); len(p) > 0; p = p[min(size, len(p)):] {
				e.take(p[:min(size, len(p))])
			}
			var got []string
			for _, m := range e.failed(jsonrpc.ID{}, errLong) {
				got = append(got, fmt.Sprint(m.Message.(*jsonrpc.Response).ID.Raw()))
			}
			assert.Equal(t, strings.Join(got, " "), want, "%s in pieces of %d", text, size)
		}
	}
}

// FuzzRead: whatever a server sends, the SDK can decode the messages that it is given, with the same
// meaning.
func FuzzRead(f *testing.F) {
	for _, odd := range oddAnswers {
		f.Add([]byte(strings.ReplaceAll(odd[0], "ID", "7")))
	}
	for _, s := range []string{
		`{"jsonrpc":"2.0","id":1e400,"method":"ping"}`, `{"jsonrpc":"2.0","id":"\ud800","method":"a\ud800"}`,
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1.0}}`,
		`{"jsonrpc":"2.0","method":"x","params":[1,"` + "\xff" + `"]}`, `{"jsonrpc":"2.0","id":"","method":""}`,
		`{"jsonrpc":"2.0","id":3,"result":"\ud800","error":{"code":1,"data":"` + "\xff" + `"}}`, "[]", "[[]]",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c := newConn(&Link{cfg: Config{}.withDefaults()}, HTTP)
		c.link.env.Now = time.Now
		c.hello.Store(int64(7))
		for _, m := range c.read(text, jsonrpc.ID{}) {
			line := must.Get(m.encoded())(t)
			again, err := jsonrpc.DecodeMessage(line)
			must.OK(t, err)
			switch m := m.Message.(type) {
			case *jsonrpc.Request:
				other, ok := again.(*jsonrpc.Request)
				method := strings.ToValidUTF8(m.Method, "\ufffd")
				assert.That(t, ok && other.ID == m.ID && other.Method == method, "%s", line)
				out := must.Get(encode(&jsonrpc.Response{ID: m.ID, Result: []byte("1")}))(t)
				assert.That(t, !m.IsCall() || jsontext.Value(out).IsValid(lenient()), "%s", out)
			case *jsonrpc.Response:
				other, ok := again.(*jsonrpc.Response)
				assert.That(t, ok && other.ID == m.ID && (other.Error == nil) == (m.Error == nil), "%s", line)
				assert.That(t, m.Error != nil || bytes.Equal(compact(other.Result), compact(m.Result)), "%s", line)
			}
		}
	})
}

func compact(v []byte) []byte {
	out := jsontext.Value(bytes.Clone(v))
	_ = out.Compact(lenient(), jsontext.PreserveRawStrings(true))
	return out
}
