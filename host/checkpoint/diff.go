package checkpoint

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/rogpeppe/go-internal/diff"

	"a2e/host/schema"
)

// Problem is a path that is not as it was.
type Problem struct {
	Path string `json:"path"`
	Why  string `json:"why"`
}

// Change is what is different of one path in a later state.
type Change struct {
	Path string `json:"path"` // relative to the workspace, with slashes
	// Kind is added, removed, changed (the content, or what it is), mode or time.
	Kind  string `json:"kind"`
	What  string `json:"what"`           // file, folder or link
	Bytes int64  `json:"bytes"`          // of the file, in the later state, or before it was removed
	Note  string `json:"note,omitzero"`  // why the content before is not kept; "" = it is
	Patch string `json:"patch,omitzero"` // lines of a text file taken away and added, where they were asked for
}

// maxPatch bounds the files whose lines are compared.
const maxPatch = 1 << 20

// DiffOptions say what is compared.
type DiffOptions struct {
	From, To uint64   // checkpoints; To 0 = the workspace as it is now
	Paths    []string // only these, and what is in them; nil = all
	Patch    bool     // with the lines of text files
}

// Diff says what differs between two states, by path. From 0 is the state that one step of an
// undo would put back.
func (k *Keeper) Diff(ctx context.Context, o DiffOptions) ([]Change, error) {
	if !k.Exists() {
		return nil, ErrNone
	}
	return use(ctx, k, func(p *place) (all []Change, err error) {
		if o.To == 0 {
			now, err := k.take(p, Info{})
			if err != nil {
				return nil, err
			}
			o.To = now.ID
		}
		if o.From == 0 {
			if o.From, err = k.back(o.To, 1); err != nil {
				return nil, err
			}
		}
		changes, err := k.between(o.From, o.To)
		if err != nil {
			return nil, err
		}
		if err := k.know(o.Paths); err != nil {
			return nil, err
		}
		for _, c := range within(changes, o.Paths) {
			all = append(all, k.describe(c, o.Patch))
		}
		return all, nil
	})
}

// between returns what leads from the state of one checkpoint to that of another, by path.
func (k *Keeper) between(from, to uint64) ([]change, error) {
	for _, id := range []uint64{from, to} {
		if k.store.find(id) == nil {
			return nil, k.unknown(id)
		}
	}
	first, last := min(from, to), max(from, to)
	byPath := make(map[string]change)
	for id := first + 1; id <= last; id++ {
		changes, err := k.store.changes(k.store.find(id))
		if err != nil {
			return nil, err
		}
		for _, c := range changes {
			if before, ok := byPath[c.path]; ok {
				c.old = before.old
			}
			byPath[c.path] = c
		}
	}
	all := make([]change, 0, len(byPath))
	for _, c := range byPath {
		if to < from {
			c.old, c.new = c.new, c.old
		}
		if !same(c.old, c.new) {
			all = append(all, c)
		}
	}
	slices.SortFunc(all, func(a, b change) int { return strings.Compare(a.path, b.path) })
	return all, nil
}

func (k *Keeper) unknown(id uint64) error {
	if len(k.store.metas) == 0 {
		return ErrNone
	}
	return fmt.Errorf("%w as %d; there are %d to %d", ErrUnknown, id, k.store.metas[0].ID, k.store.last().ID)
}

// know refuses a path that is neither there now nor in any checkpoint.
func (k *Keeper) know(paths []string) error {
	for _, given := range paths {
		var touched []string // by any change
		p := cleaned(given)
		if k.store.tree[p] != nil || k.store.tree.get(p) != nil || p == "." {
			continue
		}
		for i := range k.store.metas {
			changes, err := k.store.changes(&k.store.metas[i])
			if err != nil {
				return err
			}
			for _, c := range changes {
				touched = append(touched, c.path)
			}
		}
		if !slices.ContainsFunc(touched, func(t string) bool { return inside(t, p) }) {
			for name := range k.store.tree.below("") {
				touched = append(touched, name)
			}
			slices.Sort(touched)
			hint := schema.DidYouMean(p, slices.Compact(touched))
			return fmt.Errorf("%w %q in the workspace or a checkpoint; %s", ErrNoPath, given, cmp.Or(hint, "it is relative to the workspace"))
		}
	}
	return nil
}

// cleaned is a path as the tree has it; "." is the workspace.
func cleaned(p string) string { return path.Clean(filepath.ToSlash(p)) }

// shown is a path as it is told, which is valid UTF-8.
func shown(name string) string { return strings.ToValidUTF8(name, "\uFFFD") }

// inside reports whether a path is at or below another, which may be one that was shown.
func inside(name, dir string) bool {
	if strings.Contains(dir, "\uFFFD") {
		name = shown(name)
	}
	return dir == "." || name == dir || strings.HasPrefix(name, dir+"/")
}

// within returns the changes at and below some paths; no paths are all.
func within(all []change, paths []string) []change {
	if len(paths) == 0 {
		return all
	}
	return slices.DeleteFunc(all, func(c change) bool {
		return !slices.ContainsFunc(paths, func(p string) bool { return inside(c.path, cleaned(p)) })
	})
}

// describe says what a change is.
func (k *Keeper) describe(c change, patch bool) Change {
	d := Change{Path: shown(c.path), Kind: "changed"}
	e := c.new
	switch {
	case c.old == nil:
		d.Kind = "added"
	case c.new == nil:
		d.Kind, e = "removed", c.old
	case c.old.kind != c.new.kind || c.old.kind == aLink:
	case c.old.kind == aDir, c.old.sum == c.new.sum && c.old.size == c.new.size && c.old.perm != c.new.perm:
		d.Kind = "mode"
	case c.old.held == heldWhole && c.new.held == heldWhole && c.old.sum == c.new.sum:
		d.Kind = "time"
	}
	d.What = [...]string{aFile: "file", aDir: "folder", aLink: "link"}[e.kind]
	if e.kind == aFile {
		d.Bytes = e.size
	}
	if c.old != nil && c.old.kind == aFile && c.old.held != heldWhole {
		d.Note = c.old.held.reason()
	}
	if patch {
		d.Patch = k.patch(c)
	}
	return d
}

// patch compares two states of a text file by lines; "" = it is none, or too long.
func (k *Keeper) patch(c change) string {
	before, ok := k.text(c.old)
	after, fine := k.text(c.new)
	if !ok || !fine || bytes.Equal(before, after) {
		return ""
	}
	name := shown(c.path)
	return string(diff.Diff("a/"+name, before, "b/"+name, after))
}

func (k *Keeper) text(e *entry) (text []byte, ok bool) {
	switch {
	case e == nil || e.kind == aDir:
		return nil, true
	case e.kind == aLink:
		return []byte(e.link + "\n"), true
	case e.held != heldWhole || e.size > maxPatch:
		return nil, false
	}
	text, err := k.store.blobs.read(e, maxPatch)
	return text, err == nil && utf8.Valid(text) && !bytes.ContainsRune(text, 0)
}
