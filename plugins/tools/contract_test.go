package tools

import (
	"os"
	"path/filepath"
	"testing"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/protocol"
)

func TestContract(t *testing.T) {
	hosttest.Contract(t, func(t testing.TB) host.Plugin {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "a.txt"), []byte("one\ntwo\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		p, err := New("mytools", Options{}, Env{Workspace: dir, StateDir: t.TempDir(), Launcher: launcherIn(t, dir)})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}, []hosttest.Sample{
		{Type: protocol.TypeToolListReq, Fields: `{"filter_kind":"builtin","filter_tags":["file"],"query":"read","include_deferred":true}`},
		{Type: protocol.TypeToolCallReq, Fields: `{"session_id":"","tool_name":"echo","arguments":{"text":"x"},"correlation_id":"c","streaming":false,"timeout":30}`},
		{Name: "read", Type: protocol.TypeToolCallReq, Fields: `{"tool_name":"read_file","arguments":{"path":"a.txt"},"streaming":true}`},
		{Name: "grep", Type: protocol.TypeToolCallReq, Fields: `{"tool_name":"grep","arguments":{"pattern":"t.o"}}`},
		{Name: "run", Type: protocol.TypeToolCallReq, Fields: `{"tool_name":"run_command","arguments":{"command":["echo","hi"]},"streaming":true}`},
		{Name: "unknown tool", Type: protocol.TypeToolCallReq, Fields: `{"tool_name":"ehco","arguments":{}}`, Code: protocol.CodeUnknownTool},
		{Name: "missing argument", Type: protocol.TypeToolCallReq, Fields: `{"tool_name":"echo","arguments":{}}`, Code: protocol.CodeSchemaViolation},
		{Name: "forbidden", Type: protocol.TypeToolCallReq, Fields: `{"tool_name":"read_file","arguments":{"path":"../x"}}`, Code: protocol.CodeToolDenied},
		{Name: "not there", Type: protocol.TypeToolCallReq, Fields: `{"tool_name":"read_file","arguments":{"path":"b.txt"}}`, Code: protocol.CodeToolError},
	})
}
