package exec

import (
	"os"
	"path/filepath"
	"testing"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/protocol"
)

// serving returns a plugin the capability that it is tested for: its own Info names it as a
// further one.
type serving struct {
	host.Plugin
	capability protocol.Capability
}

func (s serving) Info() host.PluginInfo {
	info := s.Plugin.Info()
	info.Capability, info.Also = s.capability, nil
	return info
}

func (s serving) Unwrap() host.Plugin { return s.Plugin }

// The contract of a plugin, with a host as the child.
func TestContract(t *testing.T) {
	hosttest.Contract(t, func(t testing.TB) host.Plugin {
		f := newField(t)
		if err := os.WriteFile(filepath.Join(f.dir, "a.txt"), []byte("one\ntwo\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		p := f.plugin("inner", "host", Options{Capabilities: []protocol.Capability{protocol.CapTools}})
		t.Cleanup(func() { p.Close(t.Context()) }) // one that no host closes
		return serving{p, protocol.CapTools}
	}, []hosttest.Sample{
		{Type: protocol.TypeToolListReq, Fields: `{"filter_kind":"builtin","filter_tags":["file"],"query":"read","include_deferred":true}`},
		{Type: protocol.TypeToolCallReq, Fields: `{"session_id":"","tool_name":"echo","arguments":{"text":"x"},"correlation_id":"c","streaming":false,"timeout":30}`},
		{Name: "read", Type: protocol.TypeToolCallReq, Fields: `{"tool_name":"read_file","arguments":{"path":"a.txt"},"streaming":true}`},
		{Name: "unknown tool", Type: protocol.TypeToolCallReq, Fields: `{"tool_name":"ehco","arguments":{}}`, Code: protocol.CodeUnknownTool},
		{Name: "missing argument", Type: protocol.TypeToolCallReq, Fields: `{"tool_name":"echo","arguments":{}}`, Code: protocol.CodeSchemaViolation},
		{Name: "not there", Type: protocol.TypeToolCallReq, Fields: `{"tool_name":"read_file","arguments":{"path":"b.txt"}}`, Code: protocol.CodeToolError},
	})
}
