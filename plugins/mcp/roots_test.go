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
	plugin.firstWait = hosttest.Patience
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

// An agent that answers late is asked again, also by a server that did not wait for it.
func TestRootsThatComeLate(t *testing.T) {
	s := one(t)
	id := s.Go(protocol.TypeToolCallReq, callFields("srv__roots", `{}`, ""))
	asked := s.asks(protocol.TypeMCPRootListReq, 1)
	s.Answer(id) // with the workspace
	s.reply(protocol.TypeMCPRootListResp, asked, `{"roots":[{"uri":"file:///late"}]}`)
	again := s.asks(protocol.TypeMCPRootListReq, 2) // the server was told that they have changed
	s.reply(protocol.TypeMCPRootListResp, again, `{"roots":[{"uri":"file:///now"}]}`)
	if got := s.tool("srv__kept", `{}`); got != "file:///now" {
		t.Errorf("the server's roots: %q", got)
	}
}

// The roots are the session's: a call that ends does not end the question.
func TestRootsOutliveACall(t *testing.T) {
	s := one(t)
	id := s.Go(protocol.TypeToolCallReq, callFields("srv__aside", `{}`, ""))
	asked := s.asks(protocol.TypeMCPRootListReq, 1)
	s.tool("srv__release", `{}`)
	s.Answer(id)
	s.reply(protocol.TypeMCPRootListResp, asked, `{"roots":[{"uri":"file:///a"}]}`)
	if got := s.tool("srv__kept", `{}`); got != "file:///a" {
		t.Errorf("roots: %q", got)
	}
}
