package e2e_test

import (
	"bufio"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// editor speaks to a language server as an editor does.
type editor struct {
	t   *testing.T
	in  io.Writer
	out *bufio.Reader
	ids int
}

func (e *editor) send(message map[string]any) {
	message["jsonrpc"] = "2.0"
	raw := must.Get(json.Marshal(message))(e.t)
	must.Get(fmt.Fprintf(e.in, "Content-Length: %d\r\n\r\n%s", len(raw), raw))(e.t)
}

// await returns the next message that fits, and answers the requests of the server meanwhile.
func (e *editor) await(fits func(map[string]any) bool) map[string]any {
	for {
		size := 0
		for {
			line := strings.TrimSpace(must.Get(e.out.ReadString('\n'))(e.t))
			if line == "" {
				break
			}
			if text, ok := strings.CutPrefix(line, "Content-Length: "); ok {
				size = must.Get(strconv.Atoi(text))(e.t)
			}
		}
		raw := make([]byte, size)
		must.Get(io.ReadFull(e.out, raw))(e.t)
		var m map[string]any
		must.OK(e.t, json.Unmarshal(raw, &m))
		if m["method"] != nil && m["id"] != nil { // workspace/configuration and the like
			e.send(map[string]any{"id": m["id"], "result": []any{map[string]any{
				"validate": true, "hover": true,
				"completion": true,
			}, nil, nil, nil, nil}})
		} else if fits(m) {
			return m
		}
	}
}

// ask sends a request about a place in the file, and returns its result.
func (e *editor) ask(method, file string, line, character int) string {
	e.ids++
	e.send(map[string]any{"id": e.ids, "method": method, "params": map[string]any{
		"textDocument": map[string]any{"uri": "file://" + file}, "position": map[string]any{
			"line":      line,
			"character": character,
		},
	}})
	got := e.await(func(m map[string]any) bool { return m["id"] == float64(e.ids) })
	return string(must.Get(json.Marshal(got["result"], json.Deterministic(true)))(e.t))
}

// TestSchemaInAnEditor: by the schema that a2e prints, an editor with the YAML language server finds wrong keys and
// values of a config, and shows what each key means.
func TestSchemaInAnEditor(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	writeFile(t, dir, "a2e.schema.json", run(t, dir, nil, "schema", "config").want(t, 0, "").stdout)
	const config = `# yaml-language-server: $schema=./a2e.schema.json
max_paralel: 3
checkpoints: {max_bytes: 1GB}
audit: {enabled: maybe}
plugins:
  tools: {deny: [grep], read_only: "${READ_ONLY:-true}"}
  maze: {type: env, env: gridwrld}
`
	writeFile(t, dir, "a2e.yaml", config)
	file := filepath.Join(dir, "a2e.yaml")
	cmd := exec.CommandContext(t.Context(), "node",
		must.Get(filepath.Abs(filepath.Join(root, "testdata/readme/node_modules/yaml-language-server/bin/yaml-language-server")))(t), "--stdio")
	cmd.Dir = dir
	in, out := must.Get(cmd.StdinPipe())(t), must.Get(cmd.StdoutPipe())(t)
	must.OK(t, cmd.Start())
	defer cmd.Wait() // its input is closed before
	defer in.Close()
	e := &editor{t: t, in: in, out: bufio.NewReader(out)}
	e.send(map[string]any{"id": 0, "method": "initialize", "params": map[string]any{
		"processId": nil, "rootUri": "file://" + dir,
		"capabilities": map[string]any{"textDocument": map[string]any{
			"publishDiagnostics": map[string]any{},
			"hover":              map[string]any{"contentFormat": []string{"plaintext"}},
		}},
	}})
	e.await(func(m map[string]any) bool { return m["id"] == float64(0) })
	e.send(map[string]any{"method": "initialized", "params": map[string]any{}})
	e.send(map[string]any{
		"method": "textDocument/didOpen",
		"params": map[string]any{"textDocument": map[string]any{
			"uri": "file://" + file, "languageId": "yaml",
			"version": 1, "text": config,
		}},
	})
	told := e.await(func(m map[string]any) bool { return m["method"] == "textDocument/publishDiagnostics" })
	wrong := told["params"].(map[string]any)["diagnostics"].([]any)
	raw := string(must.Get(json.Marshal(wrong, json.Deterministic(true)))(t))
	for _, says := range []string{
		"Property max_paralel is not allowed.", `Expected \"boolean\".`,
		`Valid values: \"counter\", \"gridworld\"`,
	} {
		assert.Contains(t, raw, says)
	}
	assert.Equal(t, len(wrong), 3, "%s: it finds … mistakes, want …", raw)
	assert.Contains(t, e.ask("textDocument/hover", file, 2, 3), "before an agent changes them",
		"the key is not explained by")
	assert.Contains(t, e.ask("textDocument/completion", file, 6, 21), `"label":"max_episodes"`)
}
