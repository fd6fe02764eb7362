package tools

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/go-json-experiment/json"

	"a2e/protocol"
)

// What Call gives is what the wire gets.
func TestCallFromWithin(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.txt"), []byte("one\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := New("mytools", Options{Deny: []string{"http_get"}}, Env{Workspace: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close(context.Background())
	for _, tc := range []struct {
		tool, args string
		code       protocol.ErrorCode
	}{
		{"read_file", `{"path":"a.txt"}`, ""},
		{"run_command", `{"command":["sh","-c","echo out; exit 3"]}`, ""},
		{"read_file", `{"path":"../a"}`, protocol.CodeToolDenied},
		{"read_file", `{"paht":"a"}`, protocol.CodeSchemaViolation},
		{"http_get", `{"url":"http://localhost"}`, protocol.CodeToolDenied},
		{"nothing", `{}`, protocol.CodeUnknownTool},
	} {
		args, err := protocol.ParseObject([]byte(tc.args))
		if err != nil {
			t.Fatal(err)
		}
		got, err := p.Call(t.Context(), tc.tool, args)
		var known *protocol.Error
		if tc.code != "" {
			if !errors.As(err, &known) || known.Code != tc.code {
				t.Errorf("%s %s: %v, want %s", tc.tool, tc.args, err, tc.code)
			}
			continue
		}
		wire, err2 := called(t, p, tc.tool, tc.args)
		if err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
		got.DurationMS, wire.DurationMS = 0, 0
		a, err := json.Marshal(got)
		b, err2 := json.Marshal(wire)
		if err != nil || err2 != nil || string(a) != string(b) {
			t.Errorf("%s gave %s, over the wire %s; %v %v", tc.tool, a, b, err, err2)
		}
	}
	var names []string
	for _, def := range p.Tools() {
		names = append(names, def.Name)
	}
	if !slices.IsSorted(names) || !slices.Contains(names, "edit_file") || slices.Contains(names, "http_get") {
		t.Errorf("the tools are %v", names)
	}
	if p.ReadOnly("edit_file") || p.ReadOnly("nothing") || !p.ReadOnly("grep") {
		t.Error("which tools change something is wrong")
	}
}
