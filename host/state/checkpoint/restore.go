package checkpoint

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Restored is the result of a restore.
type Restored struct {
	To       uint64    `json:"to"`       // the checkpoint that was restored
	From     uint64    `json:"from"`     // the checkpoint of the state before, for undoing the restore
	Now      uint64    `json:"now"`      // the checkpoint of the state afterwards
	Changes  []Change  `json:"changes"`  // the changes that were made, or would be made by a dry run
	Problems []Problem `json:"problems"` // paths that could not be restored
	Resumed  bool      `json:"resumed,omitzero"`
}

// RestoreOptions say what to restore.
type RestoreOptions struct {
	To     uint64   // the checkpoint
	Steps  int      // instead of To: this many states back
	Paths  []string // only these paths, and what is in them; nil = all
	DryRun bool     // only report what would be done
}

// pendingRestore is the content of the file that exists while files are restored.
type pendingRestore struct {
	To    uint64   `json:"to"`
	Paths []string `json:"paths"`
}

// Restore restores the workspace to the state of a checkpoint. It first makes a checkpoint of the
// current state. A restore that was killed is continued: with Steps, whatever their number, or with
// To, which may then be another checkpoint.
func (k *Keeper) Restore(ctx context.Context, o RestoreOptions) (Restored, error) {
	if !k.Exists() {
		return Restored{}, ErrNone
	}
	return use(ctx, k, func() (Restored, error) { return k.restore(o) })
}

func (k *Keeper) restore(o RestoreOptions) (done Restored, err error) {
	done.Changes, done.Problems = []Change{}, []Problem{}
	interrupted := k.interrupted()
	before, err := k.take(Info{})
	if err != nil {
		return done, err
	}
	if err := k.know(o.Paths); err != nil {
		return done, err
	}
	switch {
	case o.To != 0:
	case interrupted != nil && k.find(interrupted.To) != nil:
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
	root, err := os.OpenRoot(k.o.Workspace)
	if err != nil {
		return done, err
	}
	defer root.Close()
	r := &restore{Keeper: k, place: openWorkspace{root}, to: k.find(o.To), problems: map[string]string{}}
	if r.changes, err = r.wanted(within(changes, o.Paths)); err != nil {
		return done, err
	}
	r.nested(o.Paths)
	done.To, done.From, done.Now = o.To, before.ID, before.ID
	for _, c := range r.changes {
		done.Changes = append(done.Changes, describe(c))
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

// apply restores the wanted paths, and makes the checkpoint of the state afterwards.
func (k *Keeper) apply(r *restore, o RestoreOptions) (now uint64, err error) {
	note, err := json.Marshal(pendingRestore{o.To, o.Paths},
		jsontext.AllowInvalidUTF8(true)) // then the paths are in the form of shown
	if err != nil {
		return 0, err
	}
	if err := k.write(pendingFile, string(note)); err != nil {
		return 0, err
	}
	before := fmt.Sprint("restore of ", o.To)
	if len(o.Paths) > 0 {
		before += " " + shown(strings.Join(o.Paths, " "))
	}
	if err := k.rename(before); err != nil {
		return 0, err
	}
	r.run()
	after := Info{}
	if len(o.Paths) == 0 {
		after.Restored = o.To
	}
	i, err := k.take(after)
	if err != nil {
		return 0, err
	}
	return i.ID, os.Remove(filepath.Join(k.dir, pendingFile))
}

// giveUp abandons a restore that was killed, because files were changed since.
func (k *Keeper) giveUp() {
	if pending := k.interrupted(); pending != nil {
		_ = os.Remove(filepath.Join(k.dir, pendingFile))
		k.o.Log.Warn().Uint64("checkpoint", pending.To).Msg("checkpoints: a restore was interrupted, and files were " +
			"changed since; restore that checkpoint again for the rest")
	}
}

// interrupted returns the restore that was killed, or nil if there is none.
func (k *Keeper) interrupted() *pendingRestore {
	raw, err := os.ReadFile(filepath.Join(k.dir, pendingFile))
	p := new(pendingRestore)
	if err != nil || json.Unmarshal(raw, p) != nil {
		return nil
	}
	return p
}

// back returns the checkpoint steps states before another one. A checkpoint made by a restore counts
// as the checkpoint that was restored.
func (k *Keeper) back(id uint64, steps int) (uint64, error) {
	origin := func(id uint64) uint64 {
		for m := k.find(id); m != nil && m.Restored != 0; m = k.find(id) {
			id = m.Restored
		}
		return id
	}
	at := origin(id)
	for range steps {
		if at = origin(at - 1); k.find(at) == nil {
			return 0, fmt.Errorf("there is nothing to undo: %w that is %d back", ErrUnknown, steps)
		}
	}
	return at, nil
}

// restore is a restore in progress.
type restore struct {
	*Keeper
	place    openWorkspace
	to       *meta
	changes  []change               // from old, the current state, to new, the wanted one
	problems map[string]string      // by path
	opened   map[string]fs.FileMode // folders that were made writable, with the modes that they get at the end
}

// wanted removes the changes that cannot or must not be made. A path that the target state does not
// contain because it was ignored at that time is not changed.
func (r *restore) wanted(all []change) ([]change, error) {
	ignored, err := r.ignored(all)
	return slices.DeleteFunc(all, func(c change) bool {
		switch {
		case r.hides(c.path) || c.new == nil && ignored[c.path]:
			return true
		case !c.old.kept() && c.new.kept():
			r.problems[c.path] = "left as it is, since its content now " + c.old.left.Why +
				", so that this could not be undone"
			return true
		case !c.new.kept():
			r.problems[c.path] = "its content then " + c.new.left.Why
			return true
		}
		return false
	}), err
}

// ignored returns which of the paths to remove .gitignore excluded at the time of the checkpoint. git
// decides that in a folder that contains only the .gitignore files of that time.
func (r *restore) ignored(all []change) (map[string]bool, error) {
	var gone []string
	for _, c := range all {
		if name := "./" + c.path; c.new == nil { // with "./" no name is a pattern
			if c.old.mode == aFolder {
				name += "/" + staging
			}
			gone = append(gone, name)
		}
	}
	found := map[string]bool{}
	if len(gone) == 0 || r.to.IncludesIgnored {
		return found, nil
	}
	then := filepath.Join(r.dir, "then")
	if err := errors.Join(os.RemoveAll(then), os.Mkdir(then, 0o700), r.write(goneFile, list(gone))); err != nil {
		return nil, err
	}
	defer os.RemoveAll(then)
	var out bytes.Buffer
	err := r.script(&out, `export GIT_INDEX_FILE="$GIT_DIR/then.index" GIT_WORK_TREE="$GIT_DIR/then"
		unset GIT_LITERAL_PATHSPECS
		git read-tree "$TREE" && cd "$GIT_WORK_TREE" || exit
		git ls-files -z -- ":(glob)**/.gitignore" >"$GIT_DIR/others" || exit
		git checkout-index -q -z --stdin <"$GIT_DIR/others" || exit
		git check-ignore --no-index -z --stdin <"$GIT_DIR/gone" || [ $? = 1 ]`, "TREE", r.to.tree)
	for name := range strings.SplitSeq(out.String(), "\x00") {
		found[strings.TrimSuffix(strings.TrimPrefix(name, "./"), "/"+staging)] = true
	}
	return found, err
}

const goneFile = "gone" // names that may be ignored

// nested reports the nested repositories that have disappeared since the checkpoint.
func (r *restore) nested(paths []string) {
	for _, quoted := range r.to.Nested {
		name := unquote(quoted)
		was := []change{{path: name}}
		if _, err := r.place.root.Lstat(name); errors.Is(err, fs.ErrNotExist) && len(within(was, paths)) > 0 {
			r.problems[name] = "checkpoints do not keep nested repositories"
		}
	}
}
