package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// call calls a tool, and decodes its data unless into is nil.
func (h *durableHost) call(name string, a map[string]any, into any) (protocol.ToolResult, error) {
	var resp protocol.ToolCallResponse
	err := h.Call(context.Background(), protocol.TypeToolCallReq, toolCall(name, a), &resp)
	if err == nil && into != nil {
		err = json.Unmarshal(resp.Data.Data, into)
	}
	return resp.Data, err
}

// spilledOutput has the members that the tests read of a command's data, a page of a file, matches and a list of a
// folder.
type spilledOutput struct {
	Stdout     string `json:"stdout"`
	Stderr     string `json:"stderr"`
	Spilled    string `json:"spilled"`
	Content    string `json:"content"`
	NextOffset int    `json:"next_offset"`
	Matches    []struct {
		Text string `json:"text"`
	} `json:"matches"`
	Entries []struct {
		Name string `json:"name"`
	} `json:"entries"`
}

// TestLongOutputIsReadBySession: the answer has the beginning and the end of a long output, and says how much is
// missing and where all of it is. The file tools read the whole output in this session, and in no other.
func TestLongOutputIsReadBySession(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	writeConfig(t, dir, "limits: {max_output_bytes: 4096}\n"+durableConfig)
	h, other := durableStart(t, dir), durableStart(t, dir)
	var out spilledOutput
	run := func(script string) map[string]any { return map[string]any{"command": []string{"sh", "-c", script}} }
	result := must.Get(h.call("run_command", run("echo begin >&2; seq 1 5000; echo end >&2"), &out))(t)
	uri := "spill:///" + filepath.Base(out.Spilled)
	summary := fmt.Sprintf("%q", "the output was cut; read_file "+uri+" has all of it")
	assert.That(t, result.Success && *result.Truncated && string(result.Summary) == summary,
		"truncated %v, summary %s", *result.Truncated, result.Summary)
	assert.That(t, strings.HasPrefix(out.Stdout, "1\n2\n") && strings.HasSuffix(out.Stdout, "\n4999\n5000\n") &&
		out.Stderr == "begin\nend\n", "%+v", out)
	assert.Contains(t, out.Stdout, " bytes are missing here; all of it is in "+uri+"]\n")
	var all strings.Builder
	for offset := 1; offset != 0; {
		var page spilledOutput
		must.Get(h.call("read_file", map[string]any{"path": uri, "offset": offset}, &page))(t)
		all.WriteString(page.Content)
		offset = page.NextOffset
	}
	assert.Equal(t, all.String(), string(must.Get(os.ReadFile(out.Spilled))(t)), "what read_file gives")
	lines := strings.Replace(strings.Replace(all.String(), "begin\n", "", 1), "end\n", "", 1)
	assert.That(t, all.Len() == len(lines)+len("begin\nend\n") && len(lines) == 23893, "%d bytes", all.Len())
	var found, listed spilledOutput
	must.Get(h.call("grep", map[string]any{"path": uri, "pattern": "^432[13]$"}, &found))(t)
	assert.Equal(t, len(found.Matches), 2, "matches")
	must.Get(h.call("list_dir", map[string]any{"path": "spill://"}, &listed))(t)
	assert.That(t, len(listed.Entries) == 1 && "spill:///"+listed.Entries[0].Name == uri, "%+v", listed.Entries)
	around := "spill:///../" + filepath.Base(filepath.Dir(out.Spilled)) + "/" + filepath.Base(out.Spilled)
	for _, path := range []string{uri, around} {
		_, err := other.call("read_file", map[string]any{"path": path}, nil)
		var refused *protocol.Error
		assert.That(t, errors.As(err, &refused), "another session reads %s: %v", path, err)
	}
	_, err := h.call("write_file", map[string]any{"path": uri, "content": "x"}, nil)
	assert.Fails(t, err, "can only be read")
	result = must.Get(h.call("run_command", run("kill -KILL $$"), nil))(t)
	assert.That(t, !result.Success && *result.ExitCode == 137, "a signal: exit code %d", *result.ExitCode)
}
