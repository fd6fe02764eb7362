package plugins

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"a2e/host"
	"a2e/host/config"
	"a2e/host/hosttest"
	"a2e/protocol"
	"a2e/testdata/greet"
)

// TestNewTypeIsOneLine: a plugin that the build does not know needs the line of register to
// have its options read, its tools served, checked and searched.
func TestNewTypeIsOneLine(t *testing.T) {
	kind := register("greet", greet.Options{Greeting: "Hello"}, greet.New)
	file := filepath.Join(t.TempDir(), "a2e.yaml")
	if err := os.WriteFile(file, []byte("plugins: {greet: {greeting: Good evening}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, _, err := config.Load(config.Source{Path: file, Available: []string{"greet"}})
	if err != nil {
		t.Fatal(err)
	}
	plugin, err := kind.make(cfg.Plugins[0], &build{Config: cfg}, host.Env{})
	if err != nil {
		t.Fatal(err)
	}
	defer plugin.Close(context.Background())
	p := hosttest.New(t, host.Options{Plugins: []host.Plugin{plugin}})
	p.Handshake(protocol.CapTools)
	if got := p.Call(protocol.TypeToolCallReq, `{"tool_name":"greet","arguments":{"who":"Ada"}}`).Get("/data/data/text"); got != "Good evening, Ada" {
		t.Errorf("it says %q", got)
	}
	if m := p.Call(protocol.TypeToolCallReq, `{"tool_name":"greet","arguments":{"whom":"Ada"}}`); m.Code != protocol.CodeSchemaViolation {
		t.Errorf("an unknown argument: %s", m.Line)
	}
	if got := p.Call(protocol.TypeToolListReq, `{"query":"greet somebody"}`).Get("/tools/0/name"); got != "greet" {
		t.Errorf("the search finds %q", got)
	}
}
