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

	"a2e/protocol"
)

const (
	defaultGlobLimit = 1000
	maxGlobLimit     = 100_000
	maxAlternatives  = 1000 // matching takes time in proportion, and cannot be stopped
	quoting          = 3    // bytes around a path in the answer
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
	dir, err := in.openDir(base)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return &Outcome{Data: globData{Matches: []string{}}}, nil // nothing is in a folder that is not there
	case err != nil:
		return nil, in.explain(pattern, err)
	}
	defer dir.Close()
	out, err := in.globIn(ctx, dir, base, rest, limit)
	return out, in.explain(pattern, err)
}

// globIn matches the pattern rest against what is in dir, whose path is base.
func (f *files) globIn(ctx context.Context, dir *os.Root, base, rest string, limit int) (*Outcome, error) {
	out := &Outcome{}
	data := globData{Matches: []string{}}
	room := f.room
	w := &treeWalk{f: f, git: slices.Contains(strings.Split(rest, "/"), gitDir), descend: mayHold(rest)}
	w.visit = func(_ *os.Root, rel string, _ fs.DirEntry) error {
		if !doublestar.MatchUnvalidated(rest, rel) {
			return nil
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
	switch {
	case len(pattern) > maxPathBytes:
		return "", protocol.Errorf(protocol.CodeToolError, "the pattern has %d bytes; at most %d are taken", len(pattern), maxPathBytes)
	case strings.HasPrefix(pattern, "/") || filepath.IsAbs(pattern):
		return "", protocol.Errorf(protocol.CodeToolDenied, "pattern %s is absolute; give it relative to %s", f.quote(pattern), f.place)
	case !doublestar.ValidatePattern(pattern):
		return "", protocol.Errorf(protocol.CodeToolError, "pattern %s is malformed: a [, a { or a \\ is not finished", f.quote(pattern))
	case alternatives(pattern) > maxAlternatives:
		return "", protocol.Errorf(protocol.CodeToolError, "pattern %s has too many alternatives in braces, more than %d combinations; search for fewer at a time", f.quote(pattern), maxAlternatives)
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

// alternatives bounds how many ways there are through the braces of a pattern.
func alternatives(pattern string) int {
	ways, open := 1, []int{}
	for i := 0; i < len(pattern) && ways <= maxAlternatives; i++ {
		switch c := pattern[i]; {
		case c == '\\':
			i++
		case c == '{':
			open = append(open, 1)
		case c == ',' && len(open) > 0:
			open[len(open)-1]++
		case c == '}' && len(open) > 0:
			ways *= open[len(open)-1]
			open = open[:len(open)-1]
		}
	}
	return ways
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
func mayHold(pattern string) func(rel string) bool {
	steps := strings.Split(pattern, "/")
	for _, step := range steps {
		if strings.Contains(step, `\`) || strings.Count(step, "{") != strings.Count(step, "}") {
			return func(string) bool { return true } // its slashes may not be those of the path
		}
	}
	return func(rel string) bool {
		names := strings.Split(rel, "/")
		for i, name := range names {
			switch {
			case strings.Contains(steps[i], anyDepth):
				return true
			case i == len(steps)-1:
				return false // the pattern ends here
			case !doublestar.MatchUnvalidated(steps[i], name):
				return false
			}
		}
		return true
	}
}
