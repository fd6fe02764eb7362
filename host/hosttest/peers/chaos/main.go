//go:build linux

// Command chaos is started by the simulator's hosts: `chaos mcp WAY` is an MCP server and
// `chaos plugin` a program that speaks A2E; both misbehave. `chaos plain PROGRAM …` runs a
// program that cannot make namespaces.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"a2e/host/hosttest/plain"
)

type request struct {
	ID       json.RawMessage `json:"id"`
	Type     string          `json:"type"`
	Method   string          `json:"method"`
	ToolName string          `json:"tool_name"`
	Params   struct {
		ProtocolVersion string `json:"protocolVersion"`
	} `json:"params"`
	Arguments struct {
		Text string `json:"text"`
	} `json:"arguments"`
}

// told is the secret from the config, which the program puts into its answers.
var told = os.Getenv("LABEL_TOKEN") + " " + os.Args[len(os.Args)-1]

func main() {
	if os.Args[1] == "plain" {
		fmt.Fprintln(os.Stderr, plain.Exec(os.Args[2], os.Args[2:], os.Environ()))
		os.Exit(1)
	}
	fmt.Fprintln(os.Stderr, "words on stderr", told)
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<24)
	for calls := 0; in.Scan(); {
		var req request
		if json.Unmarshal(in.Bytes(), &req) != nil {
			continue
		}
		if os.Args[1] == "plugin" {
			plugin(&req)
			continue
		}
		if req.Method == "tools/call" {
			calls++
		}
		server(os.Args[2], calls, &req)
	}
}

func say(format string, args ...any) { fmt.Printf(format+"\n", args...) }

// server answers a message of MCP, or misbehaves in its way: it hangs, ends, floods, writes junk,
// answers twice or late, changes its tools, or does not answer.
func server(way string, calls int, req *request) {
	quoted, _ := json.Marshal(told)
	result := func(format string, args ...any) {
		say(`{"jsonrpc":"2.0","id":%s,"result":%s}`, req.ID, fmt.Sprintf(format, args...))
	}
	switch {
	case len(req.ID) == 0 || way == "mute":
	case req.Method == "initialize":
		result(`{"protocolVersion":%q,"capabilities":{"tools":{"listChanged":true},"logging":{}},"serverInfo":{"name":"chaos","version":"1"},"instructions":%s}`, req.Params.ProtocolVersion, quoted)
	case req.Method == "tools/list":
		extra := ""
		if calls/10%2 == 1 && way == "change" {
			extra = `,{"name":"extra","inputSchema":{"type":"object"}}`
		}
		result(`{"tools":[{"name":"do","description":%s,"inputSchema":{"type":"object"}}%s]}`, quoted, extra)
	case req.Method != "tools/call":
		result("{}")
	case misbehaves(way, calls):
	default:
		if result(`{"content":[{"type":"text","text":%s}]}`, quoted); way == "twice" {
			result(`{"content":[]}`)
		}
	}
}

// misbehaves reports whether a call gets no answer.
func misbehaves(way string, calls int) bool {
	switch {
	case way == "crash" && calls%5 == 0:
		panic(told)
	case way == "hang":
		return calls%3 == 0
	case way == "flood":
		say(strings.Repeat(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","data":"`+strings.Repeat("x", 500)+"\"}}\n", 50))
	case way == "junk":
		say("not a message { %s\n"+`{"jsonrpc":"2.0","id":"nobody","result":{}}`, told)
	case way == "late":
		time.Sleep(time.Duration(calls%7) * 10 * time.Millisecond)
	case way == "change" && calls%10 == 0:
		say(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
	case way == "ask":
		say(`{"jsonrpc":"2.0","id":"q%d","method":"roots/list"}`, calls)
		say(`{"jsonrpc":"2.0","id":"s%d","method":"sampling/createMessage","params":{"messages":[{"role":"user","content":{"type":"text","text":"?"}}],"maxTokens":9}}`, calls)
	}
	return false
}

// plugin answers a message of A2E. If the text of a call names a misbehaviour, plugin misbehaves in
// this way.
func plugin(req *request) {
	quoted, _ := json.Marshal(told)
	answer := func(kind, fields string) { say(`{"a2e":"1.0","type":%q,"req_id":%s,%s}`, kind, req.ID, fields) }
	switch req.Type {
	case "handshake/req":
		answer("handshake/resp", `"ok":true,"session_id":"1","accepted_caps":[{"capability":"tools","enabled":true,"metadata":{}}],"max_parallel":4,"reason":""`)
	case "ping":
		answer("pong", `"uptime_seconds":1`)
	case "tool/list/req":
		answer("tool/list/resp", `"tools":[{"name":"say","description":`+string(quoted)+`,"streaming":true}]`)
	case "tool/call/req":
		switch text, _ := json.Marshal(req.Arguments.Text); req.Arguments.Text {
		case "die":
			panic(told)
		case "hang":
			// limited, as a call of an MCP client would wait ten minutes, longer than the simulator does
			time.Sleep(20 * time.Second)
		case "mute":
		case "huge":
			say(strings.Repeat("x", 1<<20))
		case "error":
			answer("error", `"code":"tool_error","message":`+string(quoted)+`,"detail":{"told":`+string(quoted)+`}`)
		case "half":
			answer("tool/call/resp", `"created_at":1`)
		case "twice":
			answer("tool/call/resp", `"data":{"success":true,"tool_name":"say","data":{}},"created_at":1`)
			fallthrough
		default:
			answer("invoke/event", `"kind":"progress","data":{"pct":1,"message":`+string(quoted)+`},"seq":0`)
			answer("tool/call/resp", `"data":{"success":true,"tool_name":"say","data":{"text":`+string(text)+`,"told":`+string(quoted)+`},"summary":"","duration_ms":0,"events":[]},"created_at":1`)
		}
	}
}
