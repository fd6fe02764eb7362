package mcp

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"a2e/host/config"
	"a2e/plugins/mcp/link"
)

// Each shape that MCP clients write is read.
func TestParseServers(t *testing.T) {
	const entry = `{"command":"npx","args":["-y","@x/y"],"env":{"A":"${env:B}","PORT":8080}}`
	for name, text := range map[string]string{
		"mcp.json":              `{"mcpServers":{"x":` + entry + `}}`,
		"VS Code":               "\xef\xbb\xbf" + ` {"inputs":[],"servers":{"x":` + entry + `}}`,
		"settings":              `{"mcp":{"servers":{"x":` + entry + `}}}`,
		"bare":                  `{"x":` + entry + `}`,
		"list of A2E":           `{"servers":[{"server_id":"x","name":"X","transport":"stdio","cmd":["npx","-y","@x/y"],"env":{"A":"${B}","PORT":"8080"},"auto_reconnect":true}]}`,
		"other clients' notes":  `{"mcpServers":{"x":{"command":"npx","args":["-y","@x/y"],"env":{"A":"${B}","PORT":"8080"},"autoApprove":["a"],"alwaysAllow":[],"description":"d"}}}`,
		"command with its args": `{"mcpServers":{"x":{"args":["@x/y"],"command":["npx","-y"],"env":{"A":"${B}","PORT":"8080"}}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			all, err := ParseServers([]byte(text))
			if err != nil {
				t.Fatal(err)
			}
			o := all["x"]
			if len(all) != 1 || o.Command != "npx" || !slices.Equal(o.Args, []string{"-y", "@x/y"}) || o.Env["A"].Reveal() != "${B}" || o.Env["PORT"].Reveal() != "8080" {
				t.Errorf("read: %+v", all)
			}
		})
	}
	all, err := ParseServers([]byte(`{"mcpServers":{"w":{"type":"streamable-http","url":"https://example.org/mcp","headers":{"Authorization":"Bearer hunter2"},"timeout":1.5,"disabled":true,"sampling":false}}}`))
	if err != nil {
		t.Fatal(err)
	}
	w := all["w"]
	if w.Transport != link.HTTP || w.Headers["Authorization"].Reveal() != "Bearer hunter2" || w.Timeout != 1500*time.Millisecond || !w.Disabled || allowed(w.Sampling) || !allowed(w.Roots) {
		t.Errorf("read: %+v", w)
	}
	if shown := fmt.Sprintf("%v %+v %#v", w, w, w); strings.Contains(shown, "hunter2") {
		t.Errorf("a secret is shown: %s", shown)
	}
}

// What does not fit is named by server and field, and no value is shown.
func TestParseServersErrors(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"no JSON":       {`{`, "no JSON object"},
		"no servers":    {`{"theme":"dark"}`, "no servers in it"},
		"not a mapping": {`{"mcpServers":3}`, "mapping of ids"},
		"wrong type":    {`{"mcpServers":{"x":{"command":"hunter2","args":7}}}`, `server "x": args: should be a list of texts; here is a number`},
		"wrong element": {`{"mcpServers":{"x":{"command":"hunter2","args":[[]]}}}`, `server "x": args/0: should be a text`},
		"unknown field": {`{"mcpServers":{"x":{"command":"hunter2","argz":[]}}}`, `server "x": argz: is no option`},
		"no mapping":    {`{"mcpServers":{"x":"hunter2"}}`, `server "x": should be a mapping`},
		"both ways":     {`{"mcpServers":{"x":{"command":"hunter2","url":"http://example.org"}}}`, `server "x": url: it has a command and a url`},
		"no way":        {`{"mcpServers":{"x":{"args":["hunter2"]}}}`, `server "x": command: it has neither`},
		"bad url":       {`{"mcpServers":{"x":{"url":"ftp://hunter2/"}}}`, `server "x": url: its url begins with "ftp:"`},
		"bad id":        {`{"mcpServers":{"my server":{"command":"hunter2"}}}`, `"my-server" would do`},
		"parted id":     {`{"mcpServers":{"a__b":{"command":"hunter2"}}}`, `"a_b" would do`},
		"asked for":     {`{"mcpServers":{"x":{"command":"c","env":{"K":"${input:hunter2}"}}}}`, `server "x": env: has a variable ${input:…}`},
		"milliseconds":  {`{"mcpServers":{"x":{"command":"c","timeout":60000}}}`, `server "x": timeout: should be a number of seconds`},
		"in a list":     {`{"servers":[{"command":"c"}]}`, `server number 1: server_id`},
		"another id":    {`{"mcpServers":{"x":{"server_id":"y","command":"c"}}}`, `server "y": server_id: is "y", but the entry stands under "x"`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseServers([]byte(c.text))
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("error %v, want %q in it", err, c.want)
			}
		})
	}
}

// The config has the servers under either name, as a mapping or a list.
func TestOptions(t *testing.T) {
	decode := func(text string) (Options, error) {
		opts := DefaultOptions()
		parsed, err := config.ParseOptions("a2e.yaml", []byte(text), func(name string) string { return "value of " + name })
		if err == nil {
			err = parsed.Decode(&opts)
		}
		return opts, err
	}
	opts, err := decode("servers:\n  - {server_id: a, transport: stdio, cmd: [python, -m, tools]}\nmcpServers:\n  b: {url: http://example.org, headers: {K: \"${SECRET}\"}}\npin: true\n")
	if err != nil {
		t.Fatal(err)
	}
	all, err := opts.servers()
	if err != nil || len(all) != 2 || all[0].ID != "a" || all[0].Command != "python" || all[1].Headers["K"].Reveal() != "value of SECRET" || !opts.Pin {
		t.Errorf("servers %+v, %v", all, err)
	}
	for _, c := range []struct{ text, want string }{
		{"servers: {a: {command: x}}\nmcpServers: {a: {command: y}}", `"a" is there twice`},
		{"servers: {a: {}}", `server "a"`},
	} {
		opts, err := decode(c.text)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := New("mcp", opts, Env{}); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), `plugin "mcp"`) {
			t.Errorf("%s: %v", c.text, err)
		}
	}
	if _, err := decode("register: sometimes"); err == nil {
		t.Error("register takes any word")
	}
	many := map[string]any{}
	for i := range maxServers + 1 {
		many[fmt.Sprintf("s%d", i)] = map[string]any{"command": "x"}
	}
	if _, err := New("mcp", Options{Servers: many}, Env{}); err == nil || !strings.Contains(err.Error(), "at most") {
		t.Errorf("too many servers: %v", err)
	}
	if len(slices.Collect(maps.Keys(many))) != maxServers+1 {
		t.Error("the options were changed")
	}
}
