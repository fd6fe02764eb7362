package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// TestWallAuthMemory: only a client with alice's token finds what alice has stored, whatever name another client
// uses, by each protocol that reaches the memory.
func TestWallAuthMemory(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	config := "auth_token: everybody\nauth:\n- {token: \"${ALICE}\", agent_id: alice}\n- {token: of-bob, agent_id: " +
		"bob}\nstate_dir: state\n"
	must.OK(t, os.WriteFile(filepath.Join(dir, "host.yaml"), []byte(config), 0o600))
	play := func(t *testing.T, lines ...string) string {
		t.Helper()
		cmd := command(t, dir, "./a2e", "serve", "--config", "host.yaml")
		cmd.Env = append(cmd.Env, "ALICE=of-alice")
		cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
		out := must.Get(cmd.Output())(t)
		return string(out)
	}
	greet := func(fields string) string {
		return `{"type":"handshake/req","id":"h","agent_caps":["memory"],` + fields + `}`
	}
	const opened, secret = `{"type":"memory/init/req","id":"i"}`, "the code is 4711"
	id := func(out string) string {
		_, after, _ := strings.Cut(out, `"memory_id":"`)
		before, _, _ := strings.Cut(after, `"`)
		return before
	}
	alice := `"agent_id":"alice","auth_token":"of-alice"`
	memory := id(play(t, greet(alice), opened))
	look := fmt.Sprintf(`{"type":"memory/retrieve/req","id":"r","memory_id":%q,"tier":"episodic"}`, memory)
	play(t, greet(alice), opened, fmt.Sprintf(`{"type":"memory/store/req","id":"s","memory_id":%q,"entries":[{"key":{"n":"x"},"content":%q,"tier":"episodic"}]}`, memory, secret))
	out := play(t, greet(`"auth_token":"of-alice"`), opened, look)
	must.That(t, strings.Contains(out, secret), "alice does not find it herself:\n%s", out)
	resource := func(name, meta string) []string {
		return []string{
			fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":%q,"version":"1"},"_meta":{%s}}}`, name, meta),
			`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
			`{"jsonrpc":"2.0","id":2,"method":"resources/list"}`,
			`{"jsonrpc":"2.0","id":3,"method":"resources/read","params":{"uri":"memory://episodic/%7B%22n%22%3A%22x%22%7D"}}`,
		}
	}
	out = play(t, resource("x", `"a2e/auth_token":"of-alice"`)...)
	must.That(t, strings.Contains(out, secret), "alice does not find it by MCP:\n%s", out)
	for name, lines := range map[string][]string{
		"no token":                 {greet(`"agent_id":"alice"`), opened, look},
		"a wrong token":            {greet(`"agent_id":"alice","auth_token":"of-alicf"`), opened, look},
		"the text of the variable": {greet(`"agent_id":"alice","auth_token":"${ALICE}"`), opened, look},
		"everybody's token":        {greet(`"agent_id":"alice","auth_token":"everybody"`), opened, look},
		"bob's token":              {greet(`"agent_id":"alice","auth_token":"of-bob"`), opened, look},
		"bob":                      {greet(`"auth_token":"of-bob"`), opened, look},
		"another name":             {greet(`"agent_id":"Alice","auth_token":"everybody"`), opened, look},
		"a name with a space":      {greet(`"agent_id":"alice ","auth_token":"everybody"`), opened, look},
		"a name with a NUL":        {greet(`"agent_id":"alice\u0000","auth_token":"everybody"`), opened, look},
		"bob, then alice by name": {
			greet(`"auth_token":"of-bob"`), opened,
			greet(`"agent_id":"alice","auth_token":"of-bob"`), look,
		},
		"alice's scope": {
			greet(`"auth_token":"of-bob"`),
			`{"type":"memory/init/req","id":"i","scope":{"agent_id":"alice"}}`, look,
		},
		"MCP, no token":          resource("alice", ""),
		"MCP, everybody's token": resource("alice", `"a2e/auth_token":"everybody"`),
		"MCP, bob's token":       resource("alice", `"a2e/auth_token":"of-bob"`),
	} {
		t.Run(name, func(t *testing.T) {
			if out := play(t, lines...); strings.Contains(out,
				"is 4711") { // not 4711 alone, which is in one of a hundred ids
				t.Errorf("it was found:\n%s", out)
			}
		})
	}
}

// childGround is the state of several hosts, in which alice has a secret. Its methods are the steps of an attacker
// who uses the id of one of alice's child agents as a name.
type childGround struct {
	t           *testing.T
	dir, memory string
	web         *web
}

const (
	childSecret = "the code is 4711"
	childTokens = "auth_token: everybody\nauth: [{token: of-alice, agent_id: alice}, {token: of-bob, agent_id: " +
		"bob}]\nstate_dir: state\n"
)

func (g *childGround) look(id string) []string {
	return []string{
		fmt.Sprintf(`{"type":"memory/retrieve/req","id":"r%s","memory_id":%q,"tier":"episodic"}`, id, g.memory),
		fmt.Sprintf(`{"type":"memory/forget/req","id":"f%s","memory_id":%q,"keys":[{"n":"x"}]}`, id, g.memory),
	}
}

func (g *childGround) hello(name, token string) []string {
	hello := fmt.Sprintf(`{"type":"handshake/req","id":"h","agent_id":%q,"agent_caps":["memory"],"auth_token":%q}`,
		name, token)
	return append([]string{hello}, g.look("")...)
}

// play sends lines to a host with a config and returns its output.
func (g *childGround) play(config string, lines ...string) string {
	g.t.Helper()
	cmd := command(g.t, g.dir, "./a2e", "serve", "--config", config)
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	return string(must.Get(cmd.Output())(g.t))
}

func (g *childGround) dispatch(id, agent string) string {
	brief := strings.Join(append([]string{`{"type":"handshake/req","id":"h","agent_id":"x","agent_caps":["memory"]}`},
		g.look("")...), "\n") + "\n"
	return g.play("host.yaml", fmt.Sprintf(`{"type":"TASK_DISPATCH","protocol_version":"2.0",`+
		`"task":{"task_id":"t"},"brief":%q,"agent":{"agent_id":%q,"tool_scope":"shared"%s}}`, brief, id, agent))
}

// attempts returns the ways to reach the secret, by name. Each takes the id of a child agent, and returns all
// answers.
func (g *childGround) attempts() map[string]func(id string) string {
	resource := []string{
		`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
		`{"jsonrpc":"2.0","id":3,"method":"resources/read",` +
			`"params":{"uri":"memory://episodic/%7B%22n%22%3A%22x%22%7D"}}`,
	}
	return map[string]func(id string) string{
		"a2e, everybody's token": func(id string) string {
			return g.play("host.yaml", g.hello(id,
				"everybody")...)
		},
		"a2e, bob's token":           func(id string) string { return g.play("host.yaml", g.hello(id, "of-bob")...) },
		"a2e, alice's token":         func(id string) string { return g.play("host.yaml", g.hello(id, "of-alice")...) },
		"a2e, a host without tokens": func(id string) string { return g.play("open.yaml", g.hello(id, "")...) },
		"a2e, after another handshake": func(id string) string {
			return g.play("host.yaml", append(g.hello("x", "everybody"), g.hello(id, "everybody")...)...)
		},
		"a2e over HTTP": func(id string) string {
			g.web.session()
			for _, line := range append(g.hello(id, "everybody"), `{"type":"ping","id":"p"}`) {
				g.web.send(line)
			}
			var said strings.Builder
			left := 4
			g.web.read(-1, func(e event) bool { fmt.Fprintln(&said, e.data); left--; return left > 0 })
			return said.String()
		},
		"mcp": func(id string) string {
			return g.play("host.yaml", append([]string{fmt.Sprintf(mcpHello, id, "everybody")}, resource...)...)
		},
		"mcp over HTTP": func(id string) string {
			_, text := g.web.mcp(fmt.Sprintf(mcpHello, id, "everybody"))
			return text
		},
		"rpc": func(id string) string {
			return g.play("host.yaml", fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"rpc.handshake",`+
				`"params":{"client_name":%q,"auth_token":"everybody"}}`, id))
		},
		"fleet, everybody's token": func(id string) string {
			return g.dispatch(id,
				`},"auth_token":"everybody","x":{"y":1`)
		},
		"fleet, bob's token": func(id string) string {
			return g.dispatch(id,
				`},"auth_token":"of-bob","x":{"y":1`)
		},
		"fleet, a wrong proof": func(id string) string {
			return g.dispatch(id, `,"agent_token":"00112233445566778899aabbccddeeff"},"auth_token":"everybody",`+
				`"x":{"y":1`)
		},
	}
}

// TestWallAuthChild: the id of a child agent opens its parent's memory to nobody, by no protocol, while the child
// lives and after it has ended. The child itself reads the memory, with the proof that its parent's host gave it.
func TestWallAuthChild(t *testing.T) {
	t.Parallel()
	dir, program := workDir(t), hosttest.Program(t, "a2e")
	worker := fmt.Sprintf("plugins: {multi_agent: {workers: [{name: w, command: [sh, -c, 'cat | \"$0\"', %q], "+
		"read: [%q], share_state: true, contract: false}]}}\n", program, filepath.Dir(program))
	must.OK(t, os.WriteFile(filepath.Join(dir, "host.yaml"), []byte(childTokens+worker), 0o600))
	must.OK(t, os.WriteFile(filepath.Join(dir, "open.yaml"), []byte("state_dir: state\n"), 0o600))
	alice := start(t, dir, "serve", "--config", "host.yaml")
	alice.send(`{"type":"handshake/req","id":"h","agent_caps":["memory","multi_agent"],"auth_token":"of-alice"}`,
		`{"type":"memory/init/req","id":"i"}`)
	g := &childGround{t: t, dir: dir, web: serveWebIn(t, dir, childTokens)}
	g.memory = fmt.Sprint(alice.answer("i")["memory_id"])
	alice.send(fmt.Sprintf(`{"type":"memory/store/req","id":"s","memory_id":%q,"entries":[{"key":{"n":"x"},`+
		`"content":%q,"tier":"episodic"}]}`, g.memory, childSecret))
	alice.answer("s")
	spawn := func(id, scope string) string {
		alice.send(fmt.Sprintf(`{"type":"SUBAGENT_SPAWN_REQ","id":%q,"agent":{"name":%q,"model":"default",`+
			`"memory_scope":%q,"tool_scope":"shared"}}`, id, id, scope))
		child, _ := alice.answer(id)["subagent_id"].(string)
		return child
	}
	sharing, copying := spawn("sharing", "shared"), spawn("copying", "snapshot")
	for _, child := range []string{sharing, copying} {
		brief := strings.Join([]string{fmt.Sprintf(`{"type":"handshake/req","id":"h","agent_id":%q,`+
			`"agent_caps":["memory"]}`, child), g.look("")[0]}, "\n") + "\n"
		alice.send(fmt.Sprintf(`{"type":"multi_agent/delegate","id":"d%[1]s","subagent_id":%[1]q,`+
			`"task_name":"look","instruction":%[2]q}`, child, brief),
			fmt.Sprintf(`{"type":"multi_agent/await","id":"a%[1]s","subagent_id":%[1]q}`, child))
		must.That(t, strings.Contains(fmt.Sprint(alice.answer("a"+child)), childSecret),
			"the child %s does not see it itself", child)
	}
	try := func(when string) {
		for name, attempt := range g.attempts() {
			for _, child := range []string{sharing, copying} {
				said := attempt(child)
				assert.That(t, !strings.Contains(said, "is 4711") && strings.Contains(said, "child agent"),
					"%s, %s: %s", when, name, said)
			}
		}
		out := g.play("host.yaml", append([]string{`{"type":"handshake/req","id":"h","agent_caps":["memory"],` +
			`"auth_token":"of-alice"}`}, g.look("")[0])...)
		must.That(t, strings.Contains(out, childSecret), "%s: alice finds it no more: %s", when, out)
	}
	try("living")
	alice.send(fmt.Sprintf(`{"type":"multi_agent/terminate","id":"t","subagent_id":%q}`, sharing))
	alice.answer("t")
	must.OK(t, alice.stdin.Close())
	must.Equal(t, alice.exit(), 0)
	try("ended")
}

// TestWallAuthChainsAndPlans: with tokens for agents, only its own agent can resume a chain with a journal, and
// others change a claimed task by force only, which is recorded. The local user sees all.
func TestWallAuthChainsAndPlans(t *testing.T) {
	t.Parallel()
	g := &childGround{t: t, dir: workDir(t)}
	must.OK(t, os.WriteFile(filepath.Join(g.dir, "host.yaml"), []byte(childTokens+"audit: {}\n"), 0o600))
	must.OK(t, os.WriteFile(filepath.Join(g.dir, "open.yaml"), []byte("state_dir: state\n"), 0o600))
	as := func(token, line string) string {
		const hello = `{"type":"handshake/req","id":"h","agent_id":%q,"agent_caps":["chains","planning"],` +
			`"auth_token":%q}`
		agent := map[string]string{"everybody": "carol"}[token]
		return g.play("host.yaml", fmt.Sprintf(hello, agent, token), line)
	}
	const (
		begin = `{"type":"chain/req","id":"c","chain_id":"deploy","journal":true,"streaming":false,` +
			`"nodes":[{"node_id":"n","kind":"tool","name":"read_file","input":{"path":"gone"}}]}`
		resume = `{"type":"chain/req","id":"c","chain_id":"deploy","resume":true,"streaming":false}`
	)
	assert.Contains(t, as("of-alice", begin), `does not exist`)
	for _, token := range []string{"of-bob", "everybody"} {
		assert.Contains(t, as(token, resume), "there is no journal", "%s resumes", token)
		assert.Contains(t, as(token, begin), "another agent's chain", "%s begins anew", token)
	}
	assert.Contains(t, as("of-alice", resume), `does not exist`)
	hello := `{"type":"handshake/req","id":"h","agent_caps":["chains"]}`
	assert.Contains(t, g.play("open.yaml", hello, resume), `does not exist`, "a host without tokens")
	run(t, g.dir, nil, "-c", "host.yaml", "chain", "resume", "deploy", "-q").want(t, 1, "gone")
	o := run(t, g.dir, nil, "-c", "host.yaml", "chain", "list").want(t, 0, "")
	assert.Contains(t, o.stdout, ", of alice")

	value := func(out, key string) string {
		_, after, _ := strings.Cut(out, `"`+key+`":"`)
		text, _, _ := strings.Cut(after, `"`)
		return text
	}
	plan := value(as("of-alice", `{"type":"planning/plan/create","id":"p","name":"release"}`), "plan_id")
	add := func() string {
		return value(as("of-alice", fmt.Sprintf(`{"type":"planning/task/add","id":"p","plan_id":%q,"title":"notes"}`,
			plan)), "task_id")
	}
	update := func(token, task, fields string) string {
		return as(token, fmt.Sprintf(`{"type":"planning/task/update","id":"p","plan_id":%q,"task_id":%q,%s}`, plan,
			task, fields))
	}
	for _, fields := range []string{
		`"status":"done"`, `"action":"release"`, `"action":"delete"`, `"action":"claim"`,
		`"title":"mine"`,
	} {
		task := add()
		assert.Contains(t, update("of-alice", task, `"action":"claim","owner":"worker-1"`), `"success":true`)
		for _, owner := range []string{"", `,"owner":"worker-1"`} {
			for _, token := range []string{"of-bob", "everybody"} {
				assert.Contains(t, update(token, task, fields+owner), `"success":false`, "%s by %s%s", fields, token,
					owner)
			}
		}
		for _, token := range []string{"of-bob", "everybody"} {
			assert.Contains(t, update(token, task, fields+`,"owner":"alice","force":true`), "the name of another agent")
		}
		assert.Contains(t, update("of-bob", task, fields+`,"force":true`), `"success":true`, "%s by force", fields)
		listed := as("of-alice", fmt.Sprintf(`{"type":"planning/task/list","id":"p","task_id":%q}`, task))
		if fields == `"action":"delete"` {
			assert.Contains(t, listed, `"tasks":[]`)
			trail := must.Get(os.ReadFile(filepath.Join(g.dir, "state", "audit.jsonl")))(t)
			assert.Contains(t, string(trail), "delete of the task "+task+", which worker-1 had claimed, by bob")
			continue
		}
		assert.Contains(t, listed, `{"author":"bob","text":"by force: `, "%s", fields)
	}
}

// TestWallAuthHistory: with tokens for agents, no agent reads the sessions of another agent by JSON-RPC.
func TestWallAuthHistory(t *testing.T) {
	t.Parallel()
	g := &childGround{t: t, dir: workDir(t)}
	const worker = "plugins: {multi_agent: {workers: [{name: w, command: [sh, -c, 'cat; echo; echo the code is " +
		"4711'], contract: false}]}}\n"
	must.OK(t, os.WriteFile(filepath.Join(g.dir, "host.yaml"), []byte(childTokens+worker), 0o600))
	must.OK(t, os.WriteFile(filepath.Join(g.dir, "open.yaml"), []byte("state_dir: state\n"+worker), 0o600))
	as := func(config, token, method, params string) string {
		const hello = `{"jsonrpc":"2.0","id":1,"method":"rpc.handshake","params":{"client_name":"c","auth_token":%q}}`
		line := fmt.Sprintf(`{"jsonrpc":"2.0","id":2,"method":%q,"params":{%s}}`, method, params)
		return g.play(config, fmt.Sprintf(hello, token), line)
	}
	_, after, _ := strings.Cut(as("host.yaml", "of-alice", "session.create", `"title":"hers"`), `"session_id":"`)
	id, _, _ := strings.Cut(after, `"`)
	of := fmt.Sprintf(`"session_id":%q`, id)
	as("host.yaml", "of-alice", "session.send", of+`,"text":"say it"`)
	reads := map[string]string{"history.get": `"last":true`, "history.list": "", "session.get": of}
	for method, params := range reads {
		for _, token := range []string{"of-bob", "everybody"} {
			said := as("host.yaml", token, method, params)
			assert.That(t, !strings.Contains(said, "4711") && !strings.Contains(said, "hers"), "%s with %s: %s",
				method, token, said)
		}
		assert.Contains(t, as("host.yaml", "of-alice", method, params), "hers", "%s by alice", method)
		assert.Contains(t, as("open.yaml", "", method, params), "hers", "%s on a host without tokens", method)
	}
	for _, method := range []string{"session.send", "session.queue.list", "history.clear_session"} {
		assert.Contains(t, as("host.yaml", "of-bob", method, of+`,"text":"x"`), `"error"`, "%s by bob", method)
	}
	assert.Contains(t, as("host.yaml", "of-alice", "history.get", `"last":true`), "is 4711")
}
