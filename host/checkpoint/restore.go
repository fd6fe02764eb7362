package checkpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/swap"
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
func (k *Keeper) Restore(ctx context.Context, o RestoreOptions) (Restored, error) {
	if !k.Exists() {
		return Restored{}, ErrNone
	}
	return use(ctx, k, func(p *place) (Restored, error) { return k.restore(p, o) })
}

func (k *Keeper) restore(p *place, o RestoreOptions) (done Restored, err error) {
	done.Changes, done.Problems = []Change{}, []Problem{}
	interrupted := k.interrupted()
	before, err := k.take(p, Info{})
	if err != nil {
		return done, err
	}
	if interrupted != nil {
		k.clean(p)
	}
	if err := k.know(o.Paths); err != nil {
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
	for _, path := range slices.Sorted(maps.Keys(r.problems)) {
		done.Problems = append(done.Problems, Problem{shown(path), r.problems[path]})
	}
	return done, nil
}

// apply puts back what is wanted, and makes the checkpoint of the state afterwards.
func (k *Keeper) apply(r *restore, o RestoreOptions) (now uint64, err error) {
	note, err := json.Marshal(pendingRestore{o.To, o.Paths}, jsontext.AllowInvalidUTF8(true)) // paths as they are shown, then
	if err != nil {
		return 0, err
	}
	if err := k.store.dir.Replace(pendingFile, note); err != nil {
		return 0, err
	}
	before := k.store.last().Info
	if before.Before = fmt.Sprint("restore of ", o.To); len(o.Paths) > 0 {
		before.Before += " " + shown(strings.Join(o.Paths, " "))
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
		k.clean(p)
		_ = k.store.dir.Remove(pendingFile)
		k.o.Log.Warn().Uint64("checkpoint", pending.To).Msg("checkpoints: a restore was interrupted, and files were " +
			"changed since; restore that checkpoint again for the rest")
	}
}

// clean removes the file that a restore that was killed was about to put in its place, wherever that is.
func (k *Keeper) clean(p *place) {
	for dir := range k.store.tree {
		_ = p.root.Remove(join(dir, staging))
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
		now := r.store.tree.get(c.path)
		switch {
		case r.hidden(c):
			if _, base := split(c.path); c.new != nil && isRepository(base) {
				r.problems[c.path] = "checkpoints do not keep nested repositories"
			}
			return true
		case now != nil && now.kind == aFile && now.held != heldWhole && (c.new == nil || c.new.held == heldWhole):
			if c.new == nil && !r.store.find(target).ignored && ignored(c.path, false) {
				return true
			}
			r.problems[c.path] = "left as it is, since its content now " + now.held.reason() +
				", so that this could not be undone"
			return true
		case c.new == nil:
			return !r.store.find(target).ignored && ignored(c.path, c.old.kind == aDir)
		case c.new.kind == aFile && c.new.held != heldWhole:
			r.problems[c.path] = "its content then " + c.new.held.reason()
			return true
		}
		return false
	})
}

// hidden reports whether a path is left alone, which it may not always have been.
func (r *restore) hidden(c change) bool {
	name := c.path
	if (c.old == nil || r.isGitLink(name, c.old)) && (c.new == nil || r.isGitLink(name, c.new)) {
		name, _ = split(name)
	}
	for ; name != ""; name, _ = split(name) {
		if r.leftAlone(name) {
			return true
		}
	}
	return false
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
			r.try(c.path, func(dir *os.Root, base string) error { return r.gone(dir, base, c.path) })
		}
	}
	for _, c := range slices.Backward(byDepth) {
		if c.new != nil && c.new.kind == aDir {
			r.try(c.path, func(dir *os.Root, base string) error { return r.folder(dir, base, c) })
		}
	}
	first := make(map[uint64]string) // path of a file with several names, by its number then
	for _, c := range r.changes {
		if c.new == nil || c.new.kind == aDir {
			continue
		}
		r.try(c.path, func(dir *os.Root, base string) error {
			err := r.file(dir, base, c, first)
			_ = dir.Remove(staging)
			return err
		})
	}
	for _, dir := range slices.SortedFunc(maps.Keys(r.opened), deepestFirst) {
		r.problem(dir, r.in(dir, func(at *os.Root, base string) error { return at.Chmod(base, fileMode(r.opened[dir])) }))
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

// in does one step in the folder that a path is in, which is opened anew, with no link on the way:
// whatever takes its place meanwhile is not touched.
func (r *restore) in(name string, step func(dir *os.Root, base string) error) error {
	above, base := split(name)
	dir, err := r.place.folder(above)
	if err != nil {
		return err
	}
	defer dir.Close()
	return step(dir, cmp.Or(base, "."))
}

// try is in; where the folder does not let it, that is made writable for the time.
func (r *restore) try(name string, step func(dir *os.Root, base string) error) {
	err := r.in(name, step)
	if dir, _ := split(name); errors.Is(err, fs.ErrPermission) {
		if _, done := r.opened[dir]; !done && r.in(dir, func(at *os.Root, base string) error { return r.unlock(at, base, dir) }) == nil {
			err = r.in(name, step)
		}
	}
	r.problem(name, err)
}

// unlock makes a folder writable until the end.
func (r *restore) unlock(at *os.Root, base, dir string) error {
	info, err := at.Lstat(base)
	if err == nil && !info.IsDir() {
		err = errSwapped
	}
	if err != nil {
		return err
	}
	r.opened[dir] = uint32(info.Mode().Perm())
	if e := r.store.tree.get(dir); e != nil {
		r.opened[dir] = e.perm
	}
	return at.Chmod(base, info.Mode()|0o700)
}

// gone removes a path; a folder only where nothing is left in it that is not kept.
func (r *restore) gone(dir *os.Root, base, name string) error {
	unlock, err := swap.Lock(r.ctx, dir) // another host may edit the file
	if err != nil {
		return err
	}
	defer unlock()
	if err := r.unchanged(name); err != nil {
		return err
	}
	err = dir.Remove(base)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		if f, wrong := dir.Open(base); wrong == nil {
			defer f.Close()
			if left, _ := f.Readdirnames(1); len(left) > 0 {
				return errors.New("not removed, since it holds content that is not kept: " + left[0])
			}
		}
	}
	return err
}

// unchanged reports what is under a name that is in no checkpoint: what could not be brought back is not
// written over.
func (r *restore) unchanged(name string) error {
	dir, base := split(name)
	found, err := r.place.list(dir, []string{base})
	if err != nil || len(found) == 0 {
		return err
	}
	was, now := r.store.tree.get(name), &found[0]
	switch {
	case now.kind == aDir:
		return nil // only an empty one can go
	case was == nil:
		return errors.New("what is there now is not kept and would be lost")
	case was.kind != now.kind || was.ino != now.ino || was.size != now.size || was.mtime != now.mtime || was.link != now.link:
		return errors.New("it was changed during the restore, and left as it is")
	}
	return nil
}

// folder makes a folder; it gets its mode last.
func (r *restore) folder(dir *os.Root, base string, c change) error {
	err := dir.Mkdir(base, 0o700)
	if errors.Is(err, fs.ErrExist) {
		err = nil
	}
	if err == nil {
		r.opened[c.path] = c.new.perm
	}
	return err
}

// file puts a file or link in its place: the new one is made whole beside it and takes the name then.
func (r *restore) file(dir *os.Root, base string, c change, first map[uint64]string) error {
	if err := dir.RemoveAll(staging); err != nil {
		return err
	}
	o := c.old
	switch {
	case c.new.kind == aLink:
		if err := dir.Symlink(c.new.link, staging); err != nil {
			return err
		}
	case c.new.nlink > 1 && r.link(dir, c, first):
	case o != nil && o.kind == aFile && o.held == heldWhole && o.sum == c.new.sum && o.nlink == 1 && c.new.nlink == 1:
		return r.dress(dir, base, c)
	default:
		if err := r.copy(dir, base, c); err != nil {
			return err
		}
		if c.new.nlink > 1 {
			first[c.new.ino] = c.path
		}
	}
	unlock, err := swap.Lock(r.ctx, dir) // another host may edit the file
	if err != nil {
		return err
	}
	defer unlock()
	if err := r.unchanged(c.path); err != nil {
		return err
	}
	return dir.Rename(staging, base)
}

// link makes what is put in place of a path a further name of the file that it was a name of, where that
// is there.
func (r *restore) link(dir *os.Root, c change, first map[uint64]string) bool {
	other := r.other(c, first)
	if other == "" {
		return false
	}
	at, _ := split(c.path)
	if r.place.root.Link(other, join(at, staging)) != nil {
		return false
	}
	made, err := dir.Lstat(staging)
	if err == nil {
		err = r.in(other, func(at *os.Root, base string) error { // a link on the way may have led to something else
			info, err := at.Lstat(base)
			if err == nil && !os.SameFile(info, made) {
				err = errSwapped
			}
			return err
		})
	}
	if err != nil {
		_ = dir.Remove(staging)
	}
	return err == nil
}

// copy makes the file that is put in place of a path.
func (r *restore) copy(dir *os.Root, base string, c change) error {
	f, err := dir.OpenFile(staging, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = r.store.blobs.copyTo(f, c.new)
	if err == nil {
		err = r.keepRights(dir, base, f, c)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return r.dress(dir, staging, c)
}

// keepRights gives the new file the owner, the ACL and the attributes of the one that it replaces.
func (r *restore) keepRights(dir *os.Root, base string, f *os.File, c change) error {
	if c.old == nil || c.old.kind != aFile {
		return swap.Bare(f)
	}
	old, err := dir.OpenFile(base, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer old.Close()
	if err := swap.Keep(f, old); err != nil {
		return fmt.Errorf("left as it is, since a new file cannot have its owner and permissions: %w", cause(err))
	}
	return nil
}

// dress sets mode and time of a file. Others must not get more rights than they had: the group of a file
// that has lost its ACL gets none.
func (r *restore) dress(dir *os.Root, name string, c change) error {
	perm, at := c.new.perm, time.Unix(0, c.new.mtime)
	if perm&hasACL != 0 && !acl(dir, name) {
		perm &^= 0o070
		r.problems[c.path] = "its ACL was not kept; it was restored without one, and without permissions for its group"
	}
	return errors.Join(dir.Chmod(name, fileMode(perm)), dir.Chtimes(name, at, at))
}

// acl reports whether a file has an ACL.
func acl(dir *os.Root, name string) bool {
	f, err := dir.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	return swap.HasACL(f)
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
