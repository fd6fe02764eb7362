package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"a2e/host/config"
	"a2e/host/state/checkpoint"
	"a2e/plugins"
	"a2e/protocol"
)

type checkpointsCmd struct {
	List    checkpointsListCmd    `cmd:"" help:"List the checkpoints of the workspace, the oldest first."`
	Diff    checkpointsDiffCmd    `cmd:"" help:"Show what has changed since a checkpoint, or between two."`
	Restore checkpointsRestoreCmd `cmd:"" help:"Restore the workspace, or part of it, to a checkpoint."`
}

// keeper passes the checkpoints of the config's workspace to do.
func (c *commands) keeper(sys *System, do func(context.Context, *checkpoint.Keeper) error) error {
	ctx, stop := interruptible()
	defer stop()
	cfg, err := c.load(sys, sys.warn)
	if err != nil {
		return err
	}
	return keeping(ctx, cfg, sys.warn, do)
}

// keeping passes the checkpoints of a config's workspace to do.
func keeping(
	ctx context.Context, cfg *config.Config, warn func(string), do func(context.Context, *checkpoint.Keeper) error,
) error {
	shared := plugins.NewShared(cfg, warnings(warn), nil)
	k := shared.KeeperOf(cfg, warnings(warn))
	err := do(ctx, k)
	if errors.Is(err, checkpoint.ErrNone) {
		err = fmt.Errorf("%w (%s); %s", checkpoint.ErrNone, oneLine(cfg.Workspace), whyNone(cfg, k))
	}
	return fail(exitFailed, errors.Join(err, k.Close(), shared.Close()))
}

// whyNone explains why a workspace has no checkpoint.
func whyNone(cfg *config.Config, k *checkpoint.Keeper) string {
	switch former := formerOnes(k); {
	case former != "":
		return former
	case cfg.Checkpoints.Enabled:
		return "the host makes the first one in the next session"
	}
	return "set checkpoints: true in the config to have them made"
}

// formerOnes says where checkpoints of an earlier version are; "" = there are none.
func formerOnes(k *checkpoint.Keeper) string {
	if old := k.Former(); old != "" {
		return "those of an earlier version, in " + oneLine(old) + ", are not read"
	}
	return ""
}

type checkpointsListCmd struct {
	JSON bool `name:"json" help:"Print the list as JSON."`
}

// Run lists the checkpoints. The line of a checkpoint shows what changed after it.
func (l checkpointsListCmd) Run(cmd *commands, sys *System) error {
	return cmd.keeper(sys, func(ctx context.Context, k *checkpoint.Keeper) error {
		done := sys.waitingFor("looking for checkpoints")
		all, err := k.List(ctx)
		done()
		if err != nil {
			return err
		}
		if l.JSON {
			return printJSON(sys.Out, append([]checkpoint.Info{}, all...))
		}
		if len(all) == 0 {
			say(sys.Err, "%s", strings.TrimSuffix("no checkpoint; "+formerOnes(k), "; "))
			return nil
		}
		var t table
		t.header("ID", "MADE", "FILES", "CHANGED AFTER", "BEFORE")
		for i, c := range all {
			after := "?" // the workspace was not compared yet
			if i+1 < len(all) {
				after = fmt.Sprint(all[i+1].Changed)
			}
			before := c.Before
			if c.Restored != 0 {
				before = strings.TrimSpace(fmt.Sprintf("(%d again) %s", c.Restored, before))
			}
			t.row(fmt.Sprint(c.ID), c.Made.Local().Format("2006-01-02 15:04:05"), fmt.Sprint(c.Files), after, before)
		}
		if last := all[len(all)-1]; last.LeftOut > 0 {
			say(sys.Err, "note: the content of %s is not kept: too large, beyond max_bytes, or not readable",
				protocol.Count(last.LeftOut, "file"))
		}
		return t.show(sys)
	})
}

type checkpointsDiffCmd struct {
	From  uint64   `arg:"" optional:"" help:"The earlier checkpoint. Default: the one that an undo would restore."`
	To    uint64   `arg:"" optional:"" help:"The later one. Default: the workspace as it is now."`
	Path  []string `sep:"none" placeholder:"PATH" help:"Only this file or folder, relative to the workspace; may be given several times."`
	Patch bool     `short:"p" help:"Show the lines of text files too."`
	JSON  bool     `name:"json" help:"Print the changes as JSON."`
}

// Run prints a line for each path that differs.
func (d checkpointsDiffCmd) Run(cmd *commands, sys *System) error {
	return cmd.keeper(sys, func(ctx context.Context, k *checkpoint.Keeper) error {
		done := sys.waitingFor("comparing")
		all, err := k.Diff(ctx, checkpoint.DiffOptions{From: d.From, To: d.To, Paths: d.Path, Patch: d.Patch})
		done()
		switch {
		case err != nil:
			return err
		case d.JSON:
			return printJSON(sys.Out, append([]checkpoint.Change{}, all...))
		case len(all) == 0:
			say(sys.Err, "nothing differs")
		}
		return printChanges(sys.Out, all)
	})
}

// printChanges prints a line for each change, and its patch if it has one.
func printChanges(w io.Writer, all []checkpoint.Change) error {
	for _, c := range all {
		line := fmt.Sprintf("%-8s %s", c.Kind, oneLine(c.Path))
		if c.What != "file" {
			line += " (" + c.What + ")"
		}
		if c.Note != "" {
			line += " (its content before " + c.Note + ")"
		}
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
		if _, err := w.Write(escapeUnseen([]byte(c.Patch))); err != nil {
			return err
		}
	}
	return nil
}

type checkpointsRestoreCmd struct {
	ID     uint64   `arg:"" help:"The checkpoint."`
	Paths  []string `arg:"" optional:"" help:"Only these files and folders, relative to the workspace."`
	DryRun bool     `help:"Only show what would be done."`
	JSON   bool     `name:"json" help:"Print what was done as JSON."`
}

// Run restores the files.
func (r checkpointsRestoreCmd) Run(cmd *commands, sys *System) error {
	return cmd.putBack(sys, checkpoint.RestoreOptions{To: r.ID, Paths: r.Paths, DryRun: r.DryRun}, r.JSON)
}

type undoCmd struct {
	Steps  int  `arg:"" optional:"" default:"1" help:"How many states to go back."`
	DryRun bool `help:"Only show what would be done."`
	JSON   bool `name:"json" help:"Print what was done as JSON."`
}

// Run restores the workspace to its state before the last changes.
func (u undoCmd) Run(cmd *commands, sys *System) error {
	if u.Steps < 1 {
		return fail(exitUsage, fmt.Errorf("cannot go back %d states; give 1 or more", u.Steps))
	}
	return cmd.putBack(sys, checkpoint.RestoreOptions{Steps: u.Steps, DryRun: u.DryRun}, u.JSON)
}

// putBack restores files, and prints what was done and how to undo that.
func (c *commands) putBack(sys *System, o checkpoint.RestoreOptions, asJSON bool) error {
	return c.keeper(sys, func(ctx context.Context, k *checkpoint.Keeper) error {
		waited := sys.waitingFor("restoring files")
		done, err := k.Restore(ctx, o)
		waited()
		if err != nil {
			return err
		}
		if asJSON {
			err = printJSON(sys.Out, done)
		} else {
			err = printRestored(sys, done, o.DryRun)
		}
		if err == nil && len(done.Problems) > 0 {
			err = fmt.Errorf("could not restore %s", protocol.Count(len(done.Problems), "path"))
		}
		return err
	})
}

func printRestored(sys *System, done checkpoint.Restored, dryRun bool) error {
	if err := printChanges(sys.Out, done.Changes); err != nil {
		return err
	}
	for _, p := range done.Problems {
		say(sys.Err, "not restored: %s: %s", oneLine(p.Path), oneLine(p.Why))
	}
	switch {
	case dryRun:
		say(sys.Err, "nothing was changed; checkpoint %d would be restored", done.To)
	case len(done.Changes) == 0:
		say(sys.Err, "nothing differs from checkpoint %d", done.To)
	case done.Resumed:
		say(sys.Err, "an interrupted restore of checkpoint %d is now complete (a2e checkpoints restore %d undoes it)",
			done.To, done.From)
	default:
		say(sys.Err, "restored checkpoint %d (a2e checkpoints restore %d undoes that); "+
			"times, empty folders and hard links are not kept", done.To, done.From)
	}
	return nil
}
