package tools

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
)

const (
	maxWalkDepth   = 128     // each level holds a descriptor
	maxWalkEntries = 200_000 // of one folder, so that memory stays bounded
	gitDir         = ".git"
)

// errEnough ends a walk early without being an error.
var errEnough = errors.New("enough")

// treeWalk goes over what is below a folder in the order of the paths. It follows no
// link, also none that takes a folder's place while it walks: each folder is
// opened by its bare name in the folder above it and looked at again.
type treeWalk struct {
	f       *files
	visit   func(dir *os.Root, rel string, d fs.DirEntry) error // rel is relative to where the walk began
	descend func(rel string) bool                               // whether to go into a folder
	base    string                                              // where it began, without links on the way, where something is walled off
	git     bool                                                // go into .git as well
	cut     bool                                                // something was too deep or too much to be seen
	skipped int                                                 // folders that could not be opened
}

// walkStop is an entry of a folder, or its turn to be gone into.
type walkStop struct {
	key   string
	entry fs.DirEntry
	into  bool
}

// run walks over what is in dir. The error is that of visit, or of ctx.
func (w *treeWalk) run(ctx context.Context, dir *os.Root) error {
	err := w.folder(ctx, dir, "", 0)
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

func (w *treeWalk) folder(ctx context.Context, dir *os.Root, rel string, depth int) error {
	found, cut, err := readDir(ctx, dir, maxWalkEntries)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		w.skipped++
		return nil
	}
	w.cut = w.cut || cut
	for _, s := range w.stops(rel, found) {
		at := rel + s.entry.Name()
		if err := ctx.Err(); err != nil {
			return err
		}
		switch {
		case !s.into:
			err = w.visit(dir, at, s.entry)
		case w.descend(at):
			err = w.into(ctx, dir, s.entry.Name(), at+"/", depth+1)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// stops puts a folder's entries in an order that makes the paths of the walk
// come sorted: "a", "a-b", "a/x". What is in a folder follows its name plus the
// slash, so a folder has two stops.
func (w *treeWalk) stops(rel string, found []fs.DirEntry) []walkStop {
	stops := make([]walkStop, 0, len(found))
	for _, d := range found {
		if d.IsDir() && d.Name() == gitDir && !w.git {
			continue
		}
		if w.f.guard.Holds() && w.f.guard.Hides(path.Join(w.base, rel, d.Name()), nil) {
			continue
		}
		stops = append(stops, walkStop{key: d.Name(), entry: d})
		if d.IsDir() {
			stops = append(stops, walkStop{key: d.Name() + "/", entry: d, into: true})
		}
	}
	slices.SortFunc(stops, func(a, b walkStop) int { return strings.Compare(a.key, b.key) })
	return stops
}

// into goes into one folder. One that is gone, was swapped for something else or
// may not be read is passed over.
func (w *treeWalk) into(ctx context.Context, dir *os.Root, name, rel string, depth int) error {
	if depth > maxWalkDepth {
		w.cut = true
		return nil
	}
	sub, err := w.f.enter(dir, name)
	if err != nil {
		w.skipped++
		return nil
	}
	return errors.Join(w.folder(ctx, sub, rel, depth), sub.Close())
}
