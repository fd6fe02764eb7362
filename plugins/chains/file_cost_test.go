package chains

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

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
