package plugins

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"a2e/host"
	"a2e/host/config"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
	"a2e/testdata/greet"
	"a2e/testdata/notes"
)

// added returns a host with plugins that the build does not know, made from a config and from the lines of register for
// their types.
func added(t *testing.T, text string, kinds ...pluginType) *hosttest.Pair {
	t.Helper()
	file := filepath.Join(t.TempDir(), "a2e.yaml")
	must.OK(t, os.WriteFile(file, []byte(text), 0o600))
	src := config.Source{Path: file}
	for _, kind := range kinds {
		src.Available = append(src.Available, kind.name)
	}
	cfg, _, err := config.Load(src)
	must.OK(t, err)
	var made []host.Plugin
	for i, kind := range kinds {
		plugin := must.Get(kind.make(cfg.Plugins[i], &build{Config: cfg}, host.Env{}))(t)
		t.Cleanup(func() { assert.OK(t, plugin.Close(context.Background())) })
		made = append(made, plugin)
	}
	return hosttest.New(t, host.Options{Plugins: made})
}

func greetLine() pluginType {
	return register("greet", greet.Options{Greeting: "Hello"}, greet.New)
}

// TestNewTypeIsOneLine: a plugin that the build does not know needs only its line of register to have its options read,
// and its tools served, checked and searched.
func TestNewTypeIsOneLine(t *testing.T) {
	p := added(t, "plugins: {greet: {greeting: Good evening}}", greetLine())
	p.Handshake(protocol.CapTools)
	got := p.Call(protocol.TypeToolCallReq, `{"tool_name":"greet","arguments":{"who":"Ada"}}`).Get("/data/data/text")
	assert.Equal(t, got, "Good evening, Ada", "it")
	p.Refused(protocol.TypeToolCallReq, `{"tool_name":"greet","arguments":{"whom":"Ada"}}`,
		protocol.CodeSchemaViolation) // whom is an unknown argument
	list := p.Call(protocol.TypeToolListReq, `{"query":"greet somebody"}`)
	assert.Equal(t, list.Get("/tools/0/name"), "greet", "the search finds")
	assert.Equal(t, list.Get("/tools/0/input_parameters/0/description"), "Name of the person to greet.",
		"the tag says of the argument")
}

// TestNewCapabilityIsOneLine: a plugin with messages of its own needs only its line of register, too. The host handles
// its requests in the order that its routes claim.
func TestNewCapabilityIsOneLine(t *testing.T) {
	p := added(t, "plugins: {greet: {}, notes: {}}", greetLine(), register("notes", notes.Options{}, notes.New))
	p.Handshake(protocol.CapTools)
	p.Refused("note/add/req", `{}`, protocol.CodeSchemaViolation)
	for range 100 {
		p.Go("note/add/req", `{"text":"milk"}`)
	}
	p.Call("note/list/req", `{}`).Has(t, "/notes/99", "milk", "/notes/100", "")
}
