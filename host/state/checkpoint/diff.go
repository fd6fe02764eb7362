package checkpoint

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/rogpeppe/go-internal/diff"

	"a2e/host/schema"
)

// Problem is a path that could not be restored.
type Problem struct {
	Path string `json:"path"`
	Why  string `json:"why"`
}

// Change says how a path differs in a later state.
type Change struct {
	Path string `json:"path"` // relative to the workspace, with slashes
	// Kind is added, removed, changed (the content or the type) or mode (whether it is executable).
	Kind  string `json:"kind"`
	What  string `json:"what"`           // file, folder or link
	Bytes int64  `json:"bytes"`          // size of the file in the later state, or before it was removed
	Note  string `json:"note,omitzero"`  // why the old content is not kept; "" = it is kept
	Patch string `json:"patch,omitzero"` // removed and added lines of a text file, if requested
}

// maxPatch is the maximum size of files whose lines are compared, in bytes.
const maxPatch = 1 << 20

// DiffOptions say what to compare.
type DiffOptions struct {
	From, To uint64   // checkpoints; To 0 = the workspace as it is now
	Paths    []string // only these paths, and what is in them; nil = all
	Patch    bool     // add the changed lines of text files
}

// Diff returns the differences between two states, sorted by path. From 0 is the state that a one-step
// undo would restore; if there is none yet, there are no differences.
func (k *Keeper) Diff(ctx context.Context, o DiffOptions) ([]Change, error) {
	if !k.Exists() {
		return nil, ErrNone
	}
	return use(ctx, k, func() (all []Change, err error) {
		all = []Change{}
		if o.To == 0 {
			now, err := k.take(Info{})
			if err != nil {
				return nil, err
			}
			o.To = now.ID
		}
		if o.From == 0 {
			if o.From, err = k.back(o.To, 1); err != nil {
				o.From = o.To
			}
		}
		changes, err := k.between(o.From, o.To)
		if err != nil {
			return nil, err
		}
		if err := k.know(o.Paths); err != nil {
			return nil, err
		}
		changes = within(changes, o.Paths)
		for _, c := range changes {
			all = append(all, describe(c))
		}
		if o.Patch {
			err = k.patch(changes, all)
		}
		return all, err
	})
}

// File modes in git.
const (
	aFile    = "100644"
	aProgram = "100755"
	aLink    = "120000"
	aFolder  = "040000"
)

// treeEntry is the file, link or folder at a path in a state.
type treeEntry struct {
	mode string
	oid  string // object id of the content; "" = it is not kept
	size int64
	left left // says why it is not kept
}

func (e *treeEntry) file() bool { return e != nil && (e.mode == aFile || e.mode == aProgram) }
func (e *treeEntry) kept() bool { return e == nil || e.oid != "" }

// change is the difference of one path between two states.
type change struct {
	path     string
	old, new *treeEntry  // nil = nothing at the path
	now      fs.FileInfo // the file when a restore began; nil = nothing
}

// between returns the changes from the state of one checkpoint to that of another, sorted by path.
func (k *Keeper) between(from, to uint64) ([]change, error) {
	for _, id := range []uint64{from, to} {
		if k.find(id) == nil {
			return nil, k.unknown(id)
		}
	}
	a, b := k.find(from), k.find(to)
	var out bytes.Buffer
	err := k.script(&out, `git diff-tree -r -t -z --raw --no-renames --no-abbrev "$A" "$B"`, "A", a.tree, "B", b.tree)
	if err != nil {
		return nil, err
	}
	byPath := make(map[string]change)
	fields := strings.Split(out.String(), "\x00")
	for ; len(fields) >= 2; fields = fields[2:] {
		words, name := strings.Fields(strings.TrimPrefix(fields[0], ":")), fields[1]
		if len(words) != 5 {
			return nil, fmt.Errorf("git said %q", fields[0])
		}
		c := byPath[name] // a file that became a folder is listed twice
		c.path = name
		for i, e := range []**treeEntry{&c.old, &c.new} {
			if mode := words[i]; mode == aFolder || mode == aFile || mode == aProgram || mode == aLink {
				*e = &treeEntry{mode: mode, oid: words[2+i]}
			}
		}
		if c.old == nil || c.new == nil || c.old.mode != aFolder || c.new.mode != aFolder {
			byPath[name] = c
		}
	}
	for _, quoted := range leftChanges(a.Left, b.Left) {
		c := byPath[unquote(quoted)]
		c.path = unquote(quoted)
		if l, ok := a.Left[quoted]; ok {
			c.old = &treeEntry{mode: aFile, size: l.Size, left: l}
		}
		if l, ok := b.Left[quoted]; ok {
			c.new = &treeEntry{mode: aFile, size: l.Size, left: l}
		}
		byPath[c.path] = c
	}
	all := slices.SortedFunc(maps.Values(byPath), func(a, b change) int { return strings.Compare(a.path, b.path) })
	return all, k.sizes(all)
}

// leftChanges returns the files without kept content that differ between the two states.
func leftChanges(a, b map[string]left) (all []string) {
	for name, was := range a {
		if is, ok := b[name]; !ok || is != was {
			all = append(all, name)
		}
	}
	for name := range b {
		if _, ok := a[name]; !ok {
			all = append(all, name)
		}
	}
	return all
}

// sizes sets the sizes of the files.
func (k *Keeper) sizes(all []change) error {
	var of []*treeEntry
	var oids strings.Builder
	for _, c := range all {
		for _, e := range []*treeEntry{c.old, c.new} {
			if e != nil && e.oid != "" && e.mode != aFolder {
				of = append(of, e)
				oids.WriteString(e.oid + "\n")
			}
		}
	}
	if len(of) == 0 {
		return nil
	}
	if err := k.write(objectsFile, oids.String()); err != nil {
		return err
	}
	var out bytes.Buffer
	if err := k.script(&out, `git cat-file --batch-check='%(objectsize)' <"$GIT_DIR/objects.list"`); err != nil {
		return err
	}
	for i, line := range strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n") {
		if i < len(of) {
			of[i].size, _ = strconv.ParseInt(line, 10, 64) // a damaged object is reported when it is read
		}
	}
	return nil
}

func (k *Keeper) unknown(id uint64) error {
	if len(k.metas) == 0 {
		return ErrNone
	}
	return fmt.Errorf("%w as %d; there are %d to %d", ErrUnknown, id, k.metas[0].ID, k.last().ID)
}

// know returns an error for a path that exists neither now nor in any checkpoint.
func (k *Keeper) know(paths []string) error {
	if len(paths) == 0 {
		return nil
	}
	var out bytes.Buffer
	if err := k.script(&out, `git log -z -r --no-renames --name-only --format= "$TIP"`); err != nil {
		return err
	}
	all := strings.Split(out.String(), "\x00")
	for i := range k.metas {
		for quoted := range k.metas[i].Left {
			all = append(all, unquote(quoted))
		}
	}
	for i, name := range all {
		all[i] = strings.TrimPrefix(name, "\n")
	}
	slices.Sort(all)
	all = slices.Compact(all)
	for _, given := range paths {
		p := cleaned(given)
		if p != "." && !slices.ContainsFunc(all, func(name string) bool { return inside(name, p) }) {
			hint := schema.DidYouMean(p, all)
			return fmt.Errorf("%w %q in the workspace or a checkpoint; %s", ErrNoPath, given,
				cmp.Or(hint, "it is relative to the workspace"))
		}
	}
	return nil
}

// cleaned returns a path in the notation of git trees; "." is the workspace.
func cleaned(p string) string { return path.Clean(filepath.ToSlash(p)) }

// shown returns a path as valid UTF-8, for output.
func shown(name string) string { return strings.ToValidUTF8(name, "\uFFFD") }

// inside reports whether a path is dir or lies below it; dir may be a result of shown.
func inside(name, dir string) bool {
	if strings.Contains(dir, "\uFFFD") {
		name = shown(name)
	}
	return dir == "." || name == dir || strings.HasPrefix(name, dir+"/")
}

// within returns the changes at and below some paths, or all changes if there are no paths.
func within(all []change, paths []string) []change {
	if len(paths) == 0 {
		return all
	}
	return slices.DeleteFunc(all, func(c change) bool {
		return !slices.ContainsFunc(paths, func(p string) bool { return inside(c.path, cleaned(p)) })
	})
}

// describe converts a change for output.
func describe(c change) Change {
	d := Change{Path: shown(c.path), Kind: "changed"}
	e := c.new
	switch {
	case c.old == nil:
		d.Kind = "added"
	case c.new == nil:
		d.Kind, e = "removed", c.old
	case c.old.file() && c.new.file() && c.old.oid != "" && c.old.oid == c.new.oid:
		d.Kind = "mode"
	}
	d.What = map[string]string{aFile: "file", aProgram: "file", aFolder: "folder", aLink: "link"}[e.mode]
	if e.file() {
		d.Bytes = e.size
	}
	if !c.old.kept() {
		d.Note = c.old.left.Why
	}
	return d
}

// patch adds the changed lines of text files.
func (k *Keeper) patch(changes []change, all []Change) error {
	texts := map[string][]byte{}
	var oids []string
	for _, c := range changes {
		for _, e := range []*treeEntry{c.old, c.new} {
			if e != nil && e.mode != aFolder && e.oid != "" && e.size <= maxPatch {
				oids = append(oids, e.oid)
			}
		}
	}
	err := k.contents(oids, func(i int, content io.Reader) error {
		text, err := io.ReadAll(content)
		if err == nil && utf8.Valid(text) && !bytes.ContainsRune(text, 0) {
			texts[oids[i]] = text
		}
		return err
	}, func(int, error) {})
	for i, c := range changes {
		before, ok := text(texts, c.old)
		after, fine := text(texts, c.new)
		if ok && fine && !bytes.Equal(before, after) {
			all[i].Patch = string(diff.Diff("a/"+all[i].Path, before, "b/"+all[i].Path, after))
		}
	}
	return err
}

func text(of map[string][]byte, e *treeEntry) (text []byte, ok bool) {
	if e == nil || e.mode == aFolder {
		return nil, true
	}
	text, ok = of[e.oid]
	if e.mode == aLink {
		text = append(slices.Clone(text), '\n')
	}
	return text, ok
}

// contents reads the contents of objects in order and calls do for each. If one cannot be read, or if
// do fails, it calls failed.
func (k *Keeper) contents(oids []string, do func(i int, content io.Reader) error, failed func(i int, err error)) error {
	for at, rounds := 0, 0; at < len(oids); rounds++ {
		if rounds > 100 { // all other objects are probably damaged too
			failed(at, errors.New("too much is damaged"))
			at++
			continue
		}
		if err := k.write(objectsFile, strings.Join(oids[at:], "\n")+"\n"); err != nil {
			return err
		}
		from, to := io.Pipe()
		ended := make(chan error, 1)
		go func() {
			err := k.script(to, `git cat-file --batch <"$GIT_DIR/objects.list"`)
			to.CloseWithError(cmp.Or(err, io.EOF))
			ended <- err
		}()
		in, damaged := bufio.NewReader(from), error(nil)
		for ; at < len(oids) && damaged == nil; at++ {
			damaged = one(in, func(r io.Reader) {
				if err := do(at, r); err != nil {
					failed(at, err)
				}
			})
			if damaged != nil {
				failed(at, fmt.Errorf("its content is damaged: %w", damaged))
			}
		}
		_ = from.Close() // otherwise git would wait for a reader
		if err := <-ended; k.ctx.Err() != nil {
			return err
		}
	}
	return nil
}

// one reads one object from the output of git cat-file --batch.
func one(in *bufio.Reader, do func(io.Reader)) error {
	line, err := in.ReadString('\n')
	if err != nil {
		return err
	}
	words := strings.Fields(line)
	size, err := strconv.ParseInt(words[len(words)-1], 10, 64)
	if err != nil {
		return errors.New(strings.TrimSpace(line))
	}
	content := &whole{in: in, left: size}
	do(content)
	if _, err := io.Copy(io.Discard, content); err != nil {
		return err
	}
	_, err = in.Discard(1)
	return err
}

// whole reads exactly left bytes; an earlier end is an error.
type whole struct {
	in   io.Reader
	left int64
}

// Read implements io.Reader.
func (w *whole) Read(p []byte) (int, error) {
	if w.left == 0 {
		return 0, io.EOF
	}
	n, err := w.in.Read(p[:min(int64(len(p)), w.left)])
	if w.left -= int64(n); err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}
