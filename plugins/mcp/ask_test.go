//lint:file-ignore SA1019 MCP 2026-07-28 begins to retire sampling; servers of all earlier versions use it.

package mcp

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/protocol"
)

// What the config does not let a server ask is refused without the agent.
func TestAskingCanBeSwitchedOff(t *testing.T) {
	s := newStage(t, map[string]any{"srv": child(t, "full", "sampling", false, "elicitation", false, "roots", false)}, nil)
	for _, tool := range []string{"srv__model", "srv__user"} {
		if got := s.tool(tool, `{}`); !strings.HasPrefix(got, "error: ") {
			t.Errorf("%s gave %q", tool, got)
		}
	}
	if got := s.tool("srv__roots", `{}`); got != "" && !strings.HasPrefix(got, "error: ") {
		t.Errorf("roots: %q", got)
	}
	for _, m := range s.Messages() {
		if m.IsRequest() {
			t.Errorf("the agent was asked: %s", m.Line)
		}
	}
}

// While the agent thinks the call is not taken for one without an answer.
func TestAskingExtendsTheTimeout(t *testing.T) {
	s := newStage(t, map[string]any{"srv": child(t, "full", "timeout", 2), "other": child(t, "full", "timeout", 2)}, nil)
	s.toolNames()
	id := s.Go(protocol.TypeToolCallReq, callFields("srv__model", `{}`, ""))
	asked := s.asks(protocol.TypeMCPSampleReq, 1)
	s.refused(protocol.TypeToolCallReq, callFields("other__wait", `{}`, ""), protocol.CodeTimeout) // it began later
	s.reply(protocol.TypeMCPSampleResp, asked, `{"content":{"type":"text","text":"late"},"model":"m"}`)
	if got := s.Answer(id).Get("/data/data/content/0/text"); got != "m: late" {
		t.Errorf("the server got %q", got)
	}
}

// Servers start at once, and are told what an MCP client in front can be asked when it has
// said that: never more than their config allows, and nothing where it says nothing in time.
func TestServersAreToldWhatTheClientCan(t *testing.T) {
	can := jsontext.Value(`{"sampling":{},"elicitation":{"form":{}}}`)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		says   jsontext.Value
		wait   time.Duration
		option string // of the server
		want   string // what it is told; "" = the host ends before
	}{
		"what it says":          {can, time.Hour, "elicitation", `{"sampling":{},"elicitation":{"form":{}}}`},
		"what the config lets":  {can, time.Hour, "sampling", `{"elicitation":{"form":{}}}`},
		"it says nothing":       {nil, time.Millisecond, "", `{}`},
		"the host ends earlier": {nil, time.Hour, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			env, log := newEnv(t)
			says := make(chan struct{})
			env.MCPClient = func(ctx context.Context) jsontext.Value {
				select {
				case <-says:
					return c.says
				case <-ctx.Done():
					return nil
				}
			}
			cfg := map[string]any{
				"command": "sh", "args": []any{"-c", `: > began; tee ` + wireFile + ` | "$0"`, exe}, "read": []any{exe},
				"env": map[string]any{roleVar: "full", "GORACE": "atexit_sleep_ms=0"},
			}
			if c.option != "" {
				cfg[c.option] = c.option != "sampling"
			}
			opts := DefaultOptions()
			opts.Servers = map[string]any{"srv": cfg}
			plugin, err := New("mcp", opts, env)
			if err != nil {
				t.Fatal(err)
			}
			plugin.firstWait, plugin.clientWait = hosttest.Patience, c.wait
			s := &stage{t: t, plugin: plugin, log: log, dir: env.Workspace, Pair: hosttest.New(t, host.Options{Plugins: []host.Plugin{plugin}})}
			hosttest.Eventually(t, "the server starts", func() bool { _, err := os.Stat(filepath.Join(s.dir, "began")); return err == nil })
			if c.says != nil {
				if wire, _ := os.ReadFile(filepath.Join(s.dir, wireFile)); len(wire) > 0 {
					t.Errorf("before the client said anything the server was sent %s", wire)
				}
				close(says)
			}
			if c.want == "" {
				return
			}
			s.Handshake(protocol.CapMCP, protocol.CapTools)
			s.tool("srv__echo", `{"text":"x"}`)
			wire, _ := os.ReadFile(filepath.Join(s.dir, wireFile))
			var hello struct {
				Params struct{ Capabilities jsontext.Value }
			}
			first, _, _ := strings.Cut(string(wire), "\n")
			if err := json.Unmarshal([]byte(first), &hello, json.MatchCaseInsensitiveNames(true)); err != nil || string(hello.Params.Capabilities) != c.want {
				t.Errorf("the server was told %s, want %s", first, c.want)
			}
		})
	}
}
