package cli_test

import (
	"a2e/host/hosttest/must"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What alice remembers is hers: whoever has no token of hers does not find it, under whatever
// name, and by none of the protocols that reach the memory.
func TestWallAuthMemory(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	config := "auth_token: everybody\nauth:\n- {token: \"${ALICE}\", agent_id: alice}\n- {token: of-bob, agent_id: bob}\nstate_dir: state\n"
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
		"bob, then alice by name":  {greet(`"auth_token":"of-bob"`), opened, greet(`"agent_id":"alice","auth_token":"of-bob"`), look},
		"alice's scope":            {greet(`"auth_token":"of-bob"`), `{"type":"memory/init/req","id":"i","scope":{"agent_id":"alice"}}`, look},
		"MCP, no token":            resource("alice", ""),
		"MCP, everybody's token":   resource("alice", `"a2e/auth_token":"everybody"`),
		"MCP, bob's token":         resource("alice", `"a2e/auth_token":"of-bob"`),
	} {
		t.Run(name, func(t *testing.T) {
			if out := play(t, lines...); strings.Contains(out, "is 4711") { // four digits alone stand in one of a hundred ids
				t.Errorf("it was found:\n%s", out)
			}
		})
	}
}
