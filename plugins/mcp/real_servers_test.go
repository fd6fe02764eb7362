package mcp

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"a2e/host/hosttest"
	"a2e/protocol"
)

// TestFilesystem: server-filesystem works in the folder that it was given, and after the
// agent named its roots in those.
func TestFilesystem(t *testing.T) {
	r := newReal(t, npmServer(t, "server-filesystem", "."))
	r.reply(protocol.TypeMCPRootListResp, r.question(protocol.TypeMCPRootListReq), `{"roots":[`+quoted(map[string]any{"uri": "file://" + r.dir})+`]}`)
	hosttest.Eventually(t, "the root is the allowed folder", func() bool {
		return strings.Contains(r.result("list_allowed_directories", `{}`).Get("/data/data/content/0/text"), r.dir)
	})
	path := filepath.Join(r.dir, "note.txt")
	args := func(more string) string { return `{"path":` + quoted(path) + more + `}` }
	r.result("write_file", args(`,"content":"one\ntwo\n"`))
	if text, err := os.ReadFile(path); err != nil || string(text) != "one\ntwo\n" {
		t.Errorf("the file has %q %v", text, err)
	}
	r.result("edit_file", args(`,"edits":[{"oldText":"two","newText":"three"}]`))
	m := r.result("read_text_file", args(""))
	holds(t, m, map[string]string{"/data/data/content/0/text": "one\nthree\n", "/data/data/structuredContent/content": "one\nthree\n"})
	if m := r.result("list_directory", `{"path":`+quoted(r.dir)+`}`); !strings.Contains(m.Get("/data/data/content/0/text"), "[FILE] note.txt") {
		t.Errorf("the folder: %s", m.Line)
	}
	d, _ := r.plugin.DescribeTool("all__write_file")
	if read, _ := r.plugin.DescribeTool("all__read_text_file"); !read.ReadOnly || d.ReadOnly || !d.Destructive || !d.Idempotent {
		t.Errorf("annotations: %+v %+v", d, read)
	}
	for _, outside := range []string{"/etc/passwd", filepath.Join(r.dir, "..", "x")} {
		m := r.Answer(r.call("read_text_file", `{"path":`+quoted(outside)+`}`, ""))
		if m.Get("/data/success") != "false" || !strings.Contains(m.Get("/data/error"), "outside allowed directories") {
			t.Errorf("%s: %s", outside, m.Line)
		}
	}
}

// TestTime: a server in Python, in a virtual environment.
func TestTime(t *testing.T) {
	r := newReal(t, map[string]any{
		"command": peer(t, "venv", "bin", "python3"), "args": []any{"-m", "mcp_server_time", "--local-timezone=Europe/Oslo"}, "network": false,
	})
	if names := r.toolNames(); !slices.Equal(names, []string{"all__convert_time", "all__get_current_time"}) {
		t.Errorf("tools: %v", names)
	}
	text := r.result("convert_time", `{"source_timezone":"Asia/Tokyo","time":"16:30","target_timezone":"Asia/Kolkata"}`).Get("/data/data/content/0/text")
	if !strings.Contains(text, "T13:00:00+05:30") || !strings.Contains(text, `"-3.5h"`) {
		t.Errorf("the time: %s", text)
	}
	m := r.Answer(r.call("get_current_time", `{"timezone":"Mars/Olympus"}`, ""))
	if m.Get("/data/success") != "false" || !strings.Contains(m.Get("/data/error"), "Mars/Olympus") {
		t.Errorf("a zone that is none: %s", m.Line)
	}
}

// httpServer starts server-everything with a transport over HTTP and gives its address.
func httpServer(t *testing.T, transport string) string {
	t.Helper()
	cmd := exec.Command(node(t), "--require", peer(t, "loopback.cjs"), script(t, "server-everything"), transport)
	cmd.Env = append(os.Environ(), "PORT=0")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	})
	port := ""
	for lines := bufio.NewScanner(out); port == ""; {
		if !lines.Scan() {
			t.Fatalf("server-everything %s ended: run make tools", transport)
		}
		port, _ = strings.CutPrefix(lines.Text(), "port ")
		if port == lines.Text() {
			port = ""
		}
	}
	go func() { // it says a line for each request
		for buf := make([]byte, 4096); ; {
			if _, err := out.Read(buf); err != nil {
				return
			}
		}
	}()
	return "http://127.0.0.1:" + port
}

// TestMemory: what server-memory was told it finds again, in its file.
func TestMemory(t *testing.T) {
	r := newReal(t, npmServer(t, "server-memory"))
	r.result("create_entities", `{"entities":[{"name":"Ada","entityType":"person","observations":["wrote a program"]},{"name":"Engine","entityType":"machine","observations":[]}]}`)
	r.result("create_relations", `{"relations":[{"from":"Ada","to":"Engine","relationType":"programmed"}]}`)
	r.result("add_observations", `{"observations":[{"entityName":"Ada","contents":["was a countess"]}]}`)
	m := r.result("search_nodes", `{"query":"countess"}`)
	holds(t, m, map[string]string{
		"/data/data/structuredContent/entities/0/name":         "Ada",
		"/data/data/structuredContent/entities/0/observations": `["wrote a program","was a countess"]`,
	})
	holds(t, r.result("read_graph", `{}`), map[string]string{"/data/data/structuredContent/relations/0/relationType": "programmed"})
	r.result("delete_entities", `{"entityNames":["Ada"]}`)
	holds(t, r.result("read_graph", `{}`), map[string]string{"/data/data/structuredContent/entities/0/name": "Engine", "/data/data/structuredContent/relations": "[]"})
	r.refused(protocol.TypeToolCallReq, callFields("all__create_entities", `{"entities":[{"name":3}]}`, ""), protocol.CodeSchemaViolation)
}
