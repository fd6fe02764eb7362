package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// request is one line to send, in two parts: between them stands an id of
// idLen digits that is fresh for every message.
type request struct {
	before, after string
	text          string // what an echo has to bring back; "" for a ping
	marker        string // every good answer holds it, and no bad one does
}

// idLen is the length of the changing part of an id, in hexadecimal digits.
const idLen = 8

// dialect is how one kind of host is spoken to.
type dialect struct {
	name   string
	hello  string                       // the line that opens a session
	ready  func(answer []byte) error    // nil if it is the right answer to hello
	after  string                       // lines sent after hello is answered; they get no answer
	ping   request                      // the cheapest exchange
	echo   func(text string) request    // a call of the echo tool
	verify func(sent, got []byte) error // one answer in full, but for the text
}

// a2eDialect speaks the wire of this project. The stamp, the type and an id of
// 32 digits are what a usual agent sends; the optional fields are left out.
func a2eDialect() *dialect {
	const id = `,"id":"000000000000000000000000`
	return &dialect{
		name: "a2e",
		hello: `{"a2e":"1.0","type":"handshake/req"` + id + `00000000","agent_id":"bench","agent_caps":["skill","tools","toolkits","env",` +
			`"proc","memory","learning","chains","mcp","multi_agent","planning","test"],"auth_token":""}` + "\n",
		ready: a2eReady,
		ping:  request{before: `{"a2e":"1.0","type":"ping"` + id, after: `"}`, marker: `"pong"`},
		echo: func(text string) request {
			return request{before: `{"a2e":"1.0","type":"tool/call/req"` + id,
				after: `","tool_name":"echo","arguments":{"text":"` + text + `"}}`, text: text, marker: `"tool/call/resp"`}
		},
		verify: a2eVerify,
	}
}

func a2eReady(line []byte) error {
	var m struct {
		Type   string `json:"type"`
		OK     bool   `json:"ok"`
		Reason string `json:"reason"`
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return fmt.Errorf("the handshake was answered by no JSON object: %w", err)
	}
	if m.Type != "handshake/resp" || !m.OK {
		return fmt.Errorf("the handshake was answered by %q, reason %q", m.Type, m.Reason)
	}
	return nil
}

func a2eVerify(sent, got []byte) error {
	var q, a struct {
		Type  string `json:"type"`
		ID    string `json:"id"`
		ReqID string `json:"req_id"`
		Data  struct {
			Success bool `json:"success"`
		} `json:"data"`
	}
	if err := errors.Join(json.Unmarshal(sent, &q), json.Unmarshal(got, &a)); err != nil {
		return err
	}
	switch {
	case a.ReqID != q.ID:
		return fmt.Errorf("req_id is %q, want %q", a.ReqID, q.ID)
	case q.Type == "ping" && a.Type != "pong", q.Type == "tool/call/req" && (a.Type != "tool/call/resp" || !a.Data.Success):
		return fmt.Errorf("%s was answered by %s", q.Type, clip(got))
	}
	return nil
}

// mcpDialect speaks to an MCP server that has a tool `echo{text}`.
func mcpDialect() *dialect {
	const head = `{"jsonrpc":"2.0","id":"`
	return &dialect{
		name: "mcp",
		hello: head + `hello","method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},` +
			`"clientInfo":{"name":"bench","version":"1.0.0"}}}` + "\n",
		ready: func(line []byte) error { return mcpResult(line, "hello") },
		after: `{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n",
		ping:  request{before: head, after: `","method":"ping"}`, marker: `"result"`},
		echo: func(text string) request {
			return request{before: head, after: `","method":"tools/call","params":{"name":"echo","arguments":{"text":"` + text + `"}}}`,
				text: text, marker: `"result"`}
		},
		verify: func(sent, got []byte) error {
			var q struct {
				ID string `json:"id"`
			}
			if err := json.Unmarshal(sent, &q); err != nil {
				return err
			}
			return mcpResult(got, q.ID)
		},
	}
}

// mcpResult accepts a result with this id that is not marked as an error.
func mcpResult(line []byte, id string) error {
	var m struct {
		ID     jsontext.Value `json:"id"`
		Result *struct {
			IsError bool `json:"isError"`
		} `json:"result"`
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return fmt.Errorf("the answer is no JSON-RPC response: %w", err)
	}
	if m.Result == nil || m.Result.IsError || string(m.ID) != `"`+id+`"` {
		return fmt.Errorf("request %q was answered by %s", id, clip(line))
	}
	return nil
}

// lineDialect speaks to a program that gives each line back. Its ping is the
// ping of a2e, so that the two compare; its echo is a line of the text alone.
func lineDialect() *dialect {
	hello := a2eDialect().hello
	same := func(sent, got []byte) error {
		if !bytes.Equal(bytes.TrimSuffix(sent, []byte("\n")), got) {
			return fmt.Errorf("the line did not come back as it was sent but as %s", clip(got))
		}
		return nil
	}
	ping := a2eDialect().ping
	ping.marker = ping.after
	return &dialect{
		name:  "line",
		hello: hello,
		ready: func(line []byte) error { return same([]byte(hello), line) },
		ping:  ping,
		echo: func(text string) request {
			rest := text[min(len(text), idLen):]
			return request{after: rest, text: rest, marker: rest[:min(len(rest), 16)]}
		},
		verify: same,
	}
}

// findDialect settles what a target speaks. To find out it sends the a2e
// handshake, which a line echo gives back, and then tries MCP.
func findDialect(ctx context.Context, t *target, name string) (*dialect, error) {
	a2e, mcp, line := a2eDialect(), mcpDialect(), lineDialect()
	for _, d := range []*dialect{a2e, mcp, line} {
		if d.name == name {
			return d, nil
		}
	}
	if name != "auto" {
		return nil, fmt.Errorf("%q is no dialect; there are auto, a2e, mcp and line", name)
	}
	answer, err := hail(ctx, t, a2e.hello, 10*time.Second)
	switch {
	case err != nil:
	case line.ready(answer) == nil:
		return line, nil
	case strings.Contains(string(answer), `handshake/resp`):
		return a2e, a2e.ready(answer)
	}
	second, err2 := hail(ctx, t, mcp.hello, 10*time.Second)
	if err2 == nil && mcp.ready(second) == nil {
		return mcp, nil
	}
	return nil, fmt.Errorf("it speaks neither a2e nor MCP nor echoes lines: the a2e handshake gave %s, initialize gave %s",
		outcome(answer, err), outcome(second, err2))
}

// hail starts the target, sends one line and gives back the first one it says.
func hail(ctx context.Context, t *target, hello string, limit time.Duration) ([]byte, error) {
	c, err := t.start(ctx)
	if err != nil {
		return nil, err
	}
	defer c.kill()
	defer c.within(limit)()
	return c.exchange([]byte(hello))
}

func outcome(line []byte, err error) string {
	if err != nil {
		return err.Error()
	}
	return clip(line)
}

// clip shortens a line for an error message.
func clip(line []byte) string {
	const most = 200
	if len(line) > most {
		return string(line[:most]) + "…"
	}
	return string(line)
}
