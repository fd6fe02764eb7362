package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"a2e/host/checkpoint"
	"a2e/host/config"
	"a2e/host/snapshot"
	"a2e/host/store"
	"a2e/host/wall"
	"a2e/plugins"
	"a2e/plugins/memory"
	"a2e/protocol"
)

type stateCmd struct {
	Export  stateExportCmd  `cmd:"" help:"Write what the plugins keep as NDJSON."`
	Import  stateImportCmd  `cmd:"" help:"Import what export wrote."`
	Reembed stateReembedCmd `cmd:"" help:"Recompute the vectors of the memory, after the embedding model has changed."`
	Path    statePathCmd    `cmd:"" help:"Print where the state is kept."`
}

type stateExportCmd struct {
	Part   []string `complete:"part" sep:"none" placeholder:"NAME" help:"Only what this plugin type keeps, such as memory; may be given several times."`
	Output string   `short:"o" default:"-" placeholder:"FILE" help:"Write to this file, which appears only once it is complete; - is stdout."`
}

// Run writes the state that there is. It makes no store.
func (e stateExportCmd) Run(cmd *commands, sys *System) error {
	known := partNames()
	for _, name := range e.Part {
		if !slices.Contains(known, name) {
			return fail(exitUsage, unknown("part", name, known))
		}
	}
	return cmd.withState(sys, true, func(ctx context.Context, cfg *config.Config, s store.Store) error {
		if e.Output != "-" {
			defer sys.waitingFor("exporting")()
		}
		return sys.output(e.Output, plugins.StatePath(cfg), func(w io.Writer) error { return s.Export(ctx, w, e.Part...) })
	})
}

func partNames() []string {
	return each(plugins.StateParts(), func(p store.Part) string { return p.Name })
}

type stateImportCmd struct {
	File    string `arg:"" help:"What export wrote; - is stdin."`
	Replace bool   `help:"First delete all records of the imported parts. Without it only equal ones are replaced."`
	JSON    bool   `name:"json" help:"Print the number of records of each kind as JSON."`
}

// Run takes the records in and tells how many of each kind there were.
func (i stateImportCmd) Run(cmd *commands, sys *System) error {
	in, done, err := i.open(sys)
	if err != nil {
		return err
	}
	defer done()
	var counts store.Counts
	err = cmd.withState(sys, false, func(ctx context.Context, _ *config.Config, s store.Store) error {
		how := store.Merge
		if i.Replace {
			how = store.Replace
		}
		defer sys.waitingFor("importing")()
		if counts, err = s.Import(ctx, in, how); err != nil {
			return fmt.Errorf("nothing was imported: %w", err)
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case i.JSON:
		return printJSON(sys.Out, counts)
	}
	words := each(slices.Sorted(maps.Keys(counts)), func(kind string) string { return fmt.Sprintf("%s %d", kind, counts[kind]) })
	if len(words) == 0 {
		words = []string{"no record"}
	}
	say(sys.Err, "imported: %s", strings.Join(words, ", "))
	return nil
}

// open returns the import as a file. What comes through a pipe is put into one first,
// as nobody else can write to the store while it is read.
func (i stateImportCmd) open(sys *System) (in *os.File, done func(), err error) {
	src := sys.In
	if i.File != "-" {
		if src, err = os.Open(i.File); err != nil {
			return nil, nil, err
		}
	}
	if info, err := src.Stat(); err == nil && info.Mode().IsRegular() {
		return src, func() { src.Close() }, nil
	}
	defer src.Close()
	if in, err = os.CreateTemp("", "a2e-import-"); err != nil {
		return nil, nil, err
	}
	_ = os.Remove(in.Name()) // where an open file can be removed: nothing stays, whatever ends the reading
	done = func() {
		in.Close()
		_ = os.Remove(in.Name())
	}
	_, err = io.Copy(in, src)
	if err == nil {
		_, err = in.Seek(0, io.SeekStart)
	}
	if err != nil {
		done()
		return nil, nil, fmt.Errorf("nothing was imported: %w", err)
	}
	return in, done, nil
}

type stateReembedCmd struct{}

// Run makes the vectors with the embedder of the config. On a terminal it shows
// how far it is.
func (stateReembedCmd) Run(cmd *commands, sys *System) error {
	return cmd.withState(sys, true, func(ctx context.Context, cfg *config.Config, s store.Store) error {
		if !hasMemory(cfg) { // the usual embedder would take the place of one that is only left out
			return fail(exitConfig, errors.New("no plugin of the config provides memory"))
		}
		embedder, err := plugins.MemoryEmbedder(cfg)
		if err != nil {
			return fail(exitConfig, err)
		}
		var made, all atomic.Int64
		done := sys.waiting(func() string { return fmt.Sprintf("making vectors: %d of %d", made.Load(), all.Load()) })
		err = memory.Reembed(ctx, s, embedder, func(done, total int) {
			made.Store(int64(done))
			all.Store(int64(total))
		})
		done()
		if err != nil {
			return err
		}
		if model := embedder.Model().Name; model != "" {
			say(sys.Err, "%s embedded with %s", protocol.Count(made.Load(), "entry"), model)
		} else {
			say(sys.Err, "the config has no embeddings: vectors were removed, and search is by words only")
		}
		return nil
	})
}

func hasMemory(cfg *config.Config) bool {
	return slices.ContainsFunc(cfg.Plugins, func(p config.Plugin) bool { return p.Enabled && p.Type == string(protocol.CapMemory) })
}

type statePathCmd struct{}

// Run prints the file of the store, or the address of its server without the password.
func (statePathCmd) Run(cmd *commands, sys *System) error {
	cfg, err := cmd.load(sys, sys.warn)
	if err != nil {
		return err
	}
	place := plugins.StatePlace(cfg)
	if plugins.StatePath(cfg) != "" {
		if place, err = filepath.Abs(place); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintln(sys.Out, place)
	return err
}

// withState opens the store of the config, which has to be there already or is made.
func (c *commands) withState(sys *System, there bool, do func(context.Context, *config.Config, store.Store) error) (err error) {
	ctx, stop := interruptible()
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends even what hangs, on a pipe that nobody reads say
	cfg, err := c.load(sys, sys.warn)
	if err != nil {
		return err
	}
	if there && !plugins.StateKept(cfg) {
		return fmt.Errorf("%s does not exist yet: nothing was kept so far", plugins.StatePath(cfg))
	}
	s, err := plugins.OpenState(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return do(ctx, cfg, s)
}

type snapshotCmd struct {
	Save    snapshotSaveCmd    `cmd:"" help:"Save the current state under a name."`
	Restore snapshotRestoreCmd `cmd:"" help:"Restore the state of a snapshot."`
	List    snapshotListCmd    `cmd:"" help:"List the snapshots, the oldest first."`
	Delete  snapshotDeleteCmd  `cmd:"" help:"Delete a snapshot."`
}

// sessionsDir is where the host collects the state of sessions, within state_dir.
const sessionsDir = "sessions"

// sessions is where they are collected.
func sessions(cfg *config.Config, shared *plugins.Shared) snapshot.Sessions {
	if cfg.Postgres() != "" {
		return snapshot.NewSharedSessions(shared.Store)
	}
	return snapshot.NewSessions(filepath.Join(cfg.StateDir, sessionsDir))
}

// openSnapshots opens the store of snapshots of the config.
func openSnapshots(cfg *config.Config, shared *plugins.Shared) (snapshot.Store, error) {
	state := shared.Store
	if cfg.Postgres() == "" {
		state = nil
	}
	kept, err := snapshot.Open(cfg.SnapshotStore, cfg.StateDir, state)
	if err != nil {
		return nil, fail(exitConfig, fmt.Errorf("%s: %w", cfg.File, err))
	}
	return kept, nil
}

// snapshots hands the store of snapshots to do.
func (c *commands) snapshots(sys *System, do func(context.Context, *config.Config, snapshot.Store) error) error {
	return c.snapshotsOf(sys, func(ctx context.Context, cfg *config.Config, kept snapshot.Store, _ *plugins.Shared) error {
		return do(ctx, cfg, kept)
	})
}

func (c *commands) snapshotsOf(sys *System, do func(context.Context, *config.Config, snapshot.Store, *plugins.Shared) error) (err error) {
	ctx, stop := interruptible()
	defer stop()
	cfg, err := c.load(sys, sys.warn)
	if err != nil {
		return err
	}
	shared := plugins.NewShared(cfg, warnings(sys.warn))
	defer func() { err = errors.Join(err, shared.Close()) }()
	kept, err := openSnapshots(cfg, shared)
	if err != nil {
		return err
	}
	return fail(exitFailed, errors.Join(do(ctx, cfg, kept, shared), kept.Close()))
}

// savable is snapshots for what needs the state itself, and the checkpoints of the files; nil = none are made.
func (c *commands) savable(sys *System, do func(context.Context, snapshot.State, snapshot.Store, *checkpoint.Keeper) error) error {
	return c.snapshotsOf(sys, func(ctx context.Context, cfg *config.Config, kept snapshot.Store, shared *plugins.Shared) (err error) {
		state := snapshot.State{Mode: cfg.SnapshotMode, HostID: cfg.HostID, Now: time.Now, Sessions: sessions(cfg, shared)}
		var files *checkpoint.Keeper
		if cfg.Checkpoints.Enabled {
			files = plugins.NewCheckpoints(cfg, warnings(sys.warn), false)
			defer files.Close()
			state.Files.Workspace = wall.Real(cfg.Workspace)
			state.Files.Machine, _ = os.Hostname() // "" is that of any
		}
		if snapshot.HasParts(cfg.SnapshotMode) {
			if state.Store, err = shared.Store(ctx); err != nil {
				return err
			}
		}
		return do(ctx, state, kept, files)
	})
}

type snapshotSaveCmd struct {
	Name  string `arg:"" help:"Name of the snapshot: letters, digits, dots, underscores and hyphens."`
	Force bool   `help:"Replace the snapshot of that name, if there is one."`
}

// Run saves the state.
func (s snapshotSaveCmd) Run(cmd *commands, sys *System) error {
	if err := snapshot.CheckName(s.Name); err != nil {
		return fail(exitUsage, err)
	}
	return cmd.savable(sys, func(ctx context.Context, state snapshot.State, kept snapshot.Store, files *checkpoint.Keeper) error {
		if files != nil {
			now, err := files.Take(ctx, "snapshot "+s.Name)
			if err != nil {
				return err
			}
			state.Files.Checkpoint = now.ID
		}
		done := sys.waitingFor("saving " + s.Name)
		info, broken, err := state.Save(ctx, kept, s.Name, s.Force)
		done()
		if errors.Is(err, snapshot.ErrExists) {
			return fmt.Errorf("%w; --force replaces it", err)
		}
		if err != nil {
			return err
		}
		for _, b := range broken {
			say(sys.Err, "warning: the state of a session is not in the snapshot: %s", oneLine(b.Error()))
		}
		_, err = fmt.Fprintf(sys.Out, "saved %s: %s%s\n", s.Name, info.Holds, withFiles(state.Files))
		return err
	})
}

// withFiles says which checkpoint goes with a snapshot.
func withFiles(f snapshot.Files) string {
	if f.Checkpoint == 0 {
		return ""
	}
	return fmt.Sprintf("; files: checkpoint %d", f.Checkpoint)
}

type snapshotRestoreCmd struct {
	Name  string `complete:"snapshot" arg:"" help:"Name of the snapshot."`
	Files bool   `help:"Restore the files of the workspace too, to the checkpoint that goes with the snapshot."`
}

// Run puts a snapshot back.
func (s snapshotRestoreCmd) Run(cmd *commands, sys *System) error {
	if err := snapshot.CheckName(s.Name); err != nil {
		return fail(exitUsage, err)
	}
	return cmd.savable(sys, func(ctx context.Context, state snapshot.State, kept snapshot.Store, files *checkpoint.Keeper) error {
		done := sys.waitingFor("restoring " + s.Name)
		holds, then, err := state.Restore(ctx, kept, s.Name)
		done()
		if err != nil {
			return err
		}
		if _, err = fmt.Fprintf(sys.Out, "restored %s: %s%s\n", s.Name, holds, withFiles(then)); err != nil || !s.Files {
			return err
		}
		switch {
		case then.Checkpoint == 0 || files == nil:
			return errors.New("no files go with this snapshot, or checkpoints are off in the config; the rest was restored")
		case then.Workspace != state.Files.Workspace:
			return fmt.Errorf("the files that go with this snapshot are those of %s, which is not the workspace of the config; the rest was restored", oneLine(then.Workspace))
		}
		if there := then.Machine; there != "" && there != state.Files.Machine {
			return fmt.Errorf("the files that go with this snapshot are kept on the machine %s; the rest was restored", oneLine(there))
		}
		put, err := files.Restore(ctx, checkpoint.RestoreOptions{To: then.Checkpoint})
		if err != nil {
			return err
		}
		return printRestored(sys, put, false)
	})
}

type snapshotListCmd struct {
	JSON bool `name:"json" help:"Print the list as JSON."`
}

// Run lists the snapshots.
func (l snapshotListCmd) Run(cmd *commands, sys *System) error {
	return cmd.snapshots(sys, func(ctx context.Context, _ *config.Config, kept snapshot.Store) error {
		all, err := kept.List(ctx)
		if err != nil {
			return err
		}
		return list(sys, l.JSON, all, "no snapshot", []string{"NAME", "MADE", "KIB", "HOLDS"}, func(info snapshot.Info) []string {
			return []string{info.Name, info.Made.Local().Format(time.DateTime), fmt.Sprint((info.Bytes + 1023) / 1024), contents(info)}
		})
	})
}

// contents says what a snapshot holds, as far as it is known.
func contents(info snapshot.Info) string {
	switch {
	case info.Problem != "":
		return info.Problem
	case info.Holds == nil:
		return "?"
	}
	return info.Holds.String()
}

type snapshotDeleteCmd struct {
	Name string `complete:"snapshot" arg:"" help:"Name of the snapshot."`
}

// Run deletes a snapshot.
func (d snapshotDeleteCmd) Run(cmd *commands, sys *System) error {
	if err := snapshot.CheckName(d.Name); err != nil {
		return fail(exitUsage, err)
	}
	return cmd.snapshots(sys, func(ctx context.Context, _ *config.Config, kept snapshot.Store) error {
		if err := kept.Delete(ctx, d.Name); err != nil {
			return err
		}
		_, err := fmt.Fprintf(sys.Out, "deleted %s\n", d.Name)
		return err
	})
}
