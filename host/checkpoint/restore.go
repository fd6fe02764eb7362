package checkpoint

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
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
