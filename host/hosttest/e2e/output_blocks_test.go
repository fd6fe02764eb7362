package e2e_test

import (
	"encoding/base64"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// largeMCP is an MCP server whose results are too long: each has a small block, and one that does not fit.
const largeMCP = `
import base64, json, sys
png = base64.b64encode(bytes([0x89]) + b"PNG\r\n\x1a\n" + bytes(range(256)) * 40).decode()
small = {"type": "text", "text": "small"}
tiny = {"type": "image", "data": "iVBORw==", "mimeType": "image/png"}
def resource(**of): return {"type": "resource", "resource": of}
long = "begins\n" + "line of text\n" * 2000 + "ends"
results = {
    "image": {"content": [small, {"type": "image", "data": png, "mimeType": "image/png"}, tiny]},
    "audio": {"content": [{"type": "audio", "data": png, "mimeType": "audio/wav"}, small]},
    "blob": {"content": [small, resource(uri="x://blob", mimeType="application/pdf", blob=png)]},
    "resource": {"content": [small, resource(uri="x://text", mimeType="text/plain", text=long)]},
    "link": {"content": [small, {"type": "resource_link", "uri": "x://link", "name": "n", "description": long}]},
    "text": {"content": [small, {"type": "text", "text": long, "annotations": {"priority": 1}}]},
    "structured": {"content": [small], "structuredContent": {"rows": ["row"] * 4000}},
    "many": {"content": [{"type": "text", "text": "block %d " % i + "x" * 40} for i in range(2000)]},
    "strange": {"content": [small, {"type": "hologram", "data": png}]},
}
for line in sys.stdin:
    m = json.loads(line)
    result = {}
    if m["method"] == "initialize":
        result = {"protocolVersion": "2025-11-25", "serverInfo": {"name": "l", "version": "1"}, "capabilities": {"tools": {}}}
    elif m["method"] == "tools/list":
        result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in results]}
    elif m["method"] == "tools/call":
        result = results[m["params"]["name"]]
    if "id" in m:
        print(json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": result}), flush=True)
`

// contentBlock has the members of a block that this test checks.
type contentBlock struct {
	Type     string         `json:"type"`
	Text     string         `json:"text"`
	Data     string         `json:"data"`
	Resource jsontext.Value `json:"resource"`
}

// cutResults are the tools of largeMCP. says is in the text that replaces the block that does not fit; file is how
// the file with the block begins.
var cutResults = map[string]struct{ says, file string }{
	"image":      {"the image image/png of 10248 bytes", "\x89PNG\r\n"},
	"audio":      {"the audio audio/wav of 10248 bytes", "\x89PNG\r\n"},
	"blob":       {"the resource x://blob application/pdf of 10248 bytes", "\x89PNG\r\n"},
	"strange":    {"hologram block", `{"type":"hologram"`},
	"structured": {"the structured result of", `{"rows":[`},
	"link":       {"the link to the resource x://link is too long", ""},
	"text":       {"bytes are missing here", ""},
	"resource":   {"bytes are missing here", ""},
	"many":       {"more blocks left out", `{"content":[`},
}

// wholeBlocks checks that each block of a result is whole or replaced, and returns the texts.
func wholeBlocks(t *testing.T, tool string, content []contentBlock) (texts string) {
	t.Helper()
	for _, b := range content {
		switch b.Type {
		case "text":
			texts += b.Text + "\n"
		case "image":
			assert.Equal(t, b.Data, "iVBORw==", "%s: a picture is cut", tool)
		case "resource":
			assert.That(t, tool == "resource", "%s: a resource is cut: %s", tool, b.Resource)
			texts += string(b.Resource)
		default:
			t.Errorf("%s: a block of type %s", tool, b.Type)
		}
	}
	want := cutResults[tool]
	assert.Contains(t, texts, want.says)
	assert.That(t, tool == "many" || strings.Contains(texts, "small\n"), "%s: the small block is not whole in %s", tool,
		texts)
	if path := regexp.MustCompile(`the file (/[^ ,\]]+)`).FindStringSubmatch(texts); want.file != "" && len(path) > 0 {
		content := must.Get(os.ReadFile(path[1]))(t)
		assert.That(t, strings.HasPrefix(string(content), want.file), "%s: the file begins %.20q", tool, content)
	} else {
		assert.Equal(t, want.file, "", "%s: no file is named in %s; it should begin", tool, texts)
	}
	return texts
}

func largeDir(t *testing.T) string {
	t.Helper()
	dir := workDir(t)
	writeFile(t, dir, "large.py", largeMCP)
	writeConfig(t, dir, "state_dir: state\nlimits: {max_output_bytes: 4096}\n"+
		"mcpServers: {l: {command: python3, args: [large.py]}}\n")
	return dir
}

// TestMCPServeCutsNoBlock: in a result over max_output_bytes, a block that does not fit is replaced as a whole. The
// text in its place says what the block was and where a client can read it: by a URI and in a file.
func TestMCPServeCutsNoBlock(t *testing.T) {
	t.Parallel()
	l := start(t, largeDir(t), "mcp", "serve")
	ask := func(method, params string, result any) {
		t.Helper()
		must.Get(io.WriteString(l.stdin, `{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":`+params+"}\n"))(t)
		for line := ""; !strings.Contains(line, `"id":1,`); {
			line = must.Get(l.stdout.ReadString('\n'))(t)
			if strings.Contains(line, `"id":1,`) {
				must.That(t, len(line) < 3*4096 || method != "tools/call", "%s has %d bytes", params, len(line))
				must.OK(t, json.Unmarshal([]byte(line), &struct {
					Result any `json:"result"`
				}{result}))
			}
		}
	}
	var info jsontext.Value
	ask("initialize", `{"protocolVersion":"2025-11-25","capabilities":{}}`, &info)
	for tool, want := range cutResults {
		var res struct {
			Content    []contentBlock `json:"content"`
			Structured jsontext.Value `json:"structuredContent"`
		}
		ask("tools/call", `{"name":"l__`+tool+`","arguments":{}}`, &res)
		assert.That(t, res.Structured == nil, "%s: the structured result is cut: %s", tool, res.Structured)
		uri := regexp.MustCompile(`gives as (spill:///[^ \]]+)`).FindStringSubmatch(wholeBlocks(t, tool, res.Content))
		if uri == nil {
			continue
		}
		var read struct {
			Contents []struct {
				MIME string  `json:"mimeType"`
				Text *string `json:"text"`
				Blob string  `json:"blob"`
			} `json:"contents"`
		}
		ask("resources/read", fmt.Sprintf(`{"uri":%q}`, uri[1]), &read)
		must.Equal(t, len(read.Contents), 1, "%s: … contents of %s", tool, uri[1])
		got := string(must.Get(base64.StdEncoding.DecodeString(read.Contents[0].Blob))(t))
		if text := read.Contents[0].Text; text != nil {
			got = *text
		}
		isImage := len(got) == 10248 && read.Contents[0].MIME == "image/png"
		assert.That(t, strings.HasPrefix(got, want.file) && (tool != "image" || isImage),
			"%s: %s gives %d bytes of %s", tool, uri[1], len(got), read.Contents[0].MIME)
	}
}

// TestCutsNoBlock: on the pipe of A2E a block that does not fit is replaced as a whole, too.
func TestCutsNoBlock(t *testing.T) {
	t.Parallel()
	var lines strings.Builder
	lines.WriteString(webHello + "\n")
	for tool := range cutResults {
		fmt.Fprintf(&lines, `{"type":"tool/call/req","id":%q,"tool_name":"l__%s","arguments":{}}`+"\n", tool, tool)
	}
	seen := 0
	for line := range strings.Lines(run(t, largeDir(t), []byte(lines.String()), "serve").want(t, 0, "").stdout) {
		var m struct {
			ReqID string `json:"req_id"`
			Data  struct {
				Data struct {
					Content    []contentBlock `json:"content"`
					Structured jsontext.Value `json:"structuredContent"`
					Spilled    string         `json:"spilled"`
				} `json:"data"`
			} `json:"data"`
		}
		must.OK(t, json.Unmarshal([]byte(line), &m))
		if _, ok := cutResults[m.ReqID]; !ok {
			continue
		}
		seen++
		wholeBlocks(t, m.ReqID, m.Data.Data.Content)
		whole := must.Get(os.ReadFile(m.Data.Data.Spilled))(t)
		assert.That(t, m.Data.Data.Structured == nil && jsontext.Value(whole).IsValid(), "%s: %.300s", m.ReqID, line)
	}
	assert.Equal(t, seen, len(cutResults), "… answers")
}
