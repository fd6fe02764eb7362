package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"a2e/host"
	"a2e/host/config"
	"a2e/host/snapshot"
	"a2e/plugins"
)

type snapshotCmd struct {
	Save    snapshotSaveCmd    `cmd:"" help:"Keep the state there is under a name."`
	Restore snapshotRestoreCmd `cmd:"" help:"Put back the state that a snapshot holds."`
	List    snapshotListCmd    `cmd:"" help:"List the snapshots, the oldest first."`
	Delete  snapshotDeleteCmd  `cmd:"" help:"Delete a snapshot."`
}

// sessionsDir is where the host collects the state of sessions, within state_dir.
const sessionsDir = "sessions"

// sessionStates is what host.Options take as Sessions; nil = nothing is collected.
func sessionStates(cfg *config.Config) host.SessionStates {
	if !snapshot.HasSessions(cfg.SnapshotMode) {
		return nil
	}
	return snapshot.NewSessions(filepath.Join(cfg.StateDir, sessionsDir))
}

// snapshots hands the store of snapshots to do.
func (c *commands) snapshots(sys *System, do func(context.Context, *config.Config, snapshot.Store) error) error {
	ctx, stop := interruptible()
	defer stop()
	cfg, err := c.load(sys, sys.warn)
	if err != nil {
		return err
	}
	kept, err := snapshot.Open(cfg.SnapshotStore, cfg.StateDir)
	if err != nil {
		return fail(exitConfig, fmt.Errorf("%s: %w", cfg.File, err))
	}
	return fail(exitFailed, errors.Join(do(ctx, cfg, kept), kept.Close()))
}

// savable is snapshots for what needs the state itself.
func (c *commands) savable(sys *System, do func(context.Context, snapshot.State, snapshot.Store) error) error {
	return c.snapshots(sys, func(ctx context.Context, cfg *config.Config, kept snapshot.Store) error {
		state := snapshot.State{
			Mode: cfg.SnapshotMode, HostID: cfg.HostID, Now: time.Now,
			Sessions: snapshot.NewSessions(filepath.Join(cfg.StateDir, sessionsDir)),
		}
		if !snapshot.HasParts(cfg.SnapshotMode) {
			return do(ctx, state, kept)
		}
		opened, err := plugins.OpenState(ctx, cfg)
		if err != nil {
			return err
		}
		state.Store = opened
		return errors.Join(do(ctx, state, kept), opened.Close())
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
	return cmd.savable(sys, func(ctx context.Context, state snapshot.State, kept snapshot.Store) error {
		info, broken, err := state.Save(ctx, kept, s.Name, s.Force)
		if errors.Is(err, snapshot.ErrExists) {
			return fmt.Errorf("%w; --force replaces it", err)
		}
		if err != nil {
			return err
		}
		for _, b := range broken {
			say(sys.Err, "warning: the state of a session is not in the snapshot: %s", oneLine(b.Error()))
		}
		_, err = fmt.Fprintf(sys.Out, "saved %s: %s\n", s.Name, info.Holds)
		return err
	})
}

type snapshotRestoreCmd struct {
	Name string `arg:"" help:"Name of the snapshot."`
}

// Run puts a snapshot back.
func (s snapshotRestoreCmd) Run(cmd *commands, sys *System) error {
	if err := snapshot.CheckName(s.Name); err != nil {
		return fail(exitUsage, err)
	}
	return cmd.savable(sys, func(ctx context.Context, state snapshot.State, kept snapshot.Store) error {
		holds, err := state.Restore(ctx, kept, s.Name)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(sys.Out, "restored %s: %s\n", s.Name, holds)
		return err
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
		if l.JSON {
			return printJSON(sys.Out, all)
		}
		if len(all) == 0 {
			say(sys.Err, "no snapshot")
			return nil
		}
		var t table
		t.row("NAME", "MADE", "KIB", "HOLDS")
		for _, info := range all {
			t.row(info.Name, info.Made.Local().Format("2006-01-02 15:04:05"), fmt.Sprint((info.Bytes+1023)/1024), contents(info))
		}
		return t.print(sys.Out, sys.columns())
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
	Name string `arg:"" help:"Name of the snapshot."`
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
