package tools

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"regexp"

	"a2e/host/pattern"
	"a2e/protocol"
)

const (
	defaultGrepLimit = 200
	maxGrepLimit     = 10_000
	maxRegexpBytes   = 4096
	maxRegexpSteps   = 10_000  // of the program, each tried for each byte
	workPerLook      = 4 << 20 // steps times bytes that nothing can stop: some tens of milliseconds
)

type grepArgs struct {
	Pattern    string `json:"pattern"`
	Path       string `json:"path"`
	IgnoreCase bool   `json:"ignore_case"`
	Limit      int64  `json:"limit"`
}

type grepData struct {
	Matches []grepMatch `json:"matches"`
	Skipped int         `json:"skipped"` // files and folders not searched
}

type grepMatch struct {
	Path string `json:"path"`
	Line int    `json:"line"` // from 1
	Text string `json:"text"` // the line, or the part of a long one around the match
}

func (f *files) grepTool() Tool {
	return fileTool(protocol.ToolDefinition{
		Name: "grep",
		Description: "Search the text files of the workspace, or of one folder or file in it, for lines that match a regular expression (RE2 syntax, as in Go). " +
			"Matches come sorted by path. Binary files and .git are left out, links are not followed, and a long line is cut to the part around the match.",
		InputParameters: []protocol.ToolParameter{
			{Name: "pattern", Type: "string", Required: true, Description: `Regular expression to find within a line, such as func \w+Handler. Escape ( [ { . * + ? to find them as they are.`},
			{Name: "path", Type: "string", Description: "File or folder to search, relative to the workspace (default: all of it)."},
			{Name: "ignore_case", Type: "boolean", Description: "Take upper and lower case as the same (default false)."},
			{Name: "limit", Type: "integer", Description: "How many lines to give at most (default 200, at most 10000)."},
		},
		OutputParameters: []protocol.ToolParameter{
			{Name: "matches", Type: "array", Required: true, Description: "One {path, line, text} for each line that matches; lines count from 1."},
			{Name: "skipped", Type: "integer", Required: true, Description: "Files and folders that were not searched: binary, hard-linked, special, or not readable."},
		},
		Idempotent: true,
		Tags:       []string{"file", "search"},
	}, true, f.grep)
}

func (f *files) grep(ctx context.Context, a *grepArgs) (*Outcome, error) {
	in, name, err := f.at(ctx, cmp.Or(a.Path, "."))
	if err != nil {
		return nil, err
	}
	defer in.leave()
	s, err := in.newGrep(a)
	if err != nil {
		return nil, err
	}
	if err := s.searchPath(ctx, name); err != nil {
		return nil, in.explain(name, err)
	}
	out := &Outcome{Data: s.data, Truncated: s.cut}
	out.Summary = fmt.Sprintf("%d lines match; %d files searched, %d skipped", len(s.data.Matches), s.searched, s.data.Skipped)
	if s.cut {
		out.Summary += "; there is more: narrow the pattern or the path"
	}
	return out, nil
}

// grepRun is one call of grep.
type grepRun struct {
	f        *files
	re       *regexp.Regexp
	steps    int    // of re
	work     int    // steps times bytes since the last look at the context
	needle   []byte // each matching line has it; empty = not known
	limit    int
	room     int // bytes left in the answer
	data     grepData
	searched int
	cut      bool
	buf      []byte

	lastName string // where the last match was
	lastLine int
}

func (f *files) newGrep(a *grepArgs) (*grepRun, error) {
	limit, err := limitOf(a.Limit, defaultGrepLimit, maxGrepLimit)
	if err != nil {
		return nil, err
	}
	switch {
	case a.Pattern == "":
		return nil, protocol.Errorf(protocol.CodeToolError, "the pattern is empty; give a regular expression, or use glob to find files by name")
	case len(a.Pattern) > maxRegexpBytes:
		return nil, protocol.Errorf(protocol.CodeToolError, "the pattern has %d bytes; at most %d are taken", len(a.Pattern), maxRegexpBytes)
	}
	expr := a.Pattern
	if a.IgnoreCase {
		expr = "(?i)" + expr
	}
	re, steps, err := pattern.Compile(expr, maxRegexpSteps)
	if tooMany := (*pattern.StepsError)(nil); errors.As(err, &tooMany) {
		return nil, protocol.Errorf(protocol.CodeToolError, "the pattern cannot be used: %v", tooMany)
	}
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeToolError, "the pattern is no regular expression in RE2 syntax: %v; put a \\ before a character that is meant as it is", err)
	}
	return &grepRun{f: f, re: re, steps: steps, needle: []byte(needleOf(expr)), limit: limit, room: f.room,
		data: grepData{Matches: []grepMatch{}}, buf: make([]byte, searchBytes)}, nil
}

// searchPath searches the file or folder that the agent named.
func (s *grepRun) searchPath(ctx context.Context, name string) error {
	short, err := s.f.clean(name)
	if err != nil {
		return err
	}
	info, err := s.f.stat(short)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		file, _, err := s.f.open(name)
		if err != nil {
			return err
		}
		err = s.file(ctx, file, short)
		if errors.Is(err, errEnough) {
			err = nil
		}
		return errors.Join(err, file.Close())
	}
	dir, real, err := s.f.openDir(short)
	if err != nil {
		return err
	}
	defer dir.Close()
	w := &treeWalk{f: s.f, base: real, descend: func(string) bool { return true }}
	w.visit = func(dir *os.Root, rel string, d fs.DirEntry) error {
		return s.visit(ctx, dir, path.Join(short, rel), d)
	}
	err = w.run(ctx, dir)
	s.cut = s.cut || w.cut
	s.data.Skipped += w.skipped
	return err
}

// visit searches one file of a walk. What cannot be opened is passed over.
func (s *grepRun) visit(ctx context.Context, dir *os.Root, name string, d fs.DirEntry) error {
	if d.IsDir() || d.Type()&fs.ModeSymlink != 0 {
		return nil
	}
	if !d.Type().IsRegular() {
		s.data.Skipped++
		return nil
	}
	file, _, err := s.f.openExact(dir, d.Name(), os.O_RDONLY)
	if err != nil {
		s.data.Skipped++
		return nil
	}
	return errors.Join(s.file(ctx, file, name), file.Close())
}

// find gives where the expression matches in a line; at is -1 where it does not. Nothing
// stops an expression but the end of what it reads, so it reads what could take long a rune
// at a time.
func (s *grepRun) find(ctx context.Context, line []byte) (at int, err error) {
	if s.work += s.steps * (len(line) + 1); s.work < workPerLook {
		return firstOf(s.re.FindIndex(line)), nil
	}
	s.work = 0
	if s.steps*len(line) < workPerLook {
		return firstOf(s.re.FindIndex(line)), ctx.Err()
	}
	r := &stoppable{Reader: bytes.NewReader(line), ctx: ctx, every: workPerLook / s.steps}
	return firstOf(s.re.FindReaderIndex(r)), ctx.Err()
}

func firstOf(found []int) int {
	if found == nil {
		return -1
	}
	return found[0]
}

// stoppable gives the runes of a line, and ends with its context.
type stoppable struct {
	*bytes.Reader
	ctx         context.Context
	every, read int
}

// ReadRune implements io.RuneReader.
func (r *stoppable) ReadRune() (rune, int, error) {
	if r.read++; r.read%max(r.every, 1) == 0 && r.ctx.Err() != nil {
		return 0, 0, io.EOF
	}
	return r.Reader.ReadRune()
}

// hit takes one line that matches into the answer.
func (s *grepRun) hit(name string, number int, line []byte, at int) error {
	if s.lastName == name && s.lastLine == number {
		return nil // a further piece of a very long line
	}
	s.lastName, s.lastLine = name, number
	m := grepMatch{Path: wireText(s.f.prefix + name), Line: number, Text: wireText(string(excerpt(line, at)))}
	s.room -= jsonSize(m.Path) + jsonSize(m.Text) + entryOverhead
	if len(s.data.Matches) == s.limit || s.room < 0 {
		s.cut = true
		return errEnough
	}
	s.data.Matches = append(s.data.Matches, m)
	return nil
}
