package skill

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"a2e/host/guard/wall"
	"a2e/protocol"
)

// bounds has the limits of one root. If a limit is exceeded, the walk ignores the rest and adds a problem.
type bounds struct {
	folders int // folders looked at
	names   int // names read in the folders
	skills  int // good and broken skills of the root; also the limit of good skills of all roots
	bytes   int // of all SKILL.md and their schemas
}

const (
	maxLevels     = 4       // folders between a root and a skill
	maxSkillBytes = 1 << 20 // of one SKILL.md
	entriesAtOnce = 1024
)

// skill is a skill without problems. It can be listed, and its status says whether it can be called. It
// does not change.
type skill struct {
	*front
	body string
	root *root
	rel  string // the folder below the root, "." = the root itself
	dir  string // absolute
	doc  string // the name of its SKILL.md in dir
	size int    // bytes of the SKILL.md without the body, and of its schemas

	edited bool // the body is an override, which an agent may have made
}

// found is a SKILL.md that a walk has found, good or broken.
type found struct {
	diagnostics
	show   string // its path for messages
	folder string // the name of its folder
	name   string // of the skill; that of its folder if the front matter has no valid name
	skill  *skill // nil = it is broken
}

// watched is a path; if it changes, the root has to be walked again.
type watched struct {
	rel  string
	info fs.FileInfo // nil = it did not exist
}

// walk looks for skills below one root.
type walk struct {
	root        *root
	fs          *os.Root
	found       []*found
	watched     []watched
	diagnostics // about the root as a whole

	max        bounds
	seen       bounds
	links      int
	deep, full bool
}

// run walks the whole root.
func (w *walk) run() {
	top, err := w.root.open()
	if err != nil {
		if w.root.named || !errors.Is(err, fs.ErrNotExist) {
			w.fail(0, "the folder cannot be opened: %v", reason(err))
		}
		return
	}
	defer top.Close()
	w.fs = top
	w.folder(".", 0)
	if w.links > 0 {
		w.hint(0, "it has %s, and links are not followed; copy the folders, or name them in skills_path",
			protocol.Count(w.links, "link"))
	}
	if w.deep {
		w.hint(0, "there are folders more than %d levels deep in it, which are not looked at", maxLevels)
	}
}

// watch adds a path to the watched ones, with its present state.
func (w *walk) watch(rel string) {
	info, err := w.fs.Lstat(rel)
	if err != nil {
		info = nil
	}
	w.watched = append(w.watched, watched{rel, info})
}

// folder looks for skills in one folder and below it.
func (w *walk) folder(rel string, level int) {
	if w.seen.folders++; w.seen.folders > w.max.folders {
		w.stop("there are more than %d folders in it", w.max.folders)
		return
	}
	w.watch(rel)
	doc, folders, err := w.read(rel)
	if err != nil {
		w.fail(0, "%s cannot be read: %v", quote(rel), reason(err))
		return
	}
	if doc != "" {
		w.document(rel, doc)
	}
	switch {
	case doc != "" && level > 0: // folders in a skill belong to it; but a root may be a skill and contain others
	case level == maxLevels:
		w.deep = w.deep || len(folders) > 0
	default:
		slices.Sort(folders)
		for _, name := range folders {
			if w.full {
				return
			}
			w.folder(filepath.Join(rel, name), level+1)
		}
	}
}

func (w *walk) stop(format string, args ...any) {
	if !w.full {
		w.full = true
		w.fail(0, format+"; the rest is not looked at", args...)
	}
}

// read returns the name of a folder's SKILL.md, or "" if it has none, and the folders in it.
func (w *walk) read(rel string) (doc string, folders []string, err error) {
	dir, err := w.fs.OpenFile(rel, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", nil, err
	}
	defer dir.Close()
	for {
		entries, err := dir.ReadDir(entriesAtOnce)
		for _, e := range entries {
			switch name := e.Name(); {
			case name == "SKILL.md", name == "skill.md" && doc == "":
				doc = name
			case e.Type()&fs.ModeSymlink != 0:
				w.links++
			case strings.EqualFold(name, "skill.md") && doc == "":
				w.hint(0, "%s is not looked at; call it SKILL.md", quote(filepath.Join(rel, name)))
			case e.IsDir() && name[0] != '.' && name != "node_modules" && len(folders) <= w.max.folders:
				folders = append(folders, name)
			}
		}
		if w.seen.names += len(entries); w.seen.names > w.max.names {
			w.stop("there are more than %d names in it", w.max.names)
			return doc, folders, nil
		}
		switch {
		case errors.Is(err, io.EOF):
			return doc, folders, nil
		case err != nil:
			return doc, folders, err
		}
	}
}

// document reads the skill of a folder.
func (w *walk) document(rel, doc string) {
	if len(w.found) >= w.max.skills {
		w.stop("there are more than %d skills in it", w.max.skills)
		return
	}
	path := filepath.Join(rel, doc)
	w.watch(path)
	f := &found{show: filepath.Join(w.root.show, path), folder: w.folderOf(rel)}
	f.name = f.folder
	w.found = append(w.found, f)
	defer func() {
		if v := recover(); v != nil { // a panic because of one file must not hide the other skills
			f.skill = nil
			f.fail(0, "the file cannot be understood: %.100v", v)
		}
	}()
	text, err := w.text(path)
	if err != nil {
		f.fail(0, "%v", reason(err))
		return
	}
	w.parse(f, text, rel, doc)
}

// folderOf returns the name of a skill's folder.
func (w *walk) folderOf(rel string) string {
	if rel == "." {
		return filepath.Base(w.root.dir())
	}
	return filepath.Base(rel)
}

// parse sets f.skill from the text of its SKILL.md, unless there are problems.
func (w *walk) parse(f *found, text []byte, rel, doc string) {
	d := split(text, &f.diagnostics)
	if d.front == nil {
		return
	}
	s := &skill{
		front: readFront(d, f.folder, &f.diagnostics), body: d.body, root: w.root, rel: rel,
		dir: filepath.Join(w.root.dir(), rel), doc: doc, size: len(text) - len(d.body),
	}
	f.name = s.name
	for _, schema := range []*objectSchema{s.inputs, s.outputs} {
		if schema != nil && !schema.loose {
			s.size += len(schema.raw)
			w.seen.bytes += len(schema.raw)
		}
	}
	if s.file != "" {
		w.file(f, s)
	}
	if len(f.problems) == 0 {
		f.skill = s
	}
}

// file checks the script or module of a skill.
func (w *walk) file(f *found, s *skill) {
	path := filepath.Join(s.rel, filepath.FromSlash(s.file))
	w.watch(path)
	own, err := w.fs.OpenRoot(wall.AsDir(s.rel))
	if err != nil {
		f.fail(0, "the folder cannot be opened: %v", reason(err))
		return
	}
	defer own.Close()
	info, err := own.Stat(filepath.FromSlash(s.file)) // a link in the folder may lead to another place in it
	switch {
	case err != nil:
		f.fail(s.fileLine, "%s: %s cannot be opened: %v", s.kind, quote(s.file), reason(err))
	case !info.Mode().IsRegular():
		f.fail(s.fileLine, "%s: %s is not a regular file", s.kind, quote(s.file))
	}
}

// text reads a SKILL.md. It must be a regular file and not a link, and not be replaced while it is read.
func (w *walk) text(path string) ([]byte, error) {
	before, err := w.fs.Lstat(path)
	switch {
	case err != nil:
		return nil, err
	case before.Mode()&fs.ModeSymlink != 0:
		return nil, errors.New("the file is a link; links are not followed, put the file itself here")
	case !before.Mode().IsRegular():
		return nil, errors.New("this is not a regular file")
	case before.Size() > maxSkillBytes:
		return nil, fmt.Errorf("the file has %d bytes; at most %d are taken", before.Size(), maxSkillBytes)
	case before.Size() > int64(w.max.bytes-w.seen.bytes):
		return nil, fmt.Errorf("all skills of the folder together have more than %d bytes; this one is left out",
			w.max.bytes)
	}
	f, err := w.fs.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	after, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !os.SameFile(before, after) {
		return nil, errors.New("the file was replaced while it was read")
	}
	text, err := io.ReadAll(io.LimitReader(f, maxSkillBytes+1))
	switch {
	case err != nil:
		return nil, err
	case len(text) > maxSkillBytes:
		return nil, fmt.Errorf("the file has more than %d bytes", maxSkillBytes)
	}
	w.seen.bytes += len(text)
	return text, nil
}

// reason returns an error without its path, as messages already name the path.
func reason(err error) error {
	var at *fs.PathError
	switch {
	case !errors.As(err, &at):
		return err
	case errors.Is(err, fs.ErrNotExist):
		return errors.New("it is not there")
	case strings.Contains(at.Err.Error(), "escapes"):
		return errors.New("it leads out of the folder")
	}
	return at.Err
}
