package config_test

import (
	"strings"
	"testing"

	"a2e/host/config"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// A server gets into each form of a config, with all else as it was, and out of it again.
func TestServersAreEditedInPlace(t *testing.T) {
	t.Parallel()
	entry := config.ServerEntry{Command: []string{"npx", "-y", "@s/x", "true", "${A}"}, Env: []config.Pair{{Name: "K", Value: "a: b # c"}}}
	const block = "new:\n    command: npx\n    args: [-y, \"@s/x\", \"true\", \"${A}\"]\n    env:\n      K: \"a: b # c\"\n"
	const flow = `new: {command: npx, args: [-y, "@s/x", "true", "${A}"], env: {K: "a: b # c"}}`
	for name, c := range map[string]struct{ text, want, left string }{
		"nothing":       {"", "mcpServers:\n  " + block, "mcpServers: {}\n"},
		"a comment":     {"# mine", "# mine\nmcpServers:\n  " + block, "# mine\nmcpServers: {}\n"},
		"other keys":    {"host_id: x # me\n\n", "host_id: x # me\n\nmcpServers:\n  " + block, "host_id: x # me\n\nmcpServers: {}\n"},
		"braces":        {"mcpServers: {} # all\nhost_id: x\n", "mcpServers: # all\n  " + block + "host_id: x\n", "mcpServers: {} # all\nhost_id: x\n"},
		"null":          {"mcpServers:\nhost_id: x\n", "mcpServers:\n  " + block + "host_id: x\n", "mcpServers: {}\nhost_id: x\n"},
		"the last key":  {"mcpServers:\n  a:\n    command: b # c", "mcpServers:\n  a:\n    command: b # c\n  " + block, "mcpServers:\n  a:\n    command: b # c\n"},
		"among others":  {"mcpServers:\n  # of a\n  a: {command: b}\n  # end\n\n# of x\nhost_id: x\n", "mcpServers:\n  # of a\n  a: {command: b}\n  # end\n  " + block + "\n# of x\nhost_id: x\n", ""},
		"deep":          {"plugins:\n  mcp:\n    pin: true\n    servers:\n      a: {command: b}\n  env: false\n", "plugins:\n  mcp:\n    pin: true\n    servers:\n      a: {command: b}\n      " + strings.ReplaceAll(block, "\n    ", "\n        ") + "  env: false\n", ""},
		"a list":        {"plugins:\n- {name: m, type: mcp, metadata: {mcpServers: {a: {command: b}}}}\n", "plugins:\n- {name: m, type: mcp, metadata: {mcpServers: {" + flow + ", a: {command: b}}}}\n", ""},
		"flow":          {`{"mcpServers": {"a": {"command": "b"}}, "host_id": "x"}`, `{"mcpServers": {"new": {"command": "npx", "args": ["-y", "@s/x", "true", "${A}"], "env": {"K": "a: b # c"}}, "a": {"command": "b"}}, "host_id": "x"}`, ""},
		"flow, lines":   {"mcpServers: {\n\t# of a\n\ta: {command: b}, # a\n\t# of c\n\tc: {command: d}\n}\n", "mcpServers: {\n\t# of a\n\t" + flow + ",\n\ta: {command: b}, # a\n\t# of c\n\tc: {command: d}\n}\n", ""},
		"a tilde":       {"mcpServers: ~\n", "mcpServers:\n  " + block, "mcpServers: {}\n"},
		"flow, empty":   {`{mcpServers: {}, host_id: x}`, `{mcpServers: {` + flow + `}, host_id: x}`, ""},
		"Windows lines": {"mcpServers:\r\n  a: {command: b}\r\nhost_id: x\r\n", "mcpServers:\r\n  a: {command: b}\r\n  " + strings.ReplaceAll(block, "\n", "\r\n") + "host_id: x\r\n", ""},
		"wide letters":  {"mcpServers: {ä: {command: 世界}} # 世界\n", "mcpServers: {" + flow + ", ä: {command: 世界}} # 世界\n", ""},
		"text blocks":   {"mcpServers:\n  a:\n    command: |\n      b\n      # no comment\nhost_id: x\n", "mcpServers:\n  a:\n    command: |\n      b\n      # no comment\n  " + block + "host_id: x\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			text, err := config.AddServer("f", []byte(c.text), "new", entry)
			must.OK(t, err)
			assert.Equal(t, string(text), c.want)
			names, err := config.ServerNames("f", text)
			assert.That(t, err == nil && strings.Contains(strings.Join(names, " "), "new"), "%v %v", names, err)
			text, err = config.RemoveServer("f", text, "new")
			must.OK(t, err)
			if c.left == "" {
				c.left = c.text
			}
			assert.Equal(t, string(text), c.left)
		})
	}
}

// What cannot be edited safely is left alone, and the error shows what to write.
func TestServersThatAreNotEdited(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"{host_id: x}\n": "f is written in a way that this command cannot change safely; edit mcpServers in it yourself, and put this there:\nnew:\n  command: b",
		"mcpServers: [{server_id: a, command: b}]":  "cannot change safely",
		"a: &s {a: {command: b}}\nmcpServers: *s\n": "cannot change safely",
		"plugins: {mcp: false}\n":                   "f:1: the plugin mcp is switched off here; switch it on first",
		"mcpServers: {":                             "not valid YAML",
		"[]":                                        "should be a mapping",
		"a: 1\n---\nb: 2\n":                         "more than one document",
	} {
		_, err := config.AddServer("f", []byte(text), "new", config.ServerEntry{Command: []string{"b"}})
		assert.That(t, err != nil && strings.Contains(err.Error(), want), "%q: %v, want %q", text, err, want)
	}
	_, err := config.RemoveServer("f", []byte("? mcpServers\n: a:\n    command: b\n  c: {command: d}\n"), "a")
	assert.That(t, err != nil && strings.Contains(err.Error(), "cannot change safely"), "%v", err)
	_, err = config.RemoveServer("f", []byte("mcpServers: [{server_id: a, command: b}]"), "a")
	assert.That(t, err != nil && strings.Contains(err.Error(), "f:1: the servers are a list here"), "%v", err)
}

// Whatever a text is, YAML reads that text.
func FuzzScalar(f *testing.F) {
	for _, text := range []string{"", "a", "~", "true", "1.2", "0x1", "- a", "a: b", "\uffff\ufffe", "#", "ä\x00\u0085\u2028", "\"\\'", "${A}", "2020-01-01", "<<", "=", "é", "*a", "..", "\ufeff", "a\tb\n"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if strings.ToValidUTF8(text, "") != text || strings.ContainsAny(text, "\x00$") {
			return
		}
		for _, form := range []string{"host_id: %\n", "{host_id: %}"} {
			o, err := config.ParseOptions("f", []byte(strings.ReplaceAll(form, "%", config.Scalar(text))), nil)
			must.OK(t, err)
			var into struct {
				HostID string `yaml:"host_id"`
			}
			must.OK(t, o.Decode(&into))
			assert.Equal(t, into.HostID, text)
		}
	})
}
