package tools

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/bmatcuk/doublestar/v4"

	"a2e/host/pattern"
	"a2e/protocol"
)

const (
	defaultGlobLimit = 1000
	maxGlobLimit     = 100_000
	quoting          = 3 // bytes around a path in the answer
	anyDepth         = "**"
)

type globArgs struct {
	Pattern string `json:"pattern"`
	Limit   int64  `json:"limit"`
}

type globData struct {
	Matches []string `json:"matches"`
}

func (f *files) globTool() Tool {
	return fileTool(protocol.ToolDefinition{
		Name: "glob",
		Description: "Find files and folders of the workspace by the pattern of their path, sorted by path. * and ? stay within one name, ** spans folders, " +
			"[a-z] and {one,two} work: **/*.go finds all Go files, src/*.c those right in src. Links are listed, not followed; .git is left out unless the pattern names it.",
		InputParameters: []protocol.ToolParameter{
			{Name: "pattern", Type: "string", Required: true, Description: "Pattern for the path relative to the workspace, such as **/*_test.go."},
			{Name: "limit", Type: "integer", Description: "How many paths to give at most (default 1000, at most 100000)."},
		},
		OutputParameters: []protocol.ToolParameter{
			{Name: "matches", Type: "array", Required: true, Description: "The paths that match, relative to the workspace."},
		},
		Idempotent: true,
		Tags:       []string{"file", "search"},
	}, true, f.glob)
}

func (f *files) glob(ctx context.Context, a *globArgs) (*Outcome, error) {
	limit, err := limitOf(a.Limit, defaultGlobLimit, maxGlobLimit)
	if err != nil {
		return nil, err
	}
	in, pattern, err := f.at(ctx, a.Pattern)
	if err != nil {
		return nil, err
	}
	defer in.leave()
	if pattern, err = in.cleanPattern(pattern); err != nil {
		return nil, err
	}
	base, rest := splitPattern(pattern)
	if base, err = in.clean(cmp.Or(base, ".")); err != nil {
		return nil, err
	}
	dir, real, err := in.openDir(base)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return &Outcome{Data: globData{Matches: []string{}}}, nil // nothing is in a folder that is not there
	case err != nil:
		return nil, in.explain(pattern, err)
	}
	defer dir.Close()
	out, err := in.globIn(ctx, dir, base, real, rest, limit)
	return out, in.explain(pattern, err)
}

// globIn matches the pattern rest against what is in dir, whose path is base, real without
// links.
func (f *files) globIn(ctx context.Context, dir *os.Root, base, real, rest string, limit int) (*Outcome, error) {
	out := &Outcome{}
	data := globData{Matches: []string{}}
	room := f.room
	glob, ok := pattern.NewGlob(rest)
	if !ok {
		return nil, protocol.Errorf(protocol.CodeToolError, "pattern %s has too many alternatives in braces; search for fewer at a time", f.quote(rest))
	}
	w := &treeWalk{f: f, base: real, git: slices.Contains(strings.Split(rest, "/"), gitDir), descend: mayHold(ctx, rest)}
	w.visit = func(_ *os.Root, rel string, _ fs.DirEntry) error {
		if matches, err := glob.Match(ctx, rel); err != nil || !matches {
			return err
		}
		found := wireText(f.prefix + path.Join(base, rel))
		room -= jsonSize(found) + quoting
		if len(data.Matches) == limit || room < 0 {
			out.Truncated = true
			return errEnough
		}
		data.Matches = append(data.Matches, found)
		return nil
	}
	if err := w.run(ctx, dir); err != nil {
		return nil, err
	}
	out.Data, out.Truncated = data, out.Truncated || w.cut
	if out.Truncated {
		out.Summary = fmt.Sprintf("the first %d matches; narrow the pattern to see others", len(data.Matches))
	}
	return out, nil
}

// limitOf checks the limit of a search and fills it in.
func limitOf(asked int64, usual, most int) (int, error) {
	if asked < 0 {
		return 0, protocol.Errorf(protocol.CodeToolError, "limit is %d; give how many matches you want at most, 1 to %d", asked, most)
	}
	return int(min(cmp.Or(asked, int64(usual)), int64(most))), nil
}

// cleanPattern checks a glob pattern and takes out what does not count: doubled
// and closing slashes, and "." as a folder.
func (f *files) cleanPattern(pattern string) (string, error) {
	var err error
	switch {
	case len(pattern) > maxPathBytes:
		return "", protocol.Errorf(protocol.CodeToolError, "the pattern has %d bytes; at most %d are taken", len(pattern), maxPathBytes)
	case strings.HasPrefix(pattern, "/") || filepath.IsAbs(pattern):
		if pattern, err = f.inside("pattern", pattern); err != nil {
			return "", err
		}
	}
	switch {
	case !doublestar.ValidatePattern(pattern):
		return "", protocol.Errorf(protocol.CodeToolError, "pattern %s is malformed: a [, a { or a \\ is not finished", f.quote(pattern))
	}
	var steps []string
	for step := range strings.SplitSeq(pattern, "/") {
		switch step {
		case "", ".":
		case "..":
			return "", protocol.Errorf(protocol.CodeToolDenied, "pattern %s goes up with ..; give it relative to %s", f.quote(pattern), f.place)
		default:
			steps = append(steps, step)
		}
	}
	if len(steps) == 0 {
		return "", protocol.Errorf(protocol.CodeToolError, "the pattern is empty; give one such as **/*.go, or * for what is right in %s", f.place)
	}
	return strings.Join(steps, "/"), nil
}

// splitPattern gives the folder that a clean pattern names in plain words, and
// the pattern for what is below it.
func splitPattern(pattern string) (base, rest string) {
	steps := strings.Split(pattern, "/")
	plain := 0
	for plain < len(steps)-1 && !strings.ContainsAny(steps[plain], `*?[]{}\`) {
		plain++
	}
	return path.Join(steps[:plain]...), strings.Join(steps[plain:], "/")
}

// mayHold tells of which folders the pattern can match something inside, so
// that others need no look.
func mayHold(ctx context.Context, rest string) func(rel string) bool {
	steps := strings.Split(rest, "/")
	globs := make([]pattern.Glob, len(steps))
	for i, step := range steps {
		glob, ok := pattern.NewGlob(step)
		if !ok || strings.Contains(step, `\`) || strings.Count(step, "{") != strings.Count(step, "}") {
			return func(string) bool { return true } // its slashes may not be those of the path
		}
		globs[i] = glob
	}
	return func(rel string) bool {
		names := strings.Split(rel, "/")
		for i, name := range names {
			if strings.Contains(steps[i], anyDepth) {
				return true
			}
			if i == len(steps)-1 {
				return false // the pattern ends here
			}
			if matches, err := globs[i].Match(ctx, name); err == nil && !matches {
				return false
			}
		}
		return true
	}
}
