package cli_test

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/llm"
	"a2e/host/hosttest/must"
)

// TestJSONRPCClient: a client that was written from the description of the protocol alone, in
// TypeScript, talks to the program over its pipes, with a model that follows a script. The
// client says what it must find; here it is held what the model was asked.
func TestJSONRPCClient(t *testing.T) {
	t.Parallel()
	peers, err := filepath.Abs(filepath.Join(root, "testdata/peers"))
	if err == nil {
		_, err = os.Stat(filepath.Join(peers, "node_modules", "typescript"))
	}
	must.OK(t, err)
	dir, js := workDir(t), t.TempDir()
	if out, err := command(t, peers, "node", "node_modules/typescript/bin/tsc", "rpc.ts", "--outDir", js, "--target", "es2022", "--module", "es2022", "--moduleResolution", "bundler", "--types", "node", "--strict").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	must.OK(t, os.WriteFile(filepath.Join(js, "package.json"), []byte(`{"type":"module"}`), 0o600))
	model := llm.New(t)
	model.Answer(func(r *llm.Request) llm.Reply {
		switch said := r.Last("user"); {
		case said == "look [Image 1]" && r.Rounds() == 0:
			return llm.Reply{Thoughts: []string{"**Look", " closely**"}, Text: []string{"I ", "see "}, Calls: []llm.Call{{Name: "echo", Arguments: `{"text":"seen"}`}}}
		case said == "look [Image 1]":
			return llm.Text("it.")
		case said == "steer me":
			return llm.Reply{Text: []string{"half"}, Stall: true}
		case said == "to the left":
			return llm.Text("left ", "then")
		case said == "one":
			return llm.Reply{Text: []string{"par"}, Stall: true}
		default:
			return llm.Text(said, "!")
		}
	})
	writeConfig(t, dir, `state_dir: `+filepath.Join(js, "state")+`
plugins:
  - {name: tools, type: tools}
  - {name: agents, type: multi_agent, metadata: {workers: [{name: brain, llm: {url: "`+model.URL+`", model: test}}]}}
`)
	cmd := command(t, dir, "node", filepath.Join(js, "rpc.js"), filepath.Join(dir, "a2e"))
	var said, wrong bytes.Buffer
	cmd.Stderr = &wrong
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	must.OK(t, err)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if said.WriteString(lines.Text() + "\n"); lines.Text() == "! release" {
			model.Release()
		}
	}
	if err := cmd.Wait(); err != nil || !strings.HasSuffix(said.String(), "done\n") {
		t.Fatalf("%v: %s%s", err, said.String(), wrong.String())
	}
	asked := model.Requests()
	first, third := asked[0], asked[2]
	if user := first.Messages[len(first.Messages)-1]; first.Effort != "high" || len(user.Images) != 1 || user.Images[0] != "data:image/png;base64,cGl4ZWw=" || first.Header.Get("Authorization") != "Bearer sk-of-the-typescript-client" {
		t.Errorf("the model was asked %s with %q", first.Body, first.Header)
	}
	assert.That(t, len(third.Messages) == 4 && third.Messages[2].Text == "I see \n\nit." && len(third.Messages[1].Images) == 1,
		"of what was said before the model was told %s", third.Body)
	if info, err := os.Stat(filepath.Join(js, "state", "llm-keys.json")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file with the key: %v %v", info, err)
	}
}
