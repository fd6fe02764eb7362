package tools

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// spilled writes one file through s and gives its path.
func spilled(t *testing.T, s *spiller, tool, text string) string {
	t.Helper()
	w, path, err := s.Create(tool)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func TestSpillNamesStayInTheFolder(t *testing.T) {
	s := newSpiller(t.TempDir())
	for _, tool := range []string{"plain", "../../up", "a/b", "", "nul\x00", strings.Repeat("x", 500), "größe", `c:\x`} {
		path := spilled(t, s, tool, "x")
		if filepath.Dir(path) != s.dir || !isSpillName(filepath.Base(path)) {
			t.Errorf("tool %.20q: file %s", tool, path)
		}
	}
	if got := len(names(t, s.dir)); got != 8 {
		t.Errorf("%d files, want 8", got)
	}
}

func TestSpillRemovesTheOldestFirst(t *testing.T) {
	for kept, bound := range map[int]func(*spiller){3: func(s *spiller) { s.maxFiles = 3 }, 4: func(s *spiller) { s.maxBytes = 400 }} {
		s := newSpiller(t.TempDir())
		bound(s)
		var paths []string
		for range 6 {
			paths = append(paths, filepath.Base(spilled(t, s, "tool", strings.Repeat("x", 100))))
		}
		if got := names(t, s.dir); strings.Join(got, " ") != strings.Join(paths[6-kept:], " ") {
			t.Errorf("kept %v, want the last %d of %v", got, kept, paths)
		}
	}
}

func TestSpillRemovesOnlyItsOwn(t *testing.T) {
	s := newSpiller(t.TempDir())
	s.maxFiles = 1
	old := spilled(t, s, "tool", "old")
	for _, name := range []string{"notes.txt", "x.spill", "00000000-0000-7000-8000-000000000000.spill", "zz000000-0000-7000-8000-000000000000-a.spill"} {
		if err := os.WriteFile(filepath.Join(s.dir, name), []byte("mine"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	held, heldPath, err := s.Create("tool")
	if err != nil {
		t.Fatal(err)
	}
	last := spilled(t, s, "tool", "new")
	if _, err := os.Stat(old); err == nil {
		t.Error("the oldest file is still there")
	}
	for _, p := range []string{heldPath, last} {
		if _, err := os.Stat(p); err != nil {
			t.Errorf("removed too much: %v", err)
		}
	}
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	if got := len(names(t, s.dir)); got != 5 {
		t.Errorf("%d files, want the 4 of others and the newest: %v", got, names(t, s.dir))
	}
}

func TestSpillBoundsOneFile(t *testing.T) {
	s := newSpiller(t.TempDir())
	s.maxBytes = 400
	part := strings.Repeat("1234567890", 4)
	w, path, err := s.Create("tool")
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if n, err := io.WriteString(w, part); n != len(part) || err != nil {
			t.Fatalf("wrote %d, %v", n, err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if want := (part + part + part)[:100] + "\n[20 more bytes were not kept]\n"; err != nil || string(b) != want {
		t.Errorf("file holds %q, %v", b, err)
	}
}

func TestSpillWithoutAFolder(t *testing.T) {
	if _, _, err := newSpiller("").Create("tool"); err == nil {
		t.Error("no folder is set, yet a file was made")
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := newSpiller(file).Create("tool"); err == nil {
		t.Error("the folder cannot be made, yet a file was")
	}
}

// Files that are written at the same time take together no more than all may have, however
// many there are.
func TestWallSpillsTogether(t *testing.T) {
	s := newSpiller(t.TempDir())
	s.maxBytes = 40_000
	var open []io.WriteCloser
	for range 30 {
		w, _, err := s.Create("tool")
		if err != nil {
			t.Fatal(err)
		}
		if n, err := w.Write(make([]byte, 20_000)); n != 20_000 || err != nil {
			t.Fatalf("%d, %v", n, err)
		}
		open = append(open, w)
	}
	total := func() (sum int64) {
		for _, name := range names(t, s.dir) {
			info, err := os.Stat(filepath.Join(s.dir, name))
			if err != nil {
				t.Fatal(err)
			}
			sum += info.Size()
		}
		return sum
	}
	if got := total(); got != s.maxBytes {
		t.Errorf("%d bytes while they are written, should be %d", got, s.maxBytes)
	}
	for _, w := range open {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
	if got := total(); got > s.maxBytes || s.held != 0 {
		t.Errorf("%d bytes in the end, %d held", got, s.held)
	}
	text, err := os.ReadFile(spilled(t, s, "tool", strings.Repeat("x", 10_000)))
	if err != nil || len(text) != 10_000 {
		t.Errorf("after it: %d bytes, %v", len(text), err)
	}
}
