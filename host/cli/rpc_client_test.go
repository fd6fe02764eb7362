package cli_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestJSONRPCClient: a client made with vscode-jsonrpc, a library that knows nothing of this
// host, goes through a session of the program over its pipes. The script says what it must
// find.
func TestJSONRPCClient(t *testing.T) {
	t.Parallel()
	peers, err := filepath.Abs(filepath.Join(root, "testdata/peers"))
	if err == nil {
		_, err = os.Stat(filepath.Join(peers, "node_modules", "vscode-jsonrpc"))
	}
	if err != nil {
		t.Fatalf("%v: run make tools", err)
	}
	dir := workDir(t)
	writeConfig(t, dir, `plugins:
  - {name: tools, type: tools}
  - {name: agents, type: multi_agent, metadata: {workers: [
      {name: upper, command: [sh, -c, "tr a-z A-Z"]},
      {name: slow, command: [sh, -c, "echo at work; sleep 600"], max_tasks: 2}]}}
`)
	out, err := command(t, dir, "node", filepath.Join(peers, "rpc.mjs"), filepath.Join(dir, "a2e")).CombinedOutput()
	if want := "handshake errors session command interrupt manyAtOnce shutdown"; err != nil || strings.Join(strings.Fields(string(out)), " ") != want {
		t.Errorf("%v (Node.js is needed): %s", err, out)
	}
}
