package tools

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"a2e/host"
	"a2e/host/guard/swap"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/property"
	"a2e/protocol"
)

// workspace is a folder and the file tools that work on it.
type workspace struct {
	dir   string
	files *files
}

// openWorkspace returns the file tools of dir. Their answers have at most max bytes; 0 = the default.
func openWorkspace(t testing.TB, dir string, max int) *workspace {
	t.Helper()
	root := must.Get(os.OpenRoot(dir))(t)
	t.Cleanup(func() { must.OK(t, root.Close()) })
	return &workspace{dir: dir, files: newFiles(root, max, nil, func() *host.Services { return nil })}
}

// newWorkspace makes a workspace with the given files in it.
func newWorkspace(t testing.TB, max int, content map[string]string) *workspace {
	t.Helper()
	w := openWorkspace(t, t.TempDir(), max)
	for name, text := range content {
		w.put(t, name, text)
	}
	return w
}

func (w *workspace) put(t testing.TB, name, text string) {
	t.Helper()
	path := filepath.Join(w.dir, name)
	must.OK(t, os.MkdirAll(filepath.Dir(path), 0o777))
	must.OK(t, os.WriteFile(path, []byte(text), 0o666))
}

func (w *workspace) get(t testing.TB, name string) string {
	t.Helper()
	text := must.Get(os.ReadFile(filepath.Join(w.dir, name)))(t)
	return string(text)
}

// args are the arguments of a call.
type args map[string]any

// call runs a tool the way the plugin does, with the arguments as JSON.
func (w *workspace) call(t testing.TB, ctx context.Context, name string, a args) (*Outcome, error) {
	t.Helper()
	raw := must.Get(json.Marshal(a))(t)
	obj := must.Get(protocol.ParseObject(raw))(t)
	all := w.files.tools()
	i := slices.IndexFunc(all, func(t Tool) bool { return t.Def.Name == name })
	must.That(t, i >= 0, "no tool %q", name)
	return all[i].Call(ctx, obj, nil)
}

// mustCall is call for a tool that has to succeed. It returns the data of the answer, too.
func mustCall[T any](t testing.TB, w *workspace, name string, a args) (T, *Outcome) {
	t.Helper()
	out, err := w.call(t, t.Context(), name, a)
	must.That(t, err == nil, "%s %v: %v", name, a, err)
	return out.Data.(T), out
}

// fails runs a tool that has to refuse with the given code. The message must contain the words.
func (w *workspace) fails(t testing.TB, name string, a args, code protocol.ErrorCode, words ...string) {
	t.Helper()
	out, err := w.call(t, t.Context(), name, a)
	var e *protocol.Error
	must.That(t, errors.As(err, &e) && e.Code == code, "%s %v: got %+v, %v; want %s", name, a, out, err, code)
	for _, word := range words {
		assert.Contains(t, e.Message, word, "%s %v: message … does not say", name, a)
	}
}

// leftOver returns the temporary files that a write has left behind.
func leftOver(t testing.TB, dir string) (found []string) {
	t.Helper()
	must.OK(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if strings.HasPrefix(filepath.Base(path), ".a2e-") {
			found = append(found, path)
		}
		return err
	}))
	return found
}

func TestReadFile(t *testing.T) {
	w := newWorkspace(t, 0, map[string]string{
		"lf": "one\ntwo\nthree\n", "open": "one\ntwo", "crlf": "one\r\ntwo\r\n", "empty": "",
		"dir/ünï.txt": "héllo\n\x00\u2028", "spaces in name": "x",
	})
	for _, c := range []struct {
		path          string
		offset, limit int
		want          readData
	}{
		{"lf", 0, 0, readData{Content: "one\ntwo\nthree\n", Lines: 3, Size: 14}},
		{"lf", 1, 3, readData{Content: "one\ntwo\nthree\n", Lines: 3, Size: 14}},
		{"lf", 1, 1, readData{Content: "one\n", Lines: 1, Size: 14, NextOffset: 2}},
		{"lf", 2, 1, readData{Content: "two\n", Lines: 1, Size: 14, NextOffset: 3}},
		{"lf", 3, 9, readData{Content: "three\n", Lines: 1, Size: 14}},
		{"lf", 4, 0, readData{Size: 14}},
		{"open", 2, 0, readData{Content: "two", Lines: 1, Size: 7}},
		{"open", 1, 1, readData{Content: "one\n", Lines: 1, Size: 7, NextOffset: 2}},
		{"crlf", 0, 0, readData{Content: "one\r\ntwo\r\n", Lines: 2, Size: 10}},
		{"empty", 0, 0, readData{}},
		{"./dir/../dir//ünï.txt", 0, 0, readData{Content: "héllo\n\x00\u2028", Lines: 2, Size: 11}},
		{"spaces in name", 0, 0, readData{Content: "x", Lines: 1, Size: 1}},
	} {
		got, out := mustCall[readData](t, w, "read_file", args{"path": c.path, "offset": c.offset, "limit": c.limit})
		c.want.Hash = hashOf(w.get(t, c.path))
		diff := cmp.Diff(c.want, got)
		assert.That(t, diff == "" && !out.Truncated, "%s from %d, %d lines (truncated %v):\n%s", c.path, c.offset,
			c.limit, out.Truncated, diff)
	}
}

func TestReadFileRefuses(t *testing.T) {
	w := newWorkspace(t, 0, map[string]string{"dir/ok": "a\nb\n", "image": "\x89PNG\r\n\x1a\n\x00"})
	mustCall[readData](t, w, "read_file", args{"path": "dir/ok"})
	for _, c := range []struct {
		a     args
		words string
	}{
		{args{"path": ""}, "empty"},
		{args{"path": "dir"}, "folder"},
		{args{"path": "dir/ok/"}, "folder"},
		{args{"path": "."}, "folder"},
		{args{"path": "dir/no"}, "does not exist"},
		{args{"path": "dir/ok/no"}, "not a folder"},
		{args{"path": "image"}, "not UTF-8 text (9 bytes)"},
		{args{"path": "dir/ok", "offset": 4}, "past the end of \"dir/ok\", whose last line is 2"},
		{args{"path": "dir/ok", "offset": -1}, "negative"},
		{args{"path": "dir/ok", "limit": -1}, "negative"},
		{args{"path": "nul\x00"}, "NUL"},
		{args{"path": strings.Repeat("x", 300)}, "name too long"},
		{args{"path": strings.Repeat("x/", 3000)}, "6000 bytes"},
	} {
		w.fails(t, "read_file", c.a, protocol.CodeToolError, c.words)
	}
}

// TestReadFilePages: reading a file page by page returns the whole file, whatever is in it, and no answer is larger
// than allowed.
func TestReadFilePages(t *testing.T) {
	const most = 2 * answerFrame
	w := newWorkspace(t, most, nil)
	property.Check(t, func(r *rapid.T) {
		line := rapid.StringMatching(`([a-zé世\\"\t]|\x01){0,30}\r?`)
		text := strings.Join(rapid.SliceOfN(line, 0, 60).Draw(r, "lines"), "\n")
		w.put(t, "f", text)
		var got strings.Builder
		for offset := int64(1); offset != 0; {
			data, out := mustCall[readData](t, w, "read_file", args{
				"path": "f", "offset": offset,
				"limit": rapid.IntRange(0, 20).Draw(r, "limit"),
			})
			raw, err := json.Marshal(data)
			must.That(r, err == nil && len(raw) <= most, "answer of %d bytes, at most %d are allowed: %v", len(raw),
				most, err)
			must.That(r, (!out.Truncated || data.NextOffset != 0) && (data.NextOffset == 0 ||
				data.NextOffset == offset+data.Lines),
				"line %d: %+v, truncated %v", offset, data, out.Truncated)
			got.WriteString(data.Content)
			offset = data.NextOffset
		}
		must.Equal(r, got.String(), text)
	})
}

func TestReadFileCutsALineThatIsTooLong(t *testing.T) {
	long := strings.Repeat("世", 100_000)
	w := newWorkspace(t, 1000, map[string]string{"more": "first\n" + long + "\nlast\n", "end": long})
	data, out := mustCall[readData](t, w, "read_file", args{"path": "more", "offset": 2})
	if want := long[:(1000-answerFrame)/3*3]; data.Content != want || !out.Truncated || data.NextOffset != 3 ||
		data.Lines != 1 {
		t.Errorf("got %d bytes, %d lines, next %d, truncated %v; want %d bytes, then line 3", len(data.Content),
			data.Lines, data.NextOffset, out.Truncated, len(want))
	}
	data, out = mustCall[readData](t, w, "read_file", args{"path": "end"})
	if data.NextOffset != 0 || !out.Truncated || data.Lines != 1 || data.Size != 300_000 {
		t.Errorf("a cut last line: %d lines, next %d, size %d, truncated %v", data.Lines, data.NextOffset, data.Size,
			out.Truncated)
	}
	if data, _ := mustCall[readData](t, w, "read_file", args{"path": "more", "limit": 1}); data.Content != "first\n" ||
		data.NextOffset != 2 {
		t.Errorf("before the long line: %+v", data)
	}
}

func TestWriteFile(t *testing.T) {
	w := newWorkspace(t, 0, map[string]string{"script": "old", "dir/x": "x"})
	must.OK(t, os.Chmod(filepath.Join(w.dir, "script"), 0o750))
	for _, c := range []struct {
		path, content string
		created       bool
	}{
		{"script", "#!/bin/sh\n", false},
		{"a/b/../b/c.txt", "new in new folders", true},
		{"a/b/c.txt", "", false},
		{"dir/new", "nul \x00 and 世", true},
		{"~", "a name like others", true},
		{`..\up`, "a name like others", true},
		{"%2e%2e", "a name like others", true},
	} {
		short := filepath.Clean(c.path)
		got, _ := mustCall[writeData](t, w, "write_file", args{"path": c.path, "content": c.content})
		want := (writeData{Path: short, Size: len(c.content), Created: c.created, Hash: hashOf(c.content)})
		assert.That(t, got == want, "%s: got %+v, want %+v", c.path, got, want)
		assert.Equal(t, w.get(t, short), c.content, "%s holds", c.path)
	}
	info, err := os.Stat(filepath.Join(w.dir, "script"))
	if err != nil || info.Mode().Perm() != 0o750 {
		t.Errorf("the mode became %v, %v", info.Mode(), err)
	}
	w.fails(t, "write_file", args{"path": "dir", "content": ""}, protocol.CodeToolError, "folder")
	w.fails(t, "write_file", args{"path": "dir/", "content": ""}, protocol.CodeToolError, "folder")
	w.fails(t, "write_file", args{"path": "script/x", "content": ""}, protocol.CodeToolError, "not a folder")
	left := leftOver(t, w.dir)
	assert.That(t, left == nil, "left behind: %v", left)
}

// TestWriteFileReplacesInOneStep: a reader that opened a file before it is replaced still reads the whole old content.
func TestWriteFileReplacesInOneStep(t *testing.T) {
	w := newWorkspace(t, 0, map[string]string{"f": "old text"})
	for _, c := range []struct {
		tool string
		args args
	}{
		{"write_file", args{"path": "f", "content": "new text"}},
		{"edit_file", args{"path": "f", "old": "text", "new": "words"}},
	} {
		before := w.get(t, "f")
		reader := must.Get(os.Open(filepath.Join(w.dir, "f")))(t)
		if _, err := w.call(t, t.Context(), c.tool, c.args); err != nil || w.get(t, "f") == before {
			t.Fatalf("%s: the file holds %q, %v", c.tool, w.get(t, "f"), err)
		}
		text, err := io.ReadAll(reader)
		assert.That(t, err == nil && string(text) == before, "%s: a reader from before gets %q, %v; want %q", c.tool,
			text, err, before)
		must.OK(t, reader.Close())
	}
}

// TestWriteFileCancelled: a write that is cancelled leaves the old content, and no other file.
func TestWriteFileCancelled(t *testing.T) {
	w := newWorkspace(t, 0, map[string]string{"f": "old"})
	dir, base, err := w.files.parent("f", false)
	must.OK(t, err)
	defer dir.Close()
	old := must.Get(w.files.target(dir, base, base, false))(t)
	defer old.Close()
	ctx, cancel := context.WithCancel(t.Context())
	if err := swap.Replace(dir, base, old, "new", ctx.Err); err != nil || w.get(t, "f") != "new" {
		t.Fatalf("not cancelled: %v, %q", err, w.get(t, "f"))
	}
	cancel()
	assert.Is(t, swap.Replace(dir, base, old, "newer", ctx.Err), context.Canceled, "cancelled")
	assert.Equal(t, w.get(t, "f"), "new", "the file holds")
	left := leftOver(t, w.dir)
	assert.That(t, left == nil, "left behind: %v", left)
	if _, err := w.call(t, ctx, "write_file", args{"path": "f", "content": "x"}); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled call: %v", err)
	}
}

func TestEditFile(t *testing.T) {
	for _, c := range []struct {
		text, old, new string
		all            bool
		want           string
		n              int
	}{
		{"a b c", "b", "x", false, "a x c", 1},
		{"a b c", " b", "", false, "a c", 1},
		{"b b b", "b", "x", true, "x x x", 3},
		{"no end", "end", "END\nmore", false, "no END\nmore", 1},
		{"a\r\nb\r\n", "a\nb", "x\ny\nz", false, "x\r\ny\r\nz\r\n", 1},
		{"a\r\nb\r\n", "a\r\nb", "x\r\ny", false, "x\r\ny\r\n", 1},
		{"a\r\nb\nc", "b\nc", "x", false, "a\r\nx", 1}, // mixed line ends stay as they are
		{"a\nb\r\nc\r\n", "b\nc", "x\ny", false, "a\nx\r\ny\r\n", 1},
		{"\ufeffa", "a", "b", false, "\ufeffb", 1},
		{"$1 \\1", "$1", "${2}", false, "${2} \\1", 1},
	} {
		w := newWorkspace(t, 0, map[string]string{"f": c.text})
		got, _ := mustCall[editData](t, w, "edit_file", args{"path": "f", "old": c.old, "new": c.new, "all": c.all})
		if text := w.get(t, "f"); text != c.want || got != (editData{"f", c.n, len(c.want), hashOf(c.want)}) {
			t.Errorf("%q: %q for %q gives %q, %+v; want %q", c.text, c.new, c.old, text, got, c.want)
		}
	}
}

func TestEditFileRefuses(t *testing.T) {
	text := map[string]string{"f": "a b a\n", "aaa": "aaa", "latin": "caf\xe9", "dir/x": "", "crlf": "a\r\nb\r\n"}
	w := newWorkspace(t, 0, text)
	for _, c := range []struct {
		a     args
		words string
	}{
		{args{"path": "f", "old": "", "new": "x"}, "old is empty"},
		{args{"path": "f", "old": "a", "new": "a"}, "the same"},
		{args{"path": "f", "old": "a", "new": "x"}, "occurs 2 times"},
		{args{"path": "aaa", "old": "aa", "new": "x"}, "occurs 2 times"},
		{args{"path": "f", "old": "c", "new": "x"}, "not found"},
		{args{"path": "f", "old": "c", "new": "x", "all": true}, "not found"},
		{args{"path": "latin", "old": "caf", "new": "x"}, "not UTF-8"},
		{args{"path": "crlf", "old": "a\nb", "new": "a\r\nb"}, "differ only in line breaks"},
		{args{"path": "none", "old": "a", "new": "x"}, "does not exist"},
		{args{"path": "none/f", "old": "a", "new": "x"}, "does not exist"},
		{args{"path": "dir", "old": "a", "new": "x"}, "folder"},
	} {
		w.fails(t, "edit_file", c.a, protocol.CodeToolError, c.words)
	}
	for name, want := range text {
		assert.Equal(t, w.get(t, name), want, "%s changed to", name)
	}
	_, err := os.Stat(filepath.Join(w.dir, "none"))
	assert.That(t, err != nil, "edit_file made a folder")
}

func TestEditsAtTheSameTimeAreAllKept(t *testing.T) {
	w := newWorkspace(t, 0, map[string]string{"f": "END"})
	var wait sync.WaitGroup
	for i := range 40 {
		wait.Go(func() {
			_, err := w.call(t, t.Context(), "edit_file", args{
				"path": "f", "old": "END",
				"new": fmt.Sprintf("<%d>END", i),
			})
			assert.That(t, err == nil, "%v", err)
		})
	}
	wait.Wait()
	for i := range 40 {
		assert.Contains(t, w.get(t, "f"), fmt.Sprintf("<%d>", i), "edit %d is lost", i)
	}
}

// TestChangesWaitForTheLockOfTheFolder: a change waits while another host, or another set of tools, holds the lock of
// the file's folder.
func TestChangesWaitForTheLockOfTheFolder(t *testing.T) {
	w := newWorkspace(t, 0, map[string]string{"dir/f": "text"})
	dir := must.Get(w.files.root.OpenRoot("dir"))(t)
	defer dir.Close()
	unlock := must.Get(swap.Lock(t.Context(), dir))(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	for tool, a := range map[string]args{
		"write_file": {"path": "dir/f", "content": "x"},
		"edit_file":  {"path": "dir/f", "old": "t", "new": "x", "all": true},
	} {
		_, err := w.call(t, ctx, tool, a)
		assert.Is(t, err, context.DeadlineExceeded, "%s in a locked folder", tool)
	}
	mustCall[writeData](t, w, "write_file", args{"path": "f", "content": "another folder"})
	assert.Equal(t, w.get(t, "dir/f"), "text")
	unlock()
	mustCall[writeData](t, w, "write_file", args{"path": "dir/f", "content": "x"})
	assert.That(t, leftOver(t, w.dir) == nil, "left behind: %v", leftOver(t, w.dir))
}

// TestIfUnchanged: a change with if_unchanged is refused if the file's content has changed since it was read. Nothing
// is lost.
func TestIfUnchanged(t *testing.T) {
	w := newWorkspace(t, 0, map[string]string{"f": "text\n", "big": strings.Repeat("line\n", 100_000)})
	for _, name := range []string{"f", "big"} {
		page, _ := mustCall[readData](t, w, "read_file", args{"path": name, "limit": 1})
		assert.Equal(t, page.Hash, hashOf(w.get(t, name)), "the hash is that of all of %s", name)
	}
	read, _ := mustCall[readData](t, w, "read_file", args{"path": "f"})
	edit, _ := mustCall[editData](t, w, "edit_file",
		args{"path": "f", "old": "text", "new": "edited", "if_unchanged": strings.ToUpper(read.Hash)})
	write, _ := mustCall[writeData](t, w, "write_file",
		args{"path": "f", "content": "text\n", "if_unchanged": edit.Hash})
	assert.Equal(t, write.Hash, read.Hash, "the same content")
	for _, c := range []struct {
		hash any
		path string
		want string
	}{
		{edit.Hash, "f", "has changed since it was read, and nothing was written; read it again"},
		{read.Hash, "gone", "does not exist"},
		{"", "f", "is not a hash"},
		{read.Hash[1:], "f", "is not a hash"},
		{"sha256:" + read.Hash, "f", "is not a hash"},
	} {
		write := args{"path": c.path, "content": "lost", "if_unchanged": c.hash}
		w.fails(t, "write_file", write, protocol.CodeToolError, c.want)
		edit := args{"path": c.path, "old": "t", "new": "x", "all": true, "if_unchanged": c.hash}
		w.fails(t, "edit_file", edit, protocol.CodeToolError, c.want)
	}
	assert.Equal(t, w.get(t, "f"), "text\n", "refused changes left")
	_, err := os.Lstat(filepath.Join(w.dir, "gone"))
	assert.Is(t, err, fs.ErrNotExist)
}

// TestEditSeesOtherWriters: an edit notices what another process writes between the edit's read and its write, so that
// this is not lost.
func TestEditSeesOtherWriters(t *testing.T) {
	w := newWorkspace(t, 0, map[string]string{"f": "text"})
	info := must.Get(w.files.root.Stat("f"))(t)
	must.OK(t, unchanged(w.files.root, "f", info))
	w.put(t, "f", "longer text")
	assert.Fails(t, unchanged(w.files.root, "f", info), "", "written in place, and not seen")
	w.put(t, "f", "text")
	w.put(t, "g", "text")
	must.OK(t, os.Chtimes(filepath.Join(w.dir, "g"), info.ModTime(), info.ModTime()))
	must.OK(t, os.Chtimes(filepath.Join(w.dir, "f"), info.ModTime(), info.ModTime()))
	must.OK(t, unchanged(w.files.root, "f", info))
	must.OK(t, os.Rename(filepath.Join(w.dir, "g"), filepath.Join(w.dir, "f")))
	assert.Fails(t, unchanged(w.files.root, "f", info), "", "replaced, and not seen")
}
