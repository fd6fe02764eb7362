package tools

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"unicode/utf8"

	"a2e/host"
	"a2e/host/guard/private"
	"a2e/host/guard/redact"
	"a2e/host/guard/wall"
	"a2e/host/sandbox"
	"a2e/protocol"
)

// The file tools keep to five rules:
//
//   - Every open goes through os.Root, so no path and no race leads outside the
//     workspace. `..` is resolved in the text of the path, before anything is opened.
//   - Links on the path that a read names are followed when they stay inside. Walks
//     (glob, grep) follow no link, and writes go through no link at all.
//   - Only regular files with a single name are opened: a second name (hard link)
//     may lie outside. Pipes, sockets, devices and the kernel's own file systems
//     are refused, without waiting for their other end.
//   - A write replaces the old file in one step, or not at all.
//   - The host's own files (see package wall) are neither listed nor opened. Where
//     some lie in the folder, links are followed step by step.
//
// The tools that read do the same below a URI such as skill://NAME, in files of
// another plugin.
type files struct {
	root    *os.Root
	folder  *wall.Folder  // the folder of root; nil = root does not change
	place   string        // name of root in messages
	prefix  string        // of the paths in root as the agent writes them: "" = the workspace, else "skill://NAME/"
	room    int           // bytes of JSON that the text of one answer may take
	escapes error         // error of os.Root for a path that leads outside
	device  uint64        // the device of the workspace; valid if plain is set
	plain   bool          // the workspace itself is not on a kernel file system
	editing chan struct{} // holds one token while a file is replaced
	wall    *wall.Wall    // around the host's own files
	guard   *wall.Guard   // the part of wall that lies in root

	services func() *host.Services // returns nil before the plugin is started
	secrets  *redact.Set           // masked in all answers
}

const (
	maxPathBytes  = 4096
	maxShownBytes = 200 // of a path in an error message
	answerFrame   = 256 // bytes of an answer reserved for the JSON around its text
)

// newFiles makes the file tools of one folder. The data of an answer takes at
// most maxOutput bytes of JSON (0 = 1 MiB). The caller closes root. w protects the host's
// own files; nil = there are none.
func newFiles(root *os.Root, maxOutput int, w *wall.Wall, services func() *host.Services) *files {
	if maxOutput <= 0 {
		maxOutput = defaultMaxOutput
	}
	f := &files{
		root: root, place: "the workspace", room: max(maxOutput-answerFrame, answerFrame),
		editing: make(chan struct{}, 1), wall: w, guard: w.In(root), services: services,
	}
	_, err := root.Lstat("..")
	f.escapes = errors.Unwrap(err)
	if info, err := root.Stat("."); err == nil && checkFileSystem(root) == nil {
		f.device, f.plain = deviceOf(info)
	}
	return f
}

// FileTools returns the built-in file tools for the folder root, which the caller closes
// after the last call. The data of an answer takes at most maxOutputBytes of
// JSON (0 = 1 MiB). Messages call the folder "the workspace". w protects the host's own
// files; nil = there are none. services returns where to find the files of other plugins.
func FileTools(root *os.Root, maxOutputBytes int, w *wall.Wall, services func() *host.Services) []Tool {
	all := newFiles(root, maxOutputBytes, w, services).tools()
	for i := range all {
		all[i].quick = false // the caller may wrap the tool in something slow
	}
	return all
}

// clean checks a path of the agent and returns its shortest form, with
// slashes: "." is the workspace itself.
func (f *files) clean(name string) (string, error) {
	switch {
	case name == "":
		return "", protocol.Errorf(protocol.CodeToolError,
			`the path is empty; give one relative to the workspace, such as "src/main.go"`)
	case strings.ContainsRune(name, 0):
		return "", protocol.Errorf(protocol.CodeToolError, "the path has a NUL character in it; no file name may "+
			"have one")
	case len(name) > maxPathBytes:
		return "", protocol.Errorf(protocol.CodeToolError, "the path has %d bytes; at most %d are taken", len(name),
			maxPathBytes)
	case filepath.IsAbs(name) || os.IsPathSeparator(name[0]):
		return f.inside("path", name)
	}
	short := path.Clean(filepath.ToSlash(name))
	if !filepath.IsLocal(filepath.FromSlash(short)) {
		return "", f.explain(name, errOutside)
	}
	return f.spelled(short), nil
}

// inside turns an absolute path within the folder into a path relative to it. what is the name of the
// argument, for the error.
func (f *files) inside(what, name string) (string, error) {
	if f.prefix != "" {
		return "", protocol.Errorf(protocol.CodeToolDenied, "%s %s is absolute; give it relative to %s", what,
			f.quote(name), f.place)
	}
	short, ok := sandbox.Relative(f.root.Name(), name)
	if !ok {
		return "", protocol.Errorf(protocol.CodeToolDenied, "%s %s is absolute and outside of %s; give it relative "+
			"to %[3]s", what, f.quote(name), f.place)
	}
	return short, nil
}

// cleanWritten is cleanFile for a file that is to be changed.
func (f *files) cleanWritten(name string) (string, error) {
	if _, ok := splitURI(name); ok {
		return "", protocol.Errorf(protocol.CodeToolDenied, "%s is a URI, and what it names can only be read; files "+
			"are written in the workspace, under a path relative to it", quotePath(name))
	}
	return f.cleanFile(name)
}

// cleanFile is clean for a path that has to name a file.
func (f *files) cleanFile(name string) (string, error) {
	short, err := f.clean(name)
	if err == nil && (short == "." || os.IsPathSeparator(name[len(name)-1])) {
		return "", protocol.Errorf(protocol.CodeToolError, "path %s names a folder; this tool takes a file, "+
			"list_dir shows what is in a folder", f.quote(name))
	}
	return short, err
}

// open opens a file for reading. Links on the way are followed when they stay
// inside.
func (f *files) open(name string) (*os.File, fs.FileInfo, error) {
	short, err := f.cleanFile(name)
	if err != nil {
		return nil, nil, err
	}
	dir, base, exact := f.root, short, f.guard.Holds()
	if exact {
		if dir, base, _, err = f.guard.Resolve(short); err != nil {
			return nil, nil, f.explain(name, err)
		}
		defer dir.Close()
	}
	file, info, err := f.openIn(dir, base, os.O_RDONLY, exact)
	return file, info, f.explain(name, err)
}

// stat returns the file info for a clean path. Links are followed when they stay inside.
func (f *files) stat(short string) (fs.FileInfo, error) {
	if !f.guard.Holds() {
		return f.root.Stat(short)
	}
	dir, base, _, err := f.guard.Resolve(short)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return dir.Lstat(base)
}

// openIn opens the regular file name below dir. It checks the file before it opens it, since
// opening a pipe or a device can have an effect, and checks the open file again, since the name
// may lead to another file by then. With exact, it refuses a link and a file that was swapped.
func (f *files) openIn(dir *os.Root, name string, flag int, exact bool) (*os.File, fs.FileInfo, error) {
	look := dir.Stat
	if exact {
		look = dir.Lstat
	}
	before, err := look(name)
	if err == nil {
		err = checkType(before)
	}
	if err != nil {
		return nil, nil, err
	}
	if !exact {
		before = nil
	}
	return f.openSame(dir, name, flag, before)
}

// checkType refuses everything but regular files.
func checkType(info fs.FileInfo) error {
	switch mode := info.Mode(); {
	case mode.IsRegular():
		return nil
	case mode.IsDir():
		return errIsDir
	case mode&fs.ModeSymlink != 0:
		return errIsLink
	}
	return errSpecial
}

// checkFile checks an open file, whatever its name leads to by now.
func (f *files) checkFile(file *os.File) (fs.FileInfo, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if err := checkType(info); err != nil {
		return nil, err
	}
	if n, err := private.HardLinks(file, info); err != nil || n > 1 {
		return nil, errors.Join(errHardLink, err)
	}
	if !f.sameDevice(info) {
		return info, kernelFile(file)
	}
	return info, nil
}

// sameDevice reports whether a file is on the device of the workspace, which is known
// not to be a kernel file system.
func (f *files) sameDevice(info fs.FileInfo) bool {
	device, ok := deviceOf(info)
	return ok && f.plain && device == f.device
}

// openDir opens a folder; short is its clean path. Links on the way are followed when they
// stay inside. If the guard protects files in root, real is the path without links, else "".
func (f *files) openDir(name string) (dir *os.Root, short, real string, err error) {
	if short, err = f.clean(name); err != nil {
		return nil, "", "", err
	}
	if f.guard.Holds() {
		dir, real, err = f.guard.OpenDir(short)
	} else {
		dir, err = f.root.OpenRoot(wall.AsDir(short))
	}
	if err != nil {
		return nil, "", "", err
	}
	if err := f.checkDir(dir); err != nil {
		return nil, "", "", errors.Join(err, dir.Close())
	}
	return dir, short, real, nil
}

// checkDir refuses the folders of a kernel file system.
func (f *files) checkDir(dir *os.Root) error {
	info, err := dir.Stat(".")
	if err != nil || f.sameDevice(info) {
		return err
	}
	return checkFileSystem(dir)
}

// enter opens the folder name in dir. It refuses a link, also one that
// replaces the folder meanwhile.
func (f *files) enter(dir *os.Root, name string) (*os.Root, error) {
	before, err := dir.Lstat(name)
	switch {
	case err != nil:
		return nil, err
	case before.Mode()&fs.ModeSymlink != 0:
		return nil, errIsLink
	case !before.IsDir():
		return nil, errNotDir
	}
	sub, err := dir.OpenRoot(wall.AsDir(name))
	if err != nil {
		return nil, err
	}
	after, err := sub.Stat(".")
	switch {
	case err != nil:
	case !os.SameFile(before, after):
		err = errSwapped
	case f.guard.Hides("", after):
		err = wall.ErrOwn
	case !f.sameDevice(after):
		err = checkFileSystem(sub)
	}
	if err != nil {
		return nil, errors.Join(err, sub.Close())
	}
	return sub, nil
}

// checkFileSystem refuses a folder of a kernel file system.
func checkFileSystem(dir *os.Root) error {
	file, err := dir.OpenFile(".", os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	return errors.Join(kernelFile(file), file.Close())
}

type readArgs struct {
	Path   string `json:"path" need:"File to read, relative to the workspace, such as src/main.go; skill://NAME/FILE is a file that comes with a skill."`
	Offset int64  `json:"offset" may:"First line to read, counted from 1 (default 1)."`
	Limit  int64  `json:"limit" may:"How many lines to read at most (default: as many as fit into an answer)."`
}

type readData struct {
	Content    string `json:"content" need:"The text of the lines read."`
	Lines      int64  `json:"lines" need:"How many lines content has."` // a last line without a line end counts
	Size       int64  `json:"size" need:"Size of the whole file in bytes."`
	NextOffset int64  `json:"next_offset,omitempty" may:"The line to go on with; missing when content reaches the end of the file."`
	Hash       string `json:"hash,omitempty" may:"SHA-256 of the whole file, up to 64 MiB, for if_unchanged."`
}

func (f *files) readFile(ctx context.Context, a *readArgs) (*Outcome, error) {
	if a.Offset < 0 || a.Limit < 0 {
		return nil, protocol.Errorf(protocol.CodeToolError, "offset and limit count lines, from 1; they may not be "+
			"negative (offset %d, limit %d)", a.Offset, a.Limit)
	}
	return f.reading(ctx, a.Path, func(in *files, name string) (*Outcome, error) {
		file, info, err := in.open(name)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		hash := sha256.New()
		all := io.TeeReader(file, hash)
		room := min(max(info.Size(), 0), 64<<10)
		r := &lineReader{ctx: ctx, r: bufio.NewReaderSize(all, 64<<10), line: 1, text: make([]byte, 0, room)}
		first := max(a.Offset, 1)
		if err := r.skipTo(first); err != nil {
			return nil, err
		}
		if r.line < first {
			return nil, protocol.Errorf(protocol.CodeToolError, "offset %d is past the end of %s, whose last line "+
				"is %d", a.Offset, quotePath(a.Path), r.last())
		}
		if err := r.read(cmp.Or(a.Limit, math.MaxInt64), in.room); err != nil {
			return nil, err
		}
		if r.cutLine {
			r.text = in.secrets.TrimBegun(r.text)
		}
		if !utf8.Valid(r.text) {
			return nil, protocol.Errorf(protocol.CodeToolError,
				"%s is not UTF-8 text (%d bytes); read_file gives text only: use a command that fits the format, "+
					"such as file, xxd or base64", quotePath(a.Path), info.Size())
		}
		sum := ""
		if in.prefix == "" && info.Size() <= maxEditBytes { // files of a URI cannot be written
			if _, err := copyUntil(ctx, io.Discard, io.LimitReader(all, maxEditBytes)); err != nil {
				return nil, err
			}
			sum = hex.EncodeToString(hash.Sum(nil))
		}
		return r.outcome(first, info.Size(), sum), nil
	})
}
