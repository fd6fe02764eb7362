package mcp

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"a2e/host/hosttest"
	"a2e/protocol"
)

// An error does not tell an agent which files there are outside of what its server sees.
func TestRegistrationsTellNothingOfFiles(t *testing.T) {
	s := newStage(t, nil, func(o *Options, _ *Env) { o.AllowedCommands = []string{"sh"} })
	there := filepath.Join(t.TempDir(), "there")
	if err := os.WriteFile(there, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	said := map[string]string{}
	for _, path := range []string{there, there + "-not"} {
		m := s.ask(protocol.TypeMCPServerRegisterReq, `{"config":`+quoted(map[string]any{"command": "sh", "args": []string{"-c", "exit 3", path}})+`}`, nil)
		said[path] = strings.ReplaceAll(m.Get("/error"), path, "")
		if !strings.Contains(said[path], "exit status 3") {
			t.Errorf("%s", m.Line)
		}
	}
	if said[there] != said[there+"-not"] {
		t.Errorf("%q", said)
	}
}

// A registration that is cancelled while the server is asked for what it has leaves nothing.
func TestCancelledRegistrationIsNotKept(t *testing.T) {
	h := newHostile(t, map[string]string{"tools/list": ""})
	s := newStage(t, nil, func(o *Options, _ *Env) { o.HTTPAllowPrivate = true })
	id := s.Go(protocol.TypeMCPServerRegisterReq, fmt.Sprintf(`{"config":{"server_id":"srv","url":%q,"type":"http"}}`, h.URL))
	<-h.hung
	s.Go(protocol.TypeCancel, fmt.Sprintf(`{"req_id":%q}`, id))
	if m := s.Answer(id); m.Code != protocol.CodeCancelled {
		t.Fatalf("%s", m.Line)
	}
	hosttest.Eventually(t, "the server is gone", func() bool { return s.row("srv") == nil })
}
