package spill

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"a2e/host"
	"a2e/host/guard/redact"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/property"
	"a2e/protocol"
)

// spilled writes a file through k and returns its path.
func spilled(t testing.TB, k *Keeper, what, text string) string {
	t.Helper()
	return must.Get(k.Keep(t.Context(), what, []byte(text)))(t).Path()
}

// own returns the folder for calls without a session.
func (k *Keeper) own() string { return filepath.Join(k.dir, "none") }

func names(t testing.TB, dir string) []string {
	t.Helper()
	entries := must.Get(os.ReadDir(dir))(t)
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func TestNamesStayInTheFolder(t *testing.T) {
	k := New(t.TempDir(), nil)
	long := strings.Repeat("x", 500)
	for _, what := range []string{"plain", "../../up", "a/b", "", "nul\x00", long, "größe", `c:\x`} {
		path := spilled(t, k, what, "x")
		assert.That(t, filepath.Dir(path) == k.own() && isName(filepath.Base(path)), "%.20q: file %s", what, path)
	}
	assert.Equal(t, len(names(t, k.own())), 8, "… files, want 8")
}

func TestTheOldestGoFirst(t *testing.T) {
	for kept, bound := range map[int]func(*Keeper){
		3: func(k *Keeper) { k.maxFiles = 3 },
		4: func(k *Keeper) { k.maxBytes = 400 },
	} {
		k := New(t.TempDir(), nil)
		bound(k)
		var paths []string
		for range 6 {
			paths = append(paths, filepath.Base(spilled(t, k, "tool", strings.Repeat("x", 100))))
		}
		got := names(t, k.own())
		assert.Equal(t, strings.Join(got, " "), strings.Join(paths[6-kept:], " "), "of %v the last %d", paths, kept)
	}
}

// TestOnlyItsOwnFilesGo: a Keeper removes only files that a Keeper made: those that are too old, beyond its bounds,
// or made by an older version of the host. It also removes session folders that have become empty.
func TestOnlyItsOwnFilesGo(t *testing.T) {
	k := New(t.TempDir(), nil)
	k.maxFiles = 1
	old := spilled(t, k, "tool", "old")
	other := filepath.Join(k.dir, "other")
	must.OK(t, os.Mkdir(other, 0o700))
	aged := filepath.Join(other, filepath.Base(old))
	legacy := filepath.Join(k.dir, filepath.Base(old))
	for _, path := range []string{aged, legacy} {
		must.OK(t, os.WriteFile(path, nil, 0o600))
	}
	must.OK(t, os.Chtimes(aged, time.Time{}, time.Now().Add(-maxAge-time.Hour)))
	const id = "000000-0000-7000-8000-000000000000"
	for _, name := range []string{"notes.txt", "x.spill", "00" + id + ".spill", "zz" + id + "-a.spill"} {
		must.OK(t, os.WriteFile(filepath.Join(k.own(), name), []byte("mine"), 0o600))
	}
	held := must.Get(k.Create(t.Context(), "tool"))(t)
	last := spilled(t, k, "tool", "new")
	for _, path := range []string{old, aged, legacy, other} {
		_, err := os.Stat(path)
		assert.That(t, os.IsNotExist(err), "%s is still there", path)
	}
	for _, path := range []string{held.Path(), last} {
		_, err := os.Stat(path)
		assert.That(t, err == nil, "removed too much: %v", err)
	}
	must.OK(t, held.Close())
	if got := len(names(t, k.own())); got != 5 {
		t.Errorf("%d files, want the 4 of others and the newest: %v", got, names(t, k.own()))
	}
}

func TestOneFileIsBounded(t *testing.T) {
	k := New(t.TempDir(), nil)
	k.maxBytes = 400
	part := strings.Repeat("1234567890", 4)
	f := must.Get(k.Create(t.Context(), "tool"))(t)
	for range 3 {
		n, err := io.WriteString(f, part)
		must.That(t, n == len(part) && err == nil, "wrote %d, %v", n, err)
	}
	must.OK(t, f.Close())
	b, err := os.ReadFile(f.Path())
	want := (part + part + part)[:100] + "\n[20 more bytes were not kept]\n"
	assert.That(t, err == nil && string(b) == want, "file holds %q, %v", b, err)
}

func TestNoFileHasASecret(t *testing.T) {
	secrets := redact.New(nil)
	secrets.AddSecret("sesame-open")
	f := must.Get(New(t.TempDir(), secrets).Create(t.Context(), "tool"))(t)
	for _, part := range []string{"say sesame", "-open now\n", "end"} {
		must.Get(io.WriteString(f, part))(t)
	}
	must.OK(t, f.Close())
	assert.Equal(t, string(must.Get(os.ReadFile(f.Path()))(t)), "say [redacted] now\nend")
}

func TestWithoutAFolder(t *testing.T) {
	_, err := New("", nil).Create(t.Context(), "tool")
	assert.That(t, err != nil, "no folder is set, yet a file was made")
	file := filepath.Join(t.TempDir(), "file")
	must.OK(t, os.WriteFile(file, nil, 0o600))
	_, err = New(file, nil).Create(t.Context(), "tool")
	assert.That(t, err != nil, "the folder cannot be made, yet a file was")
}

// TestWallSpillsTogether: all files that are written at the same time take together no more than maxBytes, however
// many there are.
func TestWallSpillsTogether(t *testing.T) {
	k := New(t.TempDir(), nil)
	k.maxBytes = 40_000
	var open []*File
	for range 30 {
		f := must.Get(k.Create(t.Context(), "tool"))(t)
		if n, err := f.Write(make([]byte, 20_000)); n != 20_000 || err != nil {
			t.Fatalf("%d, %v", n, err)
		}
		open = append(open, f)
	}
	total := func() (sum int64) {
		for _, name := range names(t, k.own()) {
			info := must.Get(os.Stat(filepath.Join(k.own(), name)))(t)
			sum += info.Size()
		}
		return sum
	}
	assert.Equal(t, total(), k.maxBytes, "… bytes while they are written")
	for _, f := range open {
		assert.OK(t, f.Close())
	}
	got := total()
	assert.That(t, got <= k.maxBytes && k.held == 0, "%d bytes in the end, %d held", got, k.held)
	text, err := os.ReadFile(spilled(t, k, "tool", strings.Repeat("x", 10_000)))
	assert.That(t, err == nil && len(text) == 10_000, "after it: %d bytes, %v", len(text), err)
}

// TestASessionHasItsOwnFiles: a session can open its own files, and no files of other sessions.
func TestASessionHasItsOwnFiles(t *testing.T) {
	k := New(t.TempDir(), nil)
	in := func(id string) context.Context { return host.InSession(t.Context(), &host.Session{ID: id}) }
	for _, id := range []string{"one", "../two"} {
		f := must.Get(k.Keep(in(id), "tool", []byte("of "+id)))(t)
		name := strings.TrimPrefix(f.URI(), "spill:///")
		root := must.Get(k.OpenFiles(in(id), ""))(t)
		text, err := root.ReadFile(name)
		assert.That(t, err == nil && string(text) == "of "+id, "%s: %q, %v", id, text, err)
		must.OK(t, root.Close())
		other := must.Get(k.OpenFiles(in("other"), ""))(t)
		_, err = other.ReadFile(name)
		assert.That(t, os.IsNotExist(err), "another session reads it: %v", err)
		must.OK(t, other.Close())
	}
	_, err := k.OpenFiles(t.Context(), "name")
	assert.Fails(t, err, "write spill:///NAME, with three slashes")
}

var missingLine = regexp.MustCompile(`(?m)^\[(\d+) bytes are missing here; all of it is in (spill:///\S+)\]\n`)

// TestOutputKeepsBothEnds: output that fits is returned unchanged, whatever the streams and pieces. Otherwise the
// text has the exact beginning and end, stays within its room, and says how many bytes are missing; the file has all
// of the output, in order.
func TestOutputKeepsBothEnds(t *testing.T) {
	k := New(t.TempDir(), nil)
	piece := rapid.OneOf(rapid.String(), rapid.StringMatching(`([a-zé世"\\]{0,30}\n){0,8}`),
		rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }))
	property.Check(t, func(r *rapid.T) {
		room := rapid.IntRange(600, 2000).Draw(r, "room")
		c := NewCapture(t.Context(), k, "tool", room)
		streams := []*Stream{c.Stream(), c.Stream()}
		var each [2]bytes.Buffer
		var all bytes.Buffer
		for _, p := range rapid.SliceOfN(piece, 0, 60).Draw(r, "pieces") {
			i := rapid.IntRange(0, 1).Draw(r, "stream")
			_, _ = streams[i].Write([]byte(p))
			each[i].WriteString(p)
			all.WriteString(p)
		}
		file, cut := c.Finish()
		must.That(r, cut == (file != nil), "cut %v, file %v", cut, file)
		if cut {
			must.Equal(r, string(must.Get(os.ReadFile(file.Path()))(t)), all.String())
			must.OK(t, os.Remove(file.Path()))
		}
		anyCut, size := false, 0
		for i, s := range streams {
			text, whole := s.Text(), each[i].String()
			must.That(r, utf8.ValidString(text), "%q", text)
			size += len(must.Get(protocol.AppendJSON(nil, text))(t)) - 2
			if text == strings.ToValidUTF8(whole, "\uFFFD") {
				continue
			}
			anyCut = true
			at := missingLine.FindStringSubmatchIndex(text)
			must.That(r, at != nil, "no line says what is missing: %q", text)
			missing := must.Get(strconv.Atoi(text[at[2]:at[3]]))(t)
			must.Equal(r, text[at[4]:at[5]], file.URI())
			head, end := text[:at[0]], text[at[1]:]
			valid := strings.ToValidUTF8
			must.That(r, strings.HasPrefix(valid(whole, "\uFFFD"), strings.TrimSuffix(head, "\n")), "head %q", head)
			must.That(r, strings.HasSuffix(valid(whole, "\uFFFD"), end), "end %q", end)
			if utf8.ValidString(whole) {
				left := len(whole) - len(end) - missing
				must.Equal(r, strings.TrimSuffix(head, "\n"), strings.TrimSuffix(whole[:left], "\n"), "before the mark")
			}
			must.That(r, len(head)+len(end) > room/24, "only %d of %d bytes are given", len(head)+len(end), room)
		}
		must.That(r, anyCut == cut && size <= room, "cut %v, should be %v; %d bytes in %d", cut, anyCut, size, room)
	})
}

func TestTextEndsAtLines(t *testing.T) {
	var long strings.Builder
	for i := range 200 {
		fmt.Fprintf(&long, "line %d\n", i)
	}
	want := "line 0\nline 1\nline 2\nline 3\nline 4\nline 5\nline 6\nline 7\nline 8\nline 9\n" +
		"line 10\nline 11\nline 12\n" +
		"[1533 bytes are missing here]\nline 193\nline 194\nline 195\nline 196\nline 197\nline 198\nline 199\n"
	assert.Equal(t, Shorten(long.String(), 230, ""), want)
	assert.Equal(t, Shorten("short\n", 230, ""), "short\n")
}
