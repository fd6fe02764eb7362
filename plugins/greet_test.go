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
)

// TestNewTypeIsOneLine: a plugin that the build does not know needs the line of register to
// have its options read, its tools served, checked and searched.
func TestNewTypeIsOneLine(t *testing.T) {
	kind := register("greet", greet.Options{Greeting: "Hello"}, greet.New)
	file := filepath.Join(t.TempDir(), "a2e.yaml")
	must.OK(t, os.WriteFile(file, []byte("plugins: {greet: {greeting: Good evening}}"), 0o600))
	cfg, _, err := config.Load(config.Source{Path: file, Available: []string{"greet"}})
	must.OK(t, err)
	plugin := must.Get(kind.make(cfg.Plugins[0], &build{Config: cfg}, host.Env{}))(t)
	defer plugin.Close(context.Background())
	p := hosttest.New(t, host.Options{Plugins: []host.Plugin{plugin}})
	p.Handshake(protocol.CapTools)
	got := p.Call(protocol.TypeToolCallReq, `{"tool_name":"greet","arguments":{"who":"Ada"}}`).Get("/data/data/text")
	assert.Equal(t, got, "Good evening, Ada", "it")
	p.Refused(protocol.TypeToolCallReq, `{"tool_name":"greet","arguments":{"whom":"Ada"}}`, protocol.CodeSchemaViolation) // an unknown argument
	assert.Equal(t, p.Call(protocol.TypeToolListReq, `{"query":"greet somebody"}`).Get("/tools/0/name"), "greet", "the search finds")
}
