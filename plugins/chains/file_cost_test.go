package chains

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Lines are kept for messages. Paths of all values of a small file may take gigabytes:
// each is as long as all the keys above it.
func TestLinesOfDeepFilesAreBounded(t *testing.T) {
	key := strings.Repeat("k", 1000)
	text := "nodes: " + strings.Repeat("{"+key+": ", 40) + "[" + strings.Repeat("a,", 10_000) + "a]" + strings.Repeat("}", 40)
	raw, lines, err := fromYAML([]byte(text))
	if err != nil || !strings.Contains(string(raw), key) {
		t.Fatalf("%v", err)
	}
	held := 0
	for path := range lines {
		held += len(path)
	}
	if held > len(text) {
		t.Errorf("%d bytes of paths for a file of %d", held, len(text))
	}
}

// Problems of nodes are told with their line all the same.
func TestLinesOfNodesAreKept(t *testing.T) {
	var text strings.Builder
	text.WriteString("nodes:\n")
	for i := range 300 {
		text.WriteString("  - node_id: n" + strconv.Itoa(i) + "\n    kind: tool\n    name: echo\n    input_map:\n      text: input.a\n")
	}
	_, lines, err := fromYAML([]byte(text.String()))
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]int{"/nodes": 1, "/nodes/0": 2, "/nodes/299": 1497, "/nodes/299/kind": 1498, "/nodes/299/input_map/text": 1501} {
		if lines[path] != want {
			t.Errorf("%s is in line %d, want %d", path, lines[path], want)
		}
	}
}

// Saved chains that a request runs are bounded together, not each by itself alone.
func TestSavedChainsAreBoundedTogether(t *testing.T) {
	work := t.TempDir()
	for _, name := range []string{"one", "two"} {
		text := `{"nodes":[{"node_id":"a","kind":"tool","name":"echo","input":{"text":"` + strings.Repeat("x", 1000) + `"}}]}`
		if err := errors.Join(os.MkdirAll(filepath.Join(work, "chains"), 0o755), os.WriteFile(filepath.Join(work, "chains", name+".json"), []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	l := &planner{ctx: t.Context(), plugin: newPlugin(t, Options{}, work), saved: map[string]*plan{}, left: 100, room: 1500}
	if _, err := l.load("one", "/x"); err != nil {
		t.Fatal(err)
	}
	if _, err := l.load("one", "/x"); err != nil {
		t.Errorf("it was read already: %v", err)
	}
	if _, err := l.load("two", "/x"); err == nil || !strings.Contains(err.Error(), "bytes together") {
		t.Error(err)
	}
}
