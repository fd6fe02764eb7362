package tools

import (
	"context"
	"errors"
	"slices"

	"a2e/host"
	"a2e/host/checkpoint"
	"a2e/protocol"
)

// checkpoints are the tools for what is kept of the workspace.
type checkpoints struct{ keeper *checkpoint.Keeper }

func (c *checkpoints) tools(restore bool) []Tool {
	all := []Tool{
		tool(protocol.ToolDefinition{
			Name: "checkpoint_list", Idempotent: true, Tags: []string{"checkpoint", "undo"},
			Description:      "List the latest checkpoints of the workspace, the newest first: what its files were before each request that may have changed them.",
			InputParameters:  parameters{may("limit", "integer", "How many at most (default 20).")},
			OutputParameters: parameters{need("checkpoints", "array", "Each with id, made, before (what came after it), changed (paths that differ from the one before it), files, left_out.")},
		}, host.ToolDetail{ReadOnly: true}, c.list),
		tool(protocol.ToolDefinition{
			Name: "checkpoint_diff", Idempotent: true, Tags: []string{"checkpoint", "undo"},
			Description: "Show what changed in the workspace since a checkpoint, or between two. Without from: since the last state that differs.",
			InputParameters: parameters{
				may("from", "integer", "Id of the earlier checkpoint."), may("to", "integer", "Id of the later one (default: the workspace as it is now)."),
				may("path", "string", "Only this file or folder."), may("patch", "boolean", "With the lines of text files (default false)."),
			},
			OutputParameters: parameters{need("changes", "array", "Each with path, kind (added, removed, changed, mode, time), what (file, folder, link), bytes, perhaps note and patch.")},
		}, host.ToolDetail{ReadOnly: true}, c.diff),
	}
	if restore {
		all = append(all, tool(protocol.ToolDefinition{
			Name: "checkpoint_restore", Tags: []string{"checkpoint", "undo"},
			Description: "Put the workspace, or some of it, back to what it was at a checkpoint. The state before becomes a checkpoint first (from in the answer), so that this can be undone too.",
			InputParameters: parameters{
				need("id", "integer", "The checkpoint."), may("paths", "array", "Only these files and folders (default: all)."),
				may("dry_run", "boolean", "Only say what would be done (default false)."),
			},
			OutputParameters: parameters{
				need("to", "integer", "The checkpoint that was put back."), need("from", "integer", "The checkpoint of the state before."),
				need("now", "integer", "The checkpoint of the state afterwards."), need("changes", "array", "What was done, as checkpoint_diff has it."),
				need("problems", "array", "What could not be put back: path and why."),
			},
		}, host.ToolDetail{Destructive: true, Idempotent: true}, c.restore))
		all[len(all)-1].Files = func(protocol.Object) host.Files { return host.Files{Path: ".", Use: host.ChangesFiles} }
	}
	return all
}

type checkpointListArgs struct {
	Limit int `json:"limit"`
}

func (c *checkpoints) list(ctx context.Context, a *checkpointListArgs, _ host.Emitter) (*Outcome, error) {
	all, err := c.keeper.List(ctx)
	if err != nil {
		return nil, err
	}
	slices.Reverse(all)
	limit := 20
	if a.Limit > 0 {
		limit = a.Limit
	}
	shown := append([]checkpoint.Info{}, all[:min(limit, len(all))]...)
	return &Outcome{Data: map[string]any{"checkpoints": shown}, Truncated: len(shown) < len(all)}, nil
}

type checkpointDiffArgs struct {
	From  uint64 `json:"from"`
	To    uint64 `json:"to"`
	Path  string `json:"path"`
	Patch bool   `json:"patch"`
}

func (c *checkpoints) diff(ctx context.Context, a *checkpointDiffArgs, _ host.Emitter) (*Outcome, error) {
	o := checkpoint.DiffOptions{From: a.From, To: a.To, Patch: a.Patch}
	if a.Path != "" {
		o.Paths = []string{a.Path}
	}
	all, err := c.keeper.Diff(ctx, o)
	if err != nil {
		return nil, checkpointError(err)
	}
	return &Outcome{Data: map[string]any{"changes": append([]checkpoint.Change{}, all...)}}, nil
}

type checkpointRestoreArgs struct {
	ID     uint64   `json:"id"`
	Paths  []string `json:"paths"`
	DryRun bool     `json:"dry_run"`
}

func (c *checkpoints) restore(ctx context.Context, a *checkpointRestoreArgs, _ host.Emitter) (*Outcome, error) {
	if a.ID == 0 {
		return nil, protocol.Violation(protocol.FieldError{Path: "/arguments/id", Message: "must be the id of a checkpoint; checkpoint_list shows them"})
	}
	done, err := c.keeper.Restore(ctx, checkpoint.RestoreOptions{To: a.ID, Paths: a.Paths, DryRun: a.DryRun})
	if err != nil {
		return nil, checkpointError(err)
	}
	out := &Outcome{Data: done, Failed: len(done.Problems) > 0}
	if out.Failed {
		out.Failure = "not all could be put back; see problems"
	}
	return out, nil
}

// checkpointError makes an error of the user's an answer; others are the host's own.
func checkpointError(err error) error {
	if errors.Is(err, checkpoint.ErrUnknown) || errors.Is(err, checkpoint.ErrNone) {
		return protocol.Errorf(protocol.CodeToolError, "%v; checkpoint_list shows those there are", err)
	}
	return err
}
