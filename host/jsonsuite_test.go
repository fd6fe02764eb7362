package host_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/protocol"
)

// TestJSONTestSuite feeds every file of the JSONTestSuite as the line or lines it
// holds, each followed by a ping, in one session. The files lie beside the
// project, not in it.
func TestJSONTestSuite(t *testing.T) {
	files, err := filepath.Glob("../../shared/jsontestsuite/*.json")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Skip("the JSONTestSuite is not beside this clone; CI has it")
	}
	if len(files) != 318 {
		t.Errorf("%d files, want 318", len(files))
	}
	p := hosttest.New(t, host.Options{})
	p.Handshake(protocol.CapTools)
	refused := make(map[string]bool)
	for i, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		ping := fmt.Sprintf("ping-%d", i)
		before := len(p.Messages())
		p.SendRaw(string(text) + "\n" + `{"type":"ping","id":"` + ping + `"}` + "\n")
		if m := p.Answer(ping); m.Type != protocol.TypePong {
			t.Errorf("%s: the ping behind it got %s", file, m)
		}
		for _, m := range p.Messages()[before:] {
			refused[file] = refused[file] || m.Type == protocol.TypeError
		}
		blank := len(bytes.Trim(text, " \t\r\n")) == 0 // blank lines are fine on this wire
		if strings.HasPrefix(filepath.Base(file), "n_") && !blank && !refused[file] {
			t.Errorf("%s: not refused", file)
		}
	}
}
