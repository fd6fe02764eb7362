package tools

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/bmatcuk/doublestar/v4"
	"golang.org/x/text/unicode/norm"

	"a2e/host/schema/pattern"
	"a2e/protocol"
)

const (
	maxWalkDepth   = 128     // each level holds a descriptor
	maxWalkEntries = 200_000 // of one folder, so that memory stays bounded
	gitDir         = ".git"
)

// errEnough ends a walk early; callers do not report it.
var errEnough = errors.New("enough")

// treeWalk walks over the entries below a folder in the order of the paths. It follows no
// link, not even one that replaces a folder during the walk: each folder is
// opened by its bare name in the folder above it and checked again.
type treeWalk struct {
	f       *files
	visit   func(dir *os.Root, rel string, d fs.DirEntry) error // rel is relative to the start of the walk
	descend func(rel string) bool                               // whether to go into a folder
	leave   func(dir *os.Root) error                            // closes a folder that was visited; nil = Close
	// path of the start without links; set if the guard protects files in root
	base    string
	git     bool // go into .git as well
	cut     bool // some entries were too deep or too many to be seen
	skipped int  // folders that could not be opened
}

// walkStop is an entry of a folder, or with into the step into that folder.
type walkStop struct {
	key   string
	entry fs.DirEntry
	into  bool
}

// run walks over the entries below dir. The error is that of visit, of leave or of ctx.
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

// stops sorts a folder's entries so that the paths of the walk are
// sorted: "a", "a-b", "a/x". The content of a folder sorts by the folder's name with a
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

// into walks over one folder. It skips a folder that is gone, was swapped for something else or
// may not be read.
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
	leave := w.leave
	if leave == nil {
		leave = (*os.Root).Close
	}
	return errors.Join(w.folder(ctx, sub, rel, depth), leave(sub))
}

// openSame opens a file that was found to be regular. before is the info that was found then; the opened file
// must be the same file. nil = any regular file.
func (f *files) openSame(dir *os.Root, name string, flag int, before fs.FileInfo) (*os.File, fs.FileInfo, error) {
	file, err := dir.OpenFile(name, flag|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.checkFile(file)
	if err == nil && before != nil && !os.SameFile(before, info) {
		err = errSwapped
	}
	if err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	return file, info, nil
}

const (
	maxListed      = 10_000 // entries of one list_dir
	entryOverhead  = 64     // bytes around the text of one entry in an answer, at most
	readDirAtATime = 1024
)

type listArgs struct {
	Path string `json:"path" may:"Folder to list, relative to the workspace (default: the workspace itself); skill://NAME is the folder of a skill."`
}

type listData struct {
	Entries []listEntry `json:"entries" need:"One {name, type, size} for each entry: type is file, dir, link or other (pipe, socket, device), size is in bytes and 0 for anything but a file."`
}

type listEntry struct {
	Name string    `json:"name"`
	Type entryType `json:"type"`
	Size int64     `json:"size"` // bytes of a file; 0 for anything else
}

// entryType is what list_dir calls the kinds of entries.
type entryType string

const (
	entryFile  entryType = "file"
	entryDir   entryType = "dir"
	entryLink  entryType = "link"
	entryOther entryType = "other"
)

func (f *files) listDir(ctx context.Context, a *listArgs) (*Outcome, error) {
	return f.reading(ctx, cmp.Or(a.Path, "."), func(in *files, name string) (*Outcome, error) {
		dir, _, real, err := in.openDir(name)
		if err != nil {
			return nil, err
		}
		defer dir.Close()
		found, cut, err := readDir(ctx, dir, maxListed)
		if err != nil {
			return nil, err
		}
		out, page := &Outcome{}, page{left: maxListed, room: in.room, full: cut}
		data := listData{Entries: make([]listEntry, 0, len(found))}
		for _, d := range found {
			if in.guard.Holds() && in.guard.Hides(path.Join(real, d.Name()), nil) {
				continue
			}
			if !page.takes(jsonSize(d.Name()) + entryOverhead) {
				break
			}
			entry, err := describe(dir, d)
			if errors.Is(err, fs.ErrNotExist) {
				continue // removed since readDir
			} else if err != nil {
				return nil, err
			}
			data.Entries = append(data.Entries, entry)
		}
		if out.Truncated = page.full; page.full {
			out.Summary = fmt.Sprintf("the folder has more than these %d entries; use glob with a pattern to see "+
				"others", len(data.Entries))
		}
		out.Data = data
		return out, nil
	})
}

// page bounds a list in an answer.
type page struct {
	left int // entries
	room int // bytes of JSON
	full bool
}

// takes reports whether one more entry fits.
func (p *page) takes(size int) bool {
	if p.room -= size; p.left == 0 || p.room < 0 {
		p.full = true
		return false
	}
	p.left--
	return true
}

// newPage checks the limit that the agent asked for (0 = usual) and makes the page of a search.
func newPage(asked int64, usual, most, room int) (page, error) {
	if asked < 0 {
		return page{}, protocol.Errorf(protocol.CodeToolError, "limit is %d; give how many matches you want at "+
			"most, 1 to %d", asked, most)
	}
	return page{left: int(min(cmp.Or(asked, int64(usual)), int64(most))), room: room}, nil
}

func describe(dir *os.Root, d fs.DirEntry) (listEntry, error) {
	info, err := dir.Lstat(d.Name())
	if err != nil {
		return listEntry{}, err
	}
	entry := listEntry{Name: wireText(d.Name()), Type: entryOther}
	switch mode := info.Mode(); {
	case mode.IsRegular():
		entry.Type, entry.Size = entryFile, info.Size()
	case mode.IsDir():
		entry.Type = entryDir
	case mode&fs.ModeSymlink != 0:
		entry.Type = entryLink
	}
	return entry, nil
}

// readDir returns the entries of a folder sorted by name. If there are more than most
// entries, it returns those that are first on the disk, and cut is true.
func readDir(ctx context.Context, dir *os.Root, most int) (found []fs.DirEntry, cut bool, err error) {
	file, err := dir.OpenFile(".", os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, false, err
	}
	defer file.Close()
	for len(found) <= most {
		if err := ctx.Err(); err != nil {
			return nil, false, err
		}
		batch, err := file.ReadDir(readDirAtATime)
		found = append(found, batch...)
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, false, err
		}
	}
	if cut = len(found) > most; cut {
		found = found[:most]
	}
	slices.SortFunc(found, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return found, cut, nil
}

const (
	defaultGlobLimit = 1000
	maxGlobLimit     = 100_000
	quoting          = 3 // bytes around a path in the answer
	anyDepth         = "**"
)

type globArgs struct {
	Pattern string `json:"pattern" need:"Pattern for the path relative to the workspace, such as **/*_test.go."`
	Limit   int64  `json:"limit" may:"How many paths to give at most (default 1000, at most 100000)."`
}

type globData struct {
	Matches []string `json:"matches" need:"The paths that match, relative to the workspace."`
}

func (f *files) glob(ctx context.Context, a *globArgs) (*Outcome, error) {
	return f.reading(ctx, a.Pattern, func(in *files, pattern string) (*Outcome, error) {
		page, err := newPage(a.Limit, defaultGlobLimit, maxGlobLimit, in.room)
		if err != nil {
			return nil, err
		}
		if pattern, err = in.cleanPattern(pattern); err != nil {
			return nil, err
		}
		base, rest := splitPattern(pattern)
		dir, base, real, err := in.openDir(cmp.Or(base, "."))
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
			return noMatches(rest), nil // a folder that does not exist has no matches
		case err != nil:
			return nil, err
		}
		defer dir.Close()
		return in.globIn(ctx, &treeWalk{f: in, base: real}, dir, base, rest, page)
	})
}

// globIn matches the pattern rest against what is in dir, whose path is base.
func (f *files) globIn(ctx context.Context, w *treeWalk, dir *os.Root, base, rest string, page page) (*Outcome, error) {
	data := globData{Matches: []string{}}
	rest = norm.NFC.String(rest) // names are compared in this form
	glob, ok := pattern.NewGlob(rest)
	if !ok {
		return nil, protocol.Errorf(protocol.CodeToolError, "pattern %s has too many alternatives in braces; search "+
			"for fewer at a time", f.quote(rest))
	}
	w.git, w.descend = slices.Contains(strings.Split(rest, "/"), gitDir), mayHold(ctx, rest)
	w.visit = func(_ *os.Root, rel string, _ fs.DirEntry) error {
		if matches, err := glob.Match(ctx, norm.NFC.String(rel)); err != nil || !matches {
			return err
		}
		found := wireText(f.prefix + path.Join(base, rel))
		if !page.takes(jsonSize(found) + quoting) {
			return errEnough
		}
		data.Matches = append(data.Matches, found)
		return nil
	}
	if err := w.run(ctx, dir); err != nil {
		return nil, err
	}
	out := &Outcome{Data: data, Truncated: page.full || w.cut}
	switch {
	case len(data.Matches) == 0 && !out.Truncated:
		return noMatches(rest), nil
	case out.Truncated:
		out.Summary = fmt.Sprintf("the first %d matches; narrow the pattern to see others", len(data.Matches))
	}
	return out, nil
}

// noMatches returns the answer to a pattern that matches nothing.
func noMatches(pattern string) *Outcome {
	out := &Outcome{Data: globData{Matches: []string{}}}
	if strings.Contains(strings.ReplaceAll(pattern, `\[`, ""), "[") {
		out.Summary = `nothing matches; [ begins a set of characters, and \[ finds one in a name, as in app/\[id\]/*`
	}
	return out
}

// cleanPattern checks a glob pattern and removes parts without meaning: doubled
// and closing slashes, and "." as a folder.
func (f *files) cleanPattern(pattern string) (string, error) {
	var err error
	switch {
	case len(pattern) > maxPathBytes:
		return "", protocol.Errorf(protocol.CodeToolError, "the pattern has %d bytes; at most %d are taken",
			len(pattern), maxPathBytes)
	case strings.HasPrefix(pattern, "/") || filepath.IsAbs(pattern):
		if pattern, err = f.inside("pattern", pattern); err != nil {
			return "", err
		}
	}
	switch {
	case !doublestar.ValidatePattern(pattern):
		return "", protocol.Errorf(protocol.CodeToolError, "pattern %s is malformed: a [, a { or a \\ is not finished",
			f.quote(pattern))
	}
	var steps []string
	for step := range strings.SplitSeq(pattern, "/") {
		switch step {
		case "", ".":
		case "..":
			return "", protocol.Errorf(protocol.CodeToolDenied, "pattern %s goes up with ..; give it relative to %s",
				f.quote(pattern), f.place)
		default:
			steps = append(steps, step)
		}
	}
	if len(steps) == 0 {
		return "", protocol.Errorf(protocol.CodeToolError, "the pattern is empty; give one such as **/*.go, or * "+
			"for what is right in %s", f.place)
	}
	return strings.Join(steps, "/"), nil
}

// splitPattern returns the folder before the first step with a wildcard of a clean pattern, and
// the pattern for the paths below that folder.
func splitPattern(pattern string) (base, rest string) {
	steps := strings.Split(pattern, "/")
	plain := 0
	for plain < len(steps)-1 && !strings.ContainsAny(steps[plain], `*?[]{}\`) {
		plain++
	}
	return path.Join(steps[:plain]...), strings.Join(steps[plain:], "/")
}

// mayHold returns a function that reports whether the pattern can match something in a folder, so
// that the walk skips the others.
func mayHold(ctx context.Context, rest string) func(rel string) bool {
	steps := strings.Split(rest, "/")
	globs := make([]pattern.Glob, len(steps))
	for i, step := range steps {
		glob, ok := pattern.NewGlob(step)
		if !ok || strings.Contains(step, `\`) || strings.Count(step, "{") != strings.Count(step, "}") {
			return func(string) bool { return true } // its slashes may not separate folders
		}
		globs[i] = glob
	}
	return func(rel string) bool {
		names := strings.Split(norm.NFC.String(rel), "/")
		for i, name := range names {
			if strings.Contains(steps[i], anyDepth) {
				return true
			}
			if i == len(steps)-1 {
				return false // the pattern ends here
			}
			if matches, err := globs[i].Match(ctx, name); err == nil && !matches {
				return false
			}
		}
		return true
	}
}
