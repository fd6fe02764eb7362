package fleet

import (
	"context"
	"embed"
	"errors"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/rs/zerolog"

	"a2e/host/dialect"
	"a2e/host/guard/wall"
	"a2e/host/state/store"
	"a2e/protocol/fleet"
)

const (
	maxRemembered      = 1000     // results in memory
	maxRememberedBytes = 16 << 20 // bytes of results in memory
	maxKept            = 10_000   // results in the store
	maxKeptBytes       = 64 << 20 // bytes of results in the store, approximately
	largeResult        = 64 << 10 // the bytes in the store are counted only after a result of this size
	keepTimeout        = 2 * time.Second
)

// results keeps the results of tasks that are done, so that a task that is sent again is not done again. In the store
// they belong to one workspace, because tasks of another workspace may have the same ids.
type results struct {
	workspace string
	store     store.Opener // nil = memory only
	log       zerolog.Logger
	room      room
	patience  time.Duration // how long the store may take for one result
	off       bool          // nothing is kept: the sender of the tasks keeps the results

	mu    sync.Mutex
	known []kept // results that are not in the store, the oldest first; guarded by mu
}

// room is how many bytes of results may be kept.
type room struct{ memory, store int }

// kept is a stored result.
type kept struct {
	Workspace string         `json:"workspace"` // the workspace of the task
	Result    jsontext.Value `json:"result"`    // the TASK_RESULT
	task      string         // the id it is kept under, in memory only
}

// get returns the result that is kept under an id, whatever the brief of its task was; nil = there is none.
func (r *results) get(ctx context.Context, id string) *fleet.Result {
	if r.off {
		return nil
	}
	var text string
	r.mu.Lock()
	if at := slices.IndexFunc(r.known, func(k kept) bool { return k.task == id }); at >= 0 {
		text = string(r.known[at].Result)
	}
	r.mu.Unlock()
	if text == "" && r.store != nil {
		err := r.store.Read(ctx, func(tx *store.Tx) error {
			_, err := tx.Get("SELECT result FROM fleet_results WHERE workspace = $1 AND task_id = $2",
				[]any{r.workspace, id}, &text)
			return err
		})
		if err != nil && !errors.Is(err, context.Canceled) {
			r.log.Warn().Err(err).Str("task_id", id).Msg("the results of earlier tasks cannot be read; if this task " +
				"was done, it is done again")
		}
	}
	result := new(fleet.Result)
	if text == "" || json.Unmarshal([]byte(text), result) != nil || result.Status != fleet.StatusDone {
		return nil // earlier versions stored other results, too
	}
	return result
}

// keep stores the result of a task under an id: in the store, or in memory if there is none or it fails.
func (r *results) keep(ctx context.Context, id string, result *fleet.Result) {
	if r.off {
		return
	}
	text, err := json.Marshal(result, jsontext.AllowInvalidUTF8(true))
	if err != nil {
		return // then it cannot be sent either, and encode logs that
	}
	k := kept{r.workspace, text, id}
	if r.store != nil {
		patience := r.patience
		if ctx.Err() != nil { // the host ends
			patience = min(patience, endGrace)
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		err := dialect.Write(ctx, r.store, func(tx *store.Tx) error { return k.write(tx, k.task, r.room.store) })
		if err == nil {
			return
		}
		r.log.Warn().Err(err).Str("task_id", result.TaskID).Msg("the result of a task is not stored; sent again " +
			"after a restart, the task would be done again")
	}
	r.remember(k)
}

// remember keeps a result in memory, and drops the oldest ones beyond the limits.
func (r *results) remember(k kept) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known = append(slices.DeleteFunc(r.known, func(old kept) bool { return old.task == k.task }), k)
	bytes := 0
	for at, k := range slices.Backward(r.known) {
		if bytes += len(k.Result); bytes > r.room.memory || len(r.known)-at > maxRemembered {
			r.known = slices.Delete(r.known, 0, at+1)
			return
		}
	}
}

// write puts a result into the store, and deletes the oldest ones beyond the limits.
func (k kept) write(tx *store.Tx, id string, room int) error {
	if _, err := tx.Exec("DELETE FROM fleet_results WHERE workspace = $1 AND task_id = $2", k.Workspace,
		id); err != nil {
		return err
	}
	if _, err := tx.Exec("INSERT INTO fleet_results (workspace, task_id, result, size) VALUES ($1, $2, $3, $4)",
		k.Workspace, id, string(k.Result), len(k.Result)); err != nil {
		return err
	}
	if _, err := tx.Exec("DELETE FROM fleet_results WHERE number <= (SELECT max(number) FROM fleet_results) - $1",
		maxKept); err != nil || len(k.Result) < largeResult {
		return err
	}
	return store.Bound{
		Table: "fleet_results", Key: "number", Newest: "number DESC", Most: maxKept, Size: "size",
		Bytes: room,
	}.Prune(tx)
}

//go:embed sql/*.sql
var tables embed.FS

// Part returns the part of a store that the package keeps.
func Part() store.Part {
	records := store.Kinds{store.RecordsOf("fleet.result", "SELECT workspace, result FROM fleet_results ORDER BY "+
		"number", func(k *kept) []any {
		return []any{&k.Workspace, (*[]byte)(&k.Result)}
	}, func(k *kept, tx *store.Tx) error {
		var result fleet.Result
		if err := json.Unmarshal(k.Result, &result); err != nil {
			return err
		}
		return k.write(tx, result.TaskID, maxKeptBytes)
	})}
	return store.Part{
		Name: "fleet", SQL: tables,
		Export: records.Export, Import: records.Import, Clear: store.ClearTables("fleet_results"),
	}
}

// Limits of the changes that a result carries, in bytes.
const (
	maxPatch = 2 << 20
	maxFile  = 1 << 20
	maxBytes = 4 << 20 // all files together
)

// carry adds the contents of the files that a task has changed in the workspace to its result. It leaves out files that
// agents must not see.
func (f *Front) carry(result *fleet.Result) {
	if !f.opts.Carry || len(result.Artifacts.FilesChanged) == 0 {
		return
	}
	root, err := os.OpenRoot(f.opts.Workspace)
	if err != nil {
		return
	}
	defer root.Close()
	room := maxBytes
	for _, name := range result.Artifacts.FilesChanged {
		file := fleet.File{Path: name}
		var err error
		var large wall.TooLargeError
		switch file.Content, err = f.opts.Wall.ReadFile(root, name, min(maxFile, room)); {
		case errors.Is(err, fs.ErrNotExist):
			file.Gone = true
		case errors.As(err, &large):
			file.Left = "it is too large"
		case err != nil:
			file.Left = "it is not a regular file that may be read"
		}
		room -= len(file.Content)
		result.Artifacts.Files = append(result.Artifacts.Files, file)
	}
}

// carryPatch adds the changes of a branch to the result.
func (f *Front) carryPatch(ctx context.Context, w *worktree, result *fleet.Result) {
	if !f.opts.Carry || result.Artifacts.Branch == "" {
		return
	}
	patch, err := w.main.Diff(ctx, maxPatch, w.base, result.Artifacts.Branch)
	if err != nil {
		result.NextSteps = append(result.NextSteps, "fetch the branch "+result.Artifacts.Branch+" from the worker's "+
			"repository, as the result does not carry it: "+reason(err))
		return
	}
	result.Artifacts.Patch = patch
}
