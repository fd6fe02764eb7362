package host_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// TestSuiteLines sends the lines of each file of JSONTestSuite, then a ping: the host answers every ping, and answers
// each broken file with an error.
func TestSuiteLines(t *testing.T) {
	files := must.Get(filepath.Glob("../../shared/jsontestsuite/*.json"))(t)
	if len(files) == 0 {
		t.Skip("TestSuiteLines needs JSONTestSuite beside the project, in ../shared/jsontestsuite; it is not there")
	}
	assert.Equal(t, len(files), 318, "… files, should be 318")
	p := hosttest.New(t, host.Options{})
	p.Handshake()
	seen := len(p.Messages())
	for _, file := range files {
		name := filepath.Base(file)
		b := must.Get(os.ReadFile(file))(t)
		p.SendRaw(string(b) + "\n")
		m := p.Call(protocol.TypePing, "")
		assert.Equal(t, m.Type, protocol.TypePong, "after %s the ping was answered by %s", name, m.Line)
		all := p.Messages()
		refused := len(all) - seen - 1
		seen = len(all)
		blank := strings.Trim(string(b), " \t\r\n") == ""
		assert.That(t, name[0] != 'n' || blank || refused != 0, "%s was not answered by an error: %q", name, b)
		assert.That(t, name[0] != 'y' || refused != 0, "%s is not a message and was not answered: %q", name, b)
	}
}
