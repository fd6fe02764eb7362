package checkpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
)

// Restored is what came of putting files back.
type Restored struct {
	To       uint64    `json:"to"`       // the checkpoint whose state was put back
	From     uint64    `json:"from"`     // the one that has the state before, to undo this
	Now      uint64    `json:"now"`      // the one of the state afterwards
	Changes  []Change  `json:"changes"`  // what was done; nothing where it was a dry run that found nothing
	Problems []Problem `json:"problems"` // what could not be put back
	Resumed  bool      `json:"resumed,omitzero"`
}

// Problem is a path that is not as it was.
type Problem struct {
	Path string `json:"path"`
	Why  string `json:"why"`
}

// RestoreOptions say what is put back.
type RestoreOptions struct {
	To     uint64   // the checkpoint
	Steps  int      // in place of To: so many states back
	Paths  []string // only these, and what is in them; nil = all
	DryRun bool     // only say what would be done
}

// pending is the file that stands while files are put back.
type pendingRestore struct {
	To    uint64   `json:"to"`
	Paths []string `json:"paths"`
}

// Restore puts the workspace back to the state of a checkpoint. The state before becomes a checkpoint
// first. A restore that was killed is taken up: by Steps, whatever their number, or by To, which may
// be another one then.
func (k *Keeper) Restore(ctx context.Context, o RestoreOptions) (done Restored, err error) {
	if !k.Exists() {
		return done, ErrNone
	}
	err = k.use(ctx, func(p *place) error {
		done, err = k.restore(p, o)
		return err
	})
	return done, err
}

func (k *Keeper) restore(p *place, o RestoreOptions) (done Restored, err error) {
	_ = p.root.RemoveAll(stagingDir)
	done.Changes, done.Problems = []Change{}, []Problem{}
	interrupted := k.interrupted()
	before, err := k.take(p, Info{})
	if err != nil {
		return done, err
	}
	switch {
	case o.To != 0:
	case interrupted != nil && k.store.find(interrupted.To) != nil:
		o.To, o.Paths, done.Resumed = interrupted.To, interrupted.Paths, true
	default:
		if o.To, err = k.back(before.ID, max(o.Steps, 1)); err != nil {
			return done, err
		}
	}
	changes, err := k.between(before.ID, o.To)
	if err != nil {
		return done, err
	}
	r := &restore{Keeper: k, place: p, problems: map[string]string{}}
	r.changes = r.wanted(within(changes, o.Paths), o.To)
	done.To, done.From, done.Now = o.To, before.ID, before.ID
	for _, c := range r.changes {
		done.Changes = append(done.Changes, k.describe(c, false))
	}
	if o.DryRun {
		return done, nil
	}
	if len(r.changes) > 0 || done.Resumed {
		if done.Now, err = k.apply(r, o); err != nil {
			return done, err
		}
	}
	for _, path := range sortedKeys(r.problems) {
		done.Problems = append(done.Problems, Problem{strings.ToValidUTF8(path, "\uFFFD"), r.problems[path]})
	}
	return done, nil
}

// apply puts back what is wanted, and makes the checkpoint of the state afterwards.
func (k *Keeper) apply(r *restore, o RestoreOptions) (now uint64, err error) {
	note, err := json.Marshal(pendingRestore{o.To, o.Paths})
	if err != nil {
		return 0, err
	}
	if err := k.store.dir.Replace(pendingFile, note); err != nil {
		return 0, err
	}
	before := k.store.last().Info
	if before.Before = fmt.Sprint("restore of ", o.To); len(o.Paths) > 0 {
		before.Before += " " + strings.ToValidUTF8(strings.Join(o.Paths, " "), "\uFFFD")
	}
	if err := k.store.rename(before); err != nil {
		return 0, err
	}
	r.run()
	after := Info{}
	if len(o.Paths) == 0 {
		after.Restored = o.To
	}
	i, err := k.take(r.place, after)
	if err != nil {
		return 0, err
	}
	return i.ID, k.store.dir.Remove(pendingFile)
}

// giveUp leaves a restore that was killed as it is, since the work goes on from there.
func (k *Keeper) giveUp(p *place) {
	if pending := k.interrupted(); pending != nil {
		_ = p.root.RemoveAll(stagingDir)
		_ = k.store.dir.Remove(pendingFile)
		k.o.Log.Warn().Uint64("checkpoint", pending.To).Msg("checkpoints: a restore was cut off, and files were changed since; to restore that checkpoint again puts back the rest")
	}
}

// interrupted returns the restore that was killed; nil = there is none.
func (k *Keeper) interrupted() *pendingRestore {
	raw, err := k.store.dir.Read(pendingFile, 1<<20)
	p := new(pendingRestore)
	if err != nil || json.Unmarshal(raw, p) != nil {
		return nil
	}
	return p
}

// back returns the checkpoint that is so many states before another. Where files were put back, the
// state is that of the checkpoint that they were put back to.
func (k *Keeper) back(id uint64, steps int) (uint64, error) {
	origin := func(id uint64) uint64 {
		for m := k.store.find(id); m != nil && m.Restored != 0; m = k.store.find(id) {
			id = m.Restored
		}
		return id
	}
	at := origin(id)
	for range steps {
		if at = origin(at - 1); k.store.find(at) == nil {
			return 0, fmt.Errorf("there is nothing to undo: %w that is %d back", ErrUnknown, steps)
		}
	}
	return at, nil
}

// restore is the work of putting files back.
type restore struct {
	*Keeper
	place    *place
	changes  []change          // old is what is there, new what shall be
	problems map[string]string // by path
	opened   map[string]uint32 // folders that were made writable, with the modes that they are to have
}

// wanted leaves out what cannot be or must not be changed: a path that the target state knows nothing
// of because it was ignored then is left alone.
func (r *restore) wanted(all []change, target uint64) []change {
	state, err := r.stateAt(target)
	if err != nil {
		return all
	}
	var ignored func(name string, dir bool) bool
	ignored = func(name string, dir bool) bool {
		above, _ := split(name)
		return above != "" && ignored(above, true) || state(above).ignores(name, dir)
	}
	return slices.DeleteFunc(all, func(c change) bool {
		switch {
		case c.new == nil:
			return !r.store.find(target).ignored && ignored(c.path, c.old.kind == aDir)
		case c.new.kind == aFile && c.new.held != heldWhole:
			r.problems[c.path] = "its content then " + c.new.held.reason()
			return true
		}
		return false
	})
}

// stateAt returns the rules of .gitignore by folder, as they were at a checkpoint.
func (r *restore) stateAt(id uint64) (of func(dir string) *rules, err error) {
	then := make(map[string]*entry) // .gitignore files that were others than they are now
	changes, err := r.between(r.store.last().ID, id)
	if err != nil {
		return nil, err
	}
	for _, c := range changes {
		if _, base := split(c.path); base == ignoreFile {
			then[c.path] = c.new
		}
	}
	known := make(map[string]*rules)
	of = func(dir string) *rules {
		if r, ok := known[dir]; ok {
			return r
		}
		var above *rules
		if dir != "" {
			up, _ := split(dir)
			above = of(up)
		}
		e, changed := then[join(dir, ignoreFile)]
		if !changed {
			e = r.store.tree.get(join(dir, ignoreFile))
		}
		known[dir] = above
		if e != nil && e.kind == aFile && e.held == heldWhole {
			text, _ := r.store.blobs.read(e, maxIgnoreBytes)
			known[dir] = newRules(above, dir, string(text))
		}
		return known[dir]
	}
	return of, nil
}

// run does it in an order in which each step finds what it needs:
//
//	what goes, the deepest first ─ folders, the highest first ─ files and links ─ second names ─ modes of folders
func (r *restore) run() {
	r.opened = make(map[string]uint32)
	byDepth := slices.Clone(r.changes)
	slices.SortFunc(byDepth, func(a, b change) int { return deepestFirst(a.path, b.path) })
	for _, c := range byDepth {
		if c.old != nil && (c.new == nil || c.old.kind != c.new.kind && (c.old.kind == aDir || c.new.kind == aDir)) {
			r.try(c.path, func() error { return r.gone(c.path) })
		}
	}
	for _, c := range slices.Backward(byDepth) {
		if c.new != nil && c.new.kind == aDir {
			r.try(c.path, func() error { return r.folder(c) })
		}
	}
	r.try(stagingDir, func() error { return r.place.root.Mkdir(stagingDir, 0o700) })
	first := make(map[uint64]string) // path of a file with several names, by its number then
	for _, c := range r.changes {
		if c.new == nil || c.new.kind == aDir {
			continue
		}
		r.try(c.path, func() error { return r.file(c, first) })
	}
	r.problem(stagingDir, r.place.root.RemoveAll(stagingDir))
	for _, dir := range slices.SortedFunc(slices.Values(sortedKeys(r.opened)), deepestFirst) {
		r.problem(dir, r.place.root.Chmod(cmp.Or(dir, "."), fileMode(r.opened[dir])))
	}
}

func (r *restore) problem(path string, err error) {
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.problems[path] = cause(err).Error()
	}
}

// cause returns the system's word for an error, without paths.
func cause(err error) error {
	for {
		switch e := err.(type) {
		case *fs.PathError:
			err = e.Err
		case *os.LinkError:
			err = e.Err
		default:
			return err
		}
	}
}

// try does one step; where the folder it is in does not let it, that is made writable for the time.
func (r *restore) try(name string, step func() error) {
	err := step()
	if dir, _ := split(name); errors.Is(err, fs.ErrPermission) {
		info, wrong := r.place.root.Lstat(cmp.Or(dir, "."))
		if _, done := r.opened[dir]; wrong == nil && info.IsDir() && !done {
			r.opened[dir] = uint32(info.Mode().Perm())
			if e := r.store.tree.get(dir); e != nil {
				r.opened[dir] = e.perm
			}
			if r.place.root.Chmod(cmp.Or(dir, "."), info.Mode()|0o700) == nil {
				err = step()
			}
		}
	}
	r.problem(name, err)
}

// gone removes a path; a folder only where nothing is left in it that is not kept.
func (r *restore) gone(name string) error {
	err := r.place.root.Remove(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		if left, _ := fs.ReadDir(r.place.root.FS(), name); len(left) > 0 {
			return errors.New("the folder stays, as there is something in it that is not kept: " + left[0].Name())
		}
	}
	return err
}

// folder makes a folder; it gets its mode last.
func (r *restore) folder(c change) error {
	err := r.place.root.Mkdir(c.path, 0o700)
	if errors.Is(err, fs.ErrExist) {
		err = nil
	}
	if err == nil {
		r.opened[c.path] = c.new.perm
	}
	return err
}

// file puts a file or link in its place: the new one is made whole elsewhere and takes the name then.
func (r *restore) file(c change, first map[uint64]string) error {
	root, temp := r.place.root, stagingDir+"/new"
	if err := root.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if c.new.kind == aLink {
		if err := root.Symlink(c.new.link, temp); err != nil {
			return err
		}
		return root.Rename(temp, c.path)
	}
	if c.new.nlink > 1 {
		if other := r.other(c, first); other != "" && root.Link(other, temp) == nil {
			return root.Rename(temp, c.path)
		}
		first[c.new.ino] = c.path
	}
	if o := c.old; o != nil && o.kind == aFile && o.held == heldWhole && o.sum == c.new.sum && o.nlink == 1 && c.new.nlink == 1 {
		return r.dress(c.path, c.new)
	}
	f, err := root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(r.store.blobs.copyTo(f, c.new), r.keepOwner(f, c), f.Close()); err != nil {
		return err
	}
	if err := r.dress(temp, c.new); err != nil {
		return err
	}
	return root.Rename(temp, c.path)
}

// dress sets mode and time of a file.
func (r *restore) dress(name string, e *entry) error {
	at := time.Unix(0, e.mtime)
	return errors.Join(r.place.root.Chmod(name, fileMode(e.perm)), r.place.root.Chtimes(name, at, at))
}

// keepOwner gives a file the owner of the one that it takes the place of, as far as this user may.
func (r *restore) keepOwner(f *os.File, c change) error {
	if c.old != nil {
		if info, err := r.place.root.Lstat(c.path); err == nil {
			giveTo(f, info)
		}
	}
	return nil
}

// other returns another name of the file that a path was a name of, which has its content already.
func (r *restore) other(c change, first map[uint64]string) string {
	if name := first[c.new.ino]; name != "" {
		return name
	}
	changed := make(map[string]bool, len(r.changes))
	for _, c := range r.changes {
		changed[c.path] = true
	}
	for name, e := range r.store.tree.below("") {
		if e.kind == aFile && e.ino == c.new.ino && e.nlink > 1 && e.sum == c.new.sum && !changed[name] {
			return name
		}
	}
	return ""
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
