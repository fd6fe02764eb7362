package mcp

import (
	"testing"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/protocol"
)

// A server that asked for its roots when there was no agent is told to ask again when one
// calls it, and once more when there is another.
func TestRootsOfALaterAgent(t *testing.T) {
	env, log := newEnv(t)
	opts := DefaultOptions()
	cfg := npmServer(t, "server-everything") // asks once, by itself, 350 ms after it was connected
	opts.Servers = map[string]any{"all": cfg}
	plugin, err := New("mcp", opts, env)
	if err != nil {
		t.Fatal(err)
	}
	s := &stage{t: t, plugin: plugin, log: log, dir: env.Workspace, Pair: hosttest.New(t, host.Options{Plugins: []host.Plugin{plugin}})}
	r := &real{stage: s, asked: map[protocol.Type]int{}, wire: s.dir + "/" + wireFile}
	r.sent(`"roots"`, "file://"+s.dir) // it got the workspace
	for range 2 {
		s.Handshake(protocol.CapMCP, protocol.CapTools)
		r.result("echo", `{"message":"x"}`)
		r.sent("notifications/roots/list_changed")
		r.reply(protocol.TypeMCPRootListResp, r.question(protocol.TypeMCPRootListReq), `{"roots":[{"uri":"file:///later"}]}`)
	}
	r.sent("file:///later")
}
