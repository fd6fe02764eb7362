package fleet_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/agent"
	front "a2e/host/dialect/fleet"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// TestFirstTaskIsBlocked: a sender whose first task cannot be done here first gets an announce, once. A sender
// without the token, or of a line that is not a valid task, gets none.
func TestFirstTaskIsBlocked(t *testing.T) {
	for name, c := range map[string]struct {
		line  string
		state string // state of the server "up"
		want  int    // number of announces
	}{
		"no such server":   {needing("ID", `{"required_mcp":["gone"]}`, ""), "connected", 1},
		"no such tool":     {needing("ID", `{"required_capabilities":["fly"]}`, ""), "connected", 1},
		"too late":         {dispatch("ID", "", `,"deadline":"2001-01-01T00:00:00Z"`), "connected", 1},
		"a mute server":    {needing("ID", `{"required_mcp":["up"]}`, ""), "connecting", 1},
		"without a token":  {dispatch("ID", "", `,"auth_token":"wrong"`), "connected", 0},
		"another version":  {`{"type":"TASK_DISPATCH","task":{"task_id":"ID"},"brief":"x"}`, "connected", 0},
		"does not decode":  {`{"type":"TASK_DISPATCH","task":{"task_id":"ID","token_budget":"x"}}`, "connected", 0},
		"a wrong priority": {dispatch("ID", "asap", ""), "connected", 0},
	} {
		t.Run(name, func(t *testing.T) {
			opts := front.Options{}
			if name == "without a token" {
				opts.Tokens = tokens("secret")
			}
			l := openLab(t, &pool{}, opts, shortly, shortly, long)
			if c.state == "connecting" {
				l.kit.set("connecting", c.state)
			}
			for i := range 2 {
				l.SendRaw(c.line + "\n")
				m := resultNo(t, l.Pair, "ID", i+1)
				if m.Get("/status") != "blocked" || len(announces(l.Pair)) != c.want {
					t.Fatalf("%d announces, want %d, with %s", len(announces(l.Pair)), c.want, m.Line)
				}
			}
			if first := l.Messages()[0]; c.want > 0 && (first.Type != fleet.TypeAnnounce ||
				first.Get("/session/session_fresh") != "true" || first.Get("/session/active_tasks") != "0") {
				t.Errorf("first came %s", first.Line)
			}
		})
	}
}

// TestAnnounceAtStartup: with AtStartup a worker announces itself even if nobody sends anything.
func TestAnnounceAtStartup(t *testing.T) {
	for range 20 { // the end of the input races with the first look at the tools, so try often
		p := open(t, &pool{}, front.Options{AtStartup: true})
		p.CloseInput()
		must.OK(t, p.WaitEnd())
		must.Equal(t, len(announces(p)), 1, "… announces")
	}
}

// TestConnecting: a task waits for the first connection to a server that it needs, but not for a reconnection. Other
// tasks do not wait with it.
func TestConnecting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := openLab(t, &pool{}, front.Options{}, shortly, long, long)
		l.kit.set("connecting", "connecting")
		l.SendRaw(needing("waits", `{"required_mcp":["up"]}`, "") + "\n" + needing("stops", `{"required_mcp":["up"]}`,
			"") + "\n" + needing("late", `{"required_mcp":["up"]}`, soon()) + "\n" +
			needing("lacks", `{"required_mcp":["up","gone"]}`, "") + "\n" + dispatch("free", "low", "") + "\n" +
			cancel("stops") + "\n")
		for _, c := range []struct{ id, status, why string }{
			{"free", "done", ""},
			{"lacks", "blocked", "not registered"},
			{"stops", "blocked", "cancelled"},
			{"late", "error", "deadline"},
		} {
			m := result(l.Pair, c.id)
			assert.That(t, m.Get("/status") == c.status && strings.Contains(m.Get("/blocked_reason")+m.Get("/error"),
				c.why), "%s: %s", c.id, m.Line)
		}
		assert.Equal(t, len(results(l.Pair, "waits")), 0, "it was answered while the server connects")
		l.kit.set("ready", "connected")
		check(t, result(l.Pair, "waits"), "/status", "done")
		l.kit.set("connecting", "reconnecting")
		check(t, do(l.Pair, needing("again", `{"required_mcp":["up"]}`, ""), "again"), "/status", "blocked",
			"/blocked_reason~", "not healthy (timeout)")
	})
}

// TestNeverConnects: the wait for a server is bounded, and a task after that does not wait at all, because the sender
// was told how the server is.
func TestNeverConnects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := openLab(t, &pool{}, front.Options{}, shortly, 2*time.Second, long)
		l.kit.set("connecting", "connecting")
		begun := time.Now()
		for i, waits := range []time.Duration{2 * time.Second, 0} {
			l.SendRaw(needing("t", `{"required_mcp":["up"]}`, "") + "\n")
			check(t, resultNo(t, l.Pair, "t", i+1), "/status", "blocked", "/blocked_reason~",
				`"up" is not healthy (timeout)`)
			took := time.Since(begun)
			assert.That(t, took >= waits && took <= waits+time.Second, "it took %s", took)
			begun = time.Now()
		}
		check(t, announces(l.Pair)[0], "/mcp_health", `{"down":"error","up":"timeout"}`)
		l.kit.set("ready", "connected")
		check(t, do(l.Pair, needing("u", `{"required_mcp":["up"]}`, ""), "u"), "/status", "done")
		check(t, announces(l.Pair)[1], "/mcp_health", `{"down":"error","up":"ok"}`)
	})
}

// TestExecutors: the announce describes the workers that do the tasks, and the requirements of a task are checked
// against the same.
func TestExecutors(t *testing.T) {
	const none, own = `[]`, `["lift"]`
	for name, c := range map[string]struct {
		workers                   []agent.WorkerInfo
		tools, health, can, lacks string
	}{
		"the host": {
			[]agent.WorkerInfo{{HostTools: true}},
			own, `{"down":"error","up":"ok"}`,
			`{"required_mcp":["up"],"required_capabilities":["lift","crane"]}`, `{"required_capabilities":["file"]}`,
		},
		"what a config lists": {
			[]agent.WorkerInfo{{Tools: []string{"terminal", "edit_file", "up", "docs"}}},
			`["docs","edit_file","patch","terminal"]`, `{"up":"ok"}`,
			`{"required_mcp":["up","docs"],"required_capabilities":["terminal","patch"]}`,
			`{"required_capabilities":["lift"]}`,
		},
		"a child": {
			[]agent.WorkerInfo{{
				Tools: []string{"read_file", "write_file"}, MCPServers: []string{"far", "ill"},
				MCPHealth: map[string]fleet.Health{"far": "ok", "ill": "timeout"},
			}},
			`["file","read_file","write_file"]`, `{"far":"ok","ill":"timeout"}`,
			`{"required_mcp":["far"],"required_capabilities":["file"]}`, `{"required_mcp":["ill"]}`,
		},
		"a child that has not said": {
			[]agent.WorkerInfo{{Unknown: true}},
			none, `{}`,
			`{"required_mcp":["far"],"required_capabilities":["fly"]}`, `null`,
		},
		"a model with some of them": {
			[]agent.WorkerInfo{{
				HostTools: true, Only: []string{"l*", "up__*"},
				Tools: []string{"skilled"},
			}},
			`["lift","skilled"]`, `{"up":"ok"}`,
			`{"required_mcp":["up"],"required_capabilities":["lift","skilled"]}`,
			`{"required_capabilities":["tools"]}`,
		},
		"two of which one can do it": {
			[]agent.WorkerInfo{{Tools: []string{"grep"}}, {HostTools: true}},
			`["grep","lift","search"]`, `{"down":"error","up":"ok"}`, `{"required_capabilities":["search","lift"]}`,
			`{"required_mcp":["down"]}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := open(t, &pool{workers: c.workers}, front.Options{AtStartup: true})
			a := announced(p)
			check(t, a, "/capabilities/tools", c.tools, "/mcp_health", c.health)
			check(t, do(p, needing("can", c.can, ""), "can"), "/status", "done")
			if c.lacks != "null" {
				check(t, do(p, needing("lacks", c.lacks, ""), "lacks"), "/status", "blocked")
			}
		})
	}
}

// TestAnnounceAgain: a worker announces itself at the start even without a task, and again only when the health of a
// server or its own abilities have changed.
func TestAnnounceAgain(t *testing.T) {
	workers := &pool{}
	l := openLab(t, workers, front.Options{AtStartup: true}, shortly, long, shortly)
	first := announced(l.Pair)
	if first.Get("/mcp_health") != `{"down":"error","up":"ok"}` || first.Get("/session/session_fresh") != "true" ||
		first.Get("/session/active_tasks") != "0" {
		t.Errorf("at the start: %s", first.Line)
	}
	for _, id := range []string{"a", "b"} {
		do(l.Pair, dispatch(id, "low", ""), id)
	}
	if all := announces(l.Pair); len(all) != 1 {
		t.Errorf("%d announces, though nothing has changed", len(all))
	}
	l.kit.set("connecting", "reconnecting")
	hosttest.Eventually(t, "a second announce", func() bool { return len(announces(l.Pair)) == 2 })
	workers.mu.Lock()
	workers.extensions = []string{"steer"}
	workers.mu.Unlock()
	hosttest.Eventually(t, "a third announce", func() bool { return len(announces(l.Pair)) == 3 })
	all := announces(l.Pair)
	check(t, all[1], "/mcp_health", `{"down":"error","up":"timeout"}`, "/session/session_fresh", "false",
		"/session/context_id", first.Get("/session/context_id"))
	check(t, all[2], "/capabilities/extensions", `["cancel","steer"]`)
}

// TestPendingInOrder: tasks that wait for the same MCP server start in the order in which they came, once the server
// is connected.
func TestPendingInOrder(t *testing.T) {
	workers := &pool{}
	l := openLab(t, workers, front.Options{}, shortly, long, long)
	l.kit.set("connecting", "connecting")
	var lines strings.Builder
	var want []string
	for i := range 30 {
		want = append(want, fmt.Sprint("t", i))
		lines.WriteString(needing(want[i], `{"required_mcp":["up"]}`, "") + "\n")
	}
	l.SendRaw(lines.String() + needing("last", `{"required_mcp":["down"]}`, "") + "\n")
	result(l.Pair, "last") // by now the host has looked at all tasks
	l.kit.set("ready", "connected")
	for _, id := range want {
		result(l.Pair, id)
	}
	assert.Equal(t, workers.order(), strings.Join(want, " "), "the order")
}

// tardy is a plugin that knows what it serves only some time after its start.
type tardy struct {
	*kit
	wait  time.Duration
	knows atomic.Bool
}

func (p *tardy) Info() host.PluginInfo {
	info := host.PluginInfo{Name: "tardy"}
	if p.knows.Load() {
		info.Capability = protocol.CapMemory
	}
	return info
}

func (p *tardy) Start(context.Context, *host.Services) error {
	time.AfterFunc(p.wait, func() { p.knows.Store(true) })
	return nil
}

func (p *tardy) Ready(ctx context.Context) {
	for !p.knows.Load() && ctx.Err() == nil {
		time.Sleep(100 * time.Millisecond)
	}
}

// TestTardyPlugins: the first task waits, for a limited time, for plugins that are not ready. What a slower plugin
// serves is available for later tasks.
func TestTardyPlugins(t *testing.T) {
	for _, c := range []struct {
		wait          time.Duration
		first, second string
	}{{7 * time.Second, "done", "done"}, {30 * time.Second, "blocked", "done"}} {
		synctest.Test(t, func(t *testing.T) {
			late := &tardy{kit: newKit(), wait: c.wait}
			p := hosttest.New(t, host.Options{
				Plugins:  []host.Plugin{&pool{}, late},
				Dialects: []host.Dialect{front.New(front.Options{Log: zerolog.Nop()})},
			})
			for _, task := range [][2]string{{"first", c.first}, {"second", c.second}} {
				check(t, do(p, needing(task[0], `{"required_capabilities":["memory"]}`, ""), task[0]), "/status",
					task[1])
				time.Sleep(30 * time.Second)
				check(t, announces(p)[0], "/capabilities/tools~", "lift")
			}
		})
	}
}
