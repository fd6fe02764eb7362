package env

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/guard/wall"
	"a2e/protocol"
)

// workspaceWorld is one episode: a task in its own folder.
type workspaceWorld struct {
	env    *workspace
	task   *task
	folder *folder
	root   *os.Root     // the open agent's folder
	box    host.ToolBox // nil once the episode has ended

	steps int
	done  bool
	score float64     // of the last check, if check_each_step is set; else 0
	last  *lastAction // nil before the first action
	gone  bool        // the world is closed
}

// lastAction is the result of the last action, for the agent.
type lastAction struct {
	Type      string             `json:"type"`
	Success   bool               `json:"success"`
	Data      jsontext.Value     `json:"data,omitzero"`
	Truncated bool               `json:"truncated,omitzero"` // data was cut
	ExitCode  *int               `json:"exit_code,omitzero"`
	Error     string             `json:"error,omitzero"` // why success is false
	ErrorCode protocol.ErrorCode `json:"error_code,omitzero"`
	Detail    map[string]any     `json:"detail,omitzero"` // of the error
}

// Step implements World. A tool that refuses or fails still counts as a step, as the agent learns from it.
// An action that is not in the space does not count.
func (w *workspaceWorld) Step(ctx context.Context, a Action) (Outcome, error) {
	if a.Type == actionSubmit {
		return w.submit(ctx)
	}
	call, err := w.env.callOf(a)
	if err != nil {
		return Outcome{}, err
	}
	res, err := w.box.Call(ctx, call.name, call.args)
	if ctx.Err() != nil {
		return Outcome{}, stoppedAction(ctx)
	}
	if misfit := call.misfit(err); misfit != nil {
		return Outcome{}, misfit
	}
	w.steps++
	w.last = resultOf(call.name, res, err)
	limit := w.limit()
	switch {
	case limit > 0 && w.steps >= limit:
		out := w.judge(ctx)
		out.Truncated = true
		w.end(ctx)
		return out, nil
	case w.env.opts.CheckEachStep && err == nil && !w.box.ReadOnly(call.name):
		return w.judge(ctx), nil
	}
	return Outcome{}, nil
}

// submit ends the episode. If the check itself cannot be run, the episode goes on.
func (w *workspaceWorld) submit(ctx context.Context) (Outcome, error) {
	v, err := w.check(ctx)
	if err != nil {
		return Outcome{}, err
	}
	w.steps++
	w.last = &lastAction{Type: actionSubmit, Success: true}
	out := w.outcome(v)
	out.Done = true
	w.end(ctx)
	return out, nil
}

// judge runs the check after an action. The step counts even if the check fails.
func (w *workspaceWorld) judge(ctx context.Context) Outcome {
	v, err := w.check(ctx)
	if err != nil {
		return Outcome{Info: map[string]any{"check": map[string]any{"reason": err.Error()}}}
	}
	return w.outcome(v)
}

// outcome returns the reward of a verdict. With check_each_step it is the difference to the score before,
// so that the rewards of an episode add up to its score.
func (w *workspaceWorld) outcome(v verdict) Outcome {
	out := Outcome{Reward: v.score, Info: map[string]any{"check": v.info()}}
	if w.env.opts.CheckEachStep {
		out.Reward -= w.score
		w.score = v.score
	}
	return out
}

// limit returns how many actions the episode may have; 0 = any number.
func (w *workspaceWorld) limit() int {
	if w.task.MaxSteps > 0 {
		return w.task.MaxSteps
	}
	return w.env.opts.MaxSteps
}

// end closes the tools, which only steps need; the folder can still be read.
func (w *workspaceWorld) end(ctx context.Context) {
	w.done = true
	if err := w.closeBox(ctx); err != nil {
		w.env.env.Log.Warn().Err(err).Msg("the tools of an episode did not end well")
	}
}

func (w *workspaceWorld) closeBox(ctx context.Context) error {
	if w.box == nil {
		return nil
	}
	err := w.box.Close(ctx)
	w.box = nil
	return err
}

// Close implements World. It removes the folder.
func (w *workspaceWorld) Close(ctx context.Context) error {
	return w.close(ctx, w.folder.remove)
}

// Leave implements Leaver. The folder stays.
func (w *workspaceWorld) Leave(ctx context.Context) error {
	return w.close(ctx, w.folder.close)
}

func (w *workspaceWorld) close(ctx context.Context, folder func() error) error {
	if w.gone {
		return nil
	}
	w.gone = true
	return errors.Join(w.closeBox(ctx), w.root.Close(), folder())
}

// savedWorkspace is a saved episode. Its folder is found by the id of the episode.
type savedWorkspace struct {
	Task  string      `json:"task"`
	Steps int         `json:"steps"`
	Done  bool        `json:"done"`
	Score float64     `json:"score"`
	Last  *lastAction `json:"last"`
}

// Save implements Saver. It also marks the folder, so that it does not count as left by a dead host.
func (w *workspaceWorld) Save() (jsontext.Value, error) {
	if err := w.folder.keep(); err != nil {
		return nil, fmt.Errorf("the episode's folder cannot be kept: %w", wall.Cause(err))
	}
	return json.Marshal(&savedWorkspace{w.task.Name, w.steps, w.done, w.score, w.last})
}

func parseSaved(saved jsontext.Value) (*savedWorkspace, error) {
	var s savedWorkspace
	if err := json.Unmarshal(saved, &s); err != nil {
		return nil, fmt.Errorf("the saved episode cannot be read: %w", err)
	}
	if s.Task == "" || s.Steps < 0 {
		return nil, errors.New("the saved episode does not belong to workspace")
	}
	return &s, nil
}

// resultOf returns the result of a tool call as the agent sees it.
func resultOf(name string, res *protocol.ToolResult, err error) *lastAction {
	if err != nil {
		last := &lastAction{Type: name, Error: err.Error(), ErrorCode: protocol.CodeToolError}
		if known, ok := errors.AsType[*protocol.Error](err); ok {
			last.Error, last.ErrorCode, last.Detail = known.Message, known.Code, known.Detail
		}
		return last
	}
	last := &lastAction{Type: name, Success: res.Success, Data: res.Data, ExitCode: res.ExitCode}
	last.Truncated = res.Truncated != nil && *res.Truncated
	if res.Error != nil {
		last.Error = *res.Error
	}
	if res.ErrorCode != nil {
		last.ErrorCode = *res.ErrorCode
	}
	return last
}

// stoppedAction returns the answer to a request that ended before its work was done.
func stoppedAction(ctx context.Context) error {
	err := context.Cause(ctx)
	if known, ok := errors.AsType[*protocol.Error](err); ok {
		return known
	}
	return protocol.Errorf(protocol.CodeTimeout, "the action was stopped: %w; a longer \"timeout\" gives it more time",
		err)
}

// maxShownFiles bounds the files that a state lists.
const maxShownFiles = 500

// AppendState implements World. It reads the folder as it is now.
func (w *workspaceWorld) AppendState(ctx context.Context, dst []byte) ([]byte, error) {
	files, more, err := w.list(ctx)
	if err != nil {
		return nil, err
	}
	state := map[string]any{
		"task": w.task.ID, "description": w.task.Description, "files": files, "files_truncated": more, "last": nil,
		"done": w.done,
	}
	if w.last != nil {
		state["last"] = w.last
	}
	return protocol.AppendJSON(dst, state)
}

// list returns the files of the folder by path, at most maxShownFiles. Links are listed but not followed.
func (w *workspaceWorld) list(ctx context.Context) (files []any, more bool, err error) {
	files = []any{}
	err = fs.WalkDir(w.root.FS(), ".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case ctx.Err() != nil:
			return stoppedAction(ctx)
		case err != nil: // it may be unreadable or gone
			if d != nil && d.IsDir() && path != "." {
				return fs.SkipDir
			}
			return nil
		case d.IsDir():
			return nil
		case len(files) == maxShownFiles:
			more = true
			return fs.SkipAll
		}
		if info, err := d.Info(); err == nil {
			files = append(files, map[string]any{"path": strings.ToValidUTF8(path, "\ufffd"), "size": info.Size()})
		}
		return nil
	})
	return files, more, err
}

func workspaceStateSchema() map[string]any {
	text, boolean := map[string]any{"type": "string"}, map[string]any{"type": "boolean"}
	return map[string]any{
		"type":     "object",
		"required": []string{"task", "description", "files", "files_truncated", "last", "done"},
		"properties": map[string]any{
			"task": text, "description": text, "done": boolean, "files_truncated": boolean,
			"files": map[string]any{"type": "array", "items": map[string]any{
				"type": "object", "required": []string{"path", "size"},
				"properties": map[string]any{"path": text, "size": map[string]any{"type": "integer"}},
			}},
			"last": map[string]any{
				"type": []string{"object", "null"}, "description": "What the last action brought.",
				"properties": map[string]any{
					"type": text, "success": boolean, "data": map[string]any{}, "truncated": boolean,
					"exit_code": map[string]any{"type": "integer"},
					"error":     text, "error_code": text, "detail": map[string]any{"type": "object"},
				},
			},
		},
	}
}

// Modes implements World.
func (w *workspaceWorld) Modes() []string { return []string{"text"} }

// Render implements World. It returns the task and the files as text.
func (w *workspaceWorld) Render(ctx context.Context, _ string) (jsontext.Value, error) {
	files, more, err := w.list(ctx)
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	b.WriteString(w.task.ID + "\n" + strings.TrimSpace(w.task.Description) + "\n\n")
	for _, f := range files {
		b.WriteString(f.(map[string]any)["path"].(string) + "\n")
	}
	if more {
		b.WriteString("…\n")
	}
	return textPicture(b.String()), nil
}
