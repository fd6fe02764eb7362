package run

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	expsys "github.com/tetratelabs/wazero/experimental/sys"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// newFolder returns a folder that has a file, a folder and links that lead out, and the path of the folder above it.
func newFolder(t *testing.T, write bool) (*folder, string) {
	t.Helper()
	up := t.TempDir()
	dir := filepath.Join(up, "in")
	for _, err := range []error{
		os.MkdirAll(filepath.Join(dir, "sub"), 0o755), os.WriteFile(filepath.Join(up, "secret"), []byte("geheim"),
			0o600), os.WriteFile(filepath.Join(dir, "file"), []byte("text"), 0o644),
		os.Symlink("../secret", filepath.Join(dir, "out")), os.Symlink("..", filepath.Join(dir, "up")),
		os.Symlink("file", filepath.Join(dir, "link")),
	} {
		must.OK(t, err)
	}
	root := must.Get(os.OpenRoot(dir))(t)
	t.Cleanup(func() { _ = root.Close() })
	return &folder{root: root, write: write, budget: &budget{bytes: 100, files: 5}}, up
}

// errnoFrom returns the Errno of two results.
func errnoFrom[T any](_ T, errno expsys.Errno) expsys.Errno { return errno }

// TestFolderReadOnly: the folder itself refuses writes, even without a sandbox around it.
func TestFolderReadOnly(t *testing.T) {
	d, up := newFolder(t, false)
	for _, flag := range []expsys.Oflag{
		expsys.O_RDWR, expsys.O_WRONLY, expsys.O_CREAT, expsys.O_TRUNC, expsys.O_APPEND,
		expsys.O_RDWR | expsys.O_CREAT | expsys.O_EXCL,
	} {
		_, errno := d.OpenFile("file", flag, 0o600)
		assert.Equal(t, errno, expsys.EROFS, "flag %b", flag)
	}
	for what, errno := range map[string]expsys.Errno{
		"mkdir": d.Mkdir("new", 0o700), "rename": d.Rename("file", "new"), "rmdir": d.Rmdir("sub"),
		"unlink": d.Unlink("file"), "times": d.Utimens("file", 0, 0),
	} {
		assert.Equal(t, errno, expsys.EROFS, "%s", what)
	}
	f, errno := d.OpenFile("file", expsys.O_RDONLY, 0)
	must.Equal(t, errno, 0)
	defer f.Close()
	assert.Equal(t, errnoFrom(f.Write([]byte("x"))), expsys.EBADF)
	assert.Equal(t, errnoFrom(f.Pwrite([]byte("x"), 0)), expsys.EBADF)
	assert.Equal(t, f.Truncate(0), expsys.EBADF)
	assert.Equal(t, f.Utimens(0, 0), expsys.EROFS)
	data, err := os.ReadFile(filepath.Join(up, "in", "file"))
	assert.That(t, err == nil && string(data) == "text", "%q, %v", data, err)
}

// TestFolderStaysInside: no path and no link leads out, whatever the operation.
func TestFolderStaysInside(t *testing.T) {
	d, up := newFolder(t, true)
	for _, name := range []string{
		"out", "up/secret", "../secret", "/../secret", "sub/../../secret", "up/in/../secret",
		"up/new",
	} {
		for _, flag := range []expsys.Oflag{
			expsys.O_RDONLY, expsys.O_RDWR, expsys.O_RDWR | expsys.O_CREAT,
			expsys.O_WRONLY | expsys.O_TRUNC,
		} {
			f, errno := d.OpenFile(name, flag, 0o600)
			assert.That(t, errno != 0, "%s was opened: %v", name, f)
		}
		_, errno := d.Stat(name)
		assert.That(t, errno != 0, "stat %s went well", name)
		if name == "out" {
			continue // the link itself may be moved and removed
		}
		for what, errno := range map[string]expsys.Errno{
			"mkdir": d.Mkdir(name, 0o700), "rename": d.Rename("file", name), "rename from": d.Rename(name, "x"),
			"unlink": d.Unlink(name), "rmdir": d.Rmdir(name),
		} {
			assert.That(t, errno != 0, "%s %s went well", what, name)
		}
	}
	assert.Equal(t, d.Symlink("/etc/passwd", "new"), expsys.EPERM)
	assert.Equal(t, d.Link("file", "new"), expsys.EPERM)
	entries, err := os.ReadDir(up)
	assert.That(t, err == nil && len(entries) == 2, "%v, %v", entries, err)
}

// TestFolder: the allowed operations work.
func TestFolder(t *testing.T) {
	d, _ := newFolder(t, true)
	assert.Equal(t, errnoFrom(d.OpenFile("link", expsys.O_RDONLY|expsys.O_NOFOLLOW, 0)), expsys.ELOOP)
	assert.Equal(t, errnoFrom(d.OpenFile("file", expsys.O_RDONLY|expsys.O_DIRECTORY, 0)), expsys.ENOTDIR)
	assert.Equal(t, errnoFrom(d.OpenFile("file/", expsys.O_RDONLY, 0)), expsys.ENOTDIR, "a file is not a folder")
	dir, errno := d.OpenFile("", expsys.O_RDONLY|expsys.O_DIRECTORY, 0)
	must.Equal(t, errno, 0)
	for range 2 { // a folder can be read again from its beginning
		all, errno := dir.Readdir(-1)
		var names []string
		for _, e := range all {
			names = append(names, e.Name)
		}
		slices.Sort(names)
		assert.That(t, errno == 0 && slices.Equal(names, []string{"file", "link", "out", "sub", "up"}), "%v, %v", names,
			errno)
		assert.Equal(t, errnoFrom(dir.Seek(0, 0)), 0)
	}
	_ = dir.Close()
	f, errno := d.OpenFile("new", expsys.O_RDWR|expsys.O_CREAT, 0o600)
	must.Equal(t, errno, 0)
	defer f.Close()
	if n, errno := f.Write([]byte("hello")); n != 5 || errno != 0 {
		t.Error(n, errno)
	}
	if errno := f.SetAppend(true); errno != 0 || !f.IsAppend() {
		t.Error(errno)
	}
	_, _ = f.Seek(0, 0)
	if n, errno := f.Write([]byte(" you")); n != 4 || errno != 0 {
		t.Error(n, errno)
	}
	if n, errno := f.Pwrite([]byte("J"), 0); n != 1 || errno != 0 {
		t.Error(n, errno)
	}
	buf := make([]byte, 20)
	if n, errno := f.Pread(buf, 0); errno != 0 || string(buf[:n]) != "Jello you" {
		t.Errorf("%q, %v", buf[:n], errno)
	}
	assert.Equal(t, f.Truncate(2), 0)
	if st, errno := d.Stat("new"); errno != 0 || st.Size != 2 {
		t.Error(st, errno)
	}
	assert.Equal(t, f.Truncate(moduleFile+1), expsys.EINVAL)
	assert.Equal(t, errnoFrom(f.Write(make([]byte, 100))), expsys.EIO, "more than the budget")
	for i := range 6 {
		// One of the five is used for new.
		errno := d.Mkdir("sub/"+string(rune('a'+i)), 0o700)
		assert.That(t, (errno == 0) == (i < 4), "folder %d: %v", i, errno)
	}
	assert.Equal(t, d.Utimens("new", 1_000_000_000, expsys.UTIME_OMIT), 0)
	assert.Equal(t, d.Unlink("sub"), expsys.EISDIR)
	assert.Equal(t, d.Rmdir("file"), expsys.ENOTDIR)
	if text, errno := d.Readlink("link"); text != "file" || errno != 0 {
		t.Error(text, errno)
	}
}

// The functions below encode just enough of WebAssembly to write hostile modules by hand.

// leb encodes an unsigned number.
func leb(n uint64) []byte {
	var out []byte
	for {
		b := byte(n & 0x7f)
		if n >>= 7; n == 0 {
			return append(out, b)
		}
		out = append(out, b|0x80)
	}
}

// vec encodes a list: the number of its parts, and the parts.
func vec(parts ...[]byte) []byte { return append(leb(uint64(len(parts))), slices.Concat(parts...)...) }

// sized encodes bytes with their number in front.
func sized(b []byte) []byte { return append(leb(uint64(len(b))), b...) }

func name(s string) []byte { return sized([]byte(s)) }

func section(id byte, content []byte) []byte { return append([]byte{id}, sized(content)...) }

// asm is a module under construction. Type 0 is func(), 1 is func(i32), 2 is
// func(i32,i32,i32,i32) i32.
type asm struct {
	imports [][]byte
	table   []byte // limits
	memory  []byte // limits
	start   []byte // body of the start function
	locals  []byte // locals of _start; nil = none
	body    []byte // of _start
	more    [][]byte
	data    []byte
	bare    bool // without _start
}

// wasi returns an import of a function of WASI.
func wasi(function string, typ byte) []byte {
	return slices.Concat(name("wasi_snapshot_preview1"), name(function), []byte{0, typ})
}

// code encodes the body of a function with its locals.
func code(locals, body []byte) []byte {
	if locals == nil {
		locals = []byte{0}
	}
	return sized(slices.Concat(locals, body, []byte{0x0b}))
}

// bytes returns the binary module. _start is the first function after the imports.
func (a *asm) bytes() []byte {
	main := uint64(len(a.imports))
	types := vec([]byte{0x60, 0, 0}, []byte{0x60, 1, 0x7f, 0}, []byte{0x60, 4, 0x7f, 0x7f, 0x7f, 0x7f, 1, 0x7f})
	functions, codes := [][]byte{{0}}, [][]byte{code(a.locals, a.body)}
	if a.start != nil {
		functions, codes = append(functions, []byte{0}), append(codes, code(nil, a.start))
	}
	for _, body := range a.more {
		functions, codes = append(functions, []byte{0}), append(codes, code(nil, body))
	}
	out := slices.Concat([]byte("\x00asm\x01\x00\x00\x00"), section(1, types))
	if len(a.imports) > 0 {
		out = append(out, section(2, vec(a.imports...))...)
	}
	out = append(out, section(3, vec(functions...))...)
	if a.table != nil {
		out = append(out, section(4, vec(append([]byte{0x70}, a.table...)))...)
	}
	if a.memory == nil {
		a.memory = []byte{0, 1}
	}
	out = append(out, section(5, vec(a.memory))...)
	exports := [][]byte{append(name("memory"), 2, 0)}
	if !a.bare {
		exports = append(exports, slices.Concat(name("_start"), []byte{0}, leb(main)))
	}
	out = append(out, section(7, vec(exports...))...)
	if a.start != nil {
		out = append(out, section(8, leb(main+1))...)
	}
	out = append(out, section(10, vec(codes...))...)
	if a.data != nil {
		out = append(out, section(11, vec(a.data))...)
	}
	return out
}

// Instructions.
var (
	unreachable = []byte{0x00}
	drop        = []byte{0x1a}
)

// i32 returns the instruction i32.const. Its number is encoded as signed.
func i32(n int32) []byte {
	out := []byte{0x41}
	for {
		b := byte(n & 0x7f)
		n >>= 7
		if n == 0 && b&0x40 == 0 || n == -1 && b&0x40 != 0 {
			return append(out, b)
		}
		out = append(out, b|0x80)
	}
}

func call(f uint64) []byte { return append([]byte{0x10}, leb(f)...) }

// forever returns a loop that repeats a body without end.
func forever(body ...[]byte) []byte {
	return slices.Concat([]byte{0x03, 0x40}, slices.Concat(body...), []byte{0x0c, 0x00, 0x0b})
}

// grow returns memory.grow by a number of pages, and drops the result.
func grow(pages int32) []byte { return slices.Concat(i32(pages), []byte{0x40, 0x00}, drop) }
