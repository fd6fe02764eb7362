package env

import (
	"context"
	"io/fs"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/protocol"
)

// maxShownFiles bounds the files that a state lists.
const maxShownFiles = 500

// AppendState implements World: it looks at the folder as it is now.
func (w *workspaceWorld) AppendState(ctx context.Context, dst []byte) ([]byte, error) {
	files, more, err := w.list(ctx)
	if err != nil {
		return nil, err
	}
	state := map[string]any{
		"task": w.task.ID, "description": w.task.Description, "files": files, "files_truncated": more, "last": nil, "done": w.done,
	}
	if w.last != nil {
		state["last"] = w.last
	}
	return protocol.AppendJSON(dst, state)
}

// list gives the files of the folder by path, up to a bound. Links are listed without
// being followed.
func (w *workspaceWorld) list(ctx context.Context) (files []any, more bool, err error) {
	files = []any{}
	err = fs.WalkDir(w.root.FS(), ".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case ctx.Err() != nil:
			return stoppedAction(ctx)
		case err != nil: // it may be closed to us, or gone
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
			"last": map[string]any{"type": []string{"object", "null"}, "description": "What the last action brought.", "properties": map[string]any{
				"type": text, "success": boolean, "data": map[string]any{}, "truncated": boolean, "exit_code": map[string]any{"type": "integer"},
				"error": text, "error_code": text, "detail": map[string]any{"type": "object"},
			}},
		},
	}
}

// Modes implements Renderer.
func (w *workspaceWorld) Modes() []string { return []string{"text"} }

// Render implements Renderer: the task and the files, as a text.
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
	out := protocol.AppendString([]byte(`{"mode":"text","text":`), b.String())
	return append(out, '}'), nil
}
