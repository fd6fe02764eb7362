package plugins

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"a2e/host"
	"a2e/host/config"
	"a2e/host/hosttest"
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
	if err != nil {
		t.Fatal(err)
	}
	plugin := must.Get(kind.make(cfg.Plugins[0], &build{Config: cfg}, host.Env{}))(t)
	defer plugin.Close(context.Background())
	p := hosttest.New(t, host.Options{Plugins: []host.Plugin{plugin}})
	p.Handshake(protocol.CapTools)
	if got := p.Call(protocol.TypeToolCallReq, `{"tool_name":"greet","arguments":{"who":"Ada"}}`).Get("/data/data/text"); got != "Good evening, Ada" {
		t.Errorf("it says %q", got)
	}
	p.Refused(protocol.TypeToolCallReq, `{"tool_name":"greet","arguments":{"whom":"Ada"}}`, protocol.CodeSchemaViolation) // an unknown argument
	if got := p.Call(protocol.TypeToolListReq, `{"query":"greet somebody"}`).Get("/tools/0/name"); got != "greet" {
		t.Errorf("the search finds %q", got)
	}
}
