package tools

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"

	"a2e/protocol"
)

const (
	defaultGrepLimit = 200
	maxGrepLimit     = 10_000
	maxRegexpBytes   = 4096
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
	re, err := regexp.Compile(expr)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeToolError, "the pattern is no regular expression in RE2 syntax: %v; put a \\ before a character that is meant as it is", err)
	}
	return &grepRun{f: f, re: re, needle: []byte(needleOf(expr)), limit: limit, room: f.room,
		data: grepData{Matches: []grepMatch{}}, buf: make([]byte, searchBytes)}, nil
}

// searchPath searches the file or folder that the agent named.
func (s *grepRun) searchPath(ctx context.Context, name string) error {
	short, err := s.f.clean(name)
	if err != nil {
		return err
	}
	info, err := s.f.root.Stat(short)
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
	dir, err := s.f.openDir(short)
	if err != nil {
		return err
	}
	defer dir.Close()
	w := &treeWalk{f: s.f, descend: func(string) bool { return true }}
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
	file, _, err := s.f.openIn(dir, d.Name())
	if err != nil {
		s.data.Skipped++
		return nil
	}
	return errors.Join(s.file(ctx, file, name), file.Close())
}

// hit takes one line that matches into the answer.
func (s *grepRun) hit(name string, number int, line []byte) error {
	if s.lastName == name && s.lastLine == number {
		return nil // a further piece of a very long line
	}
	s.lastName, s.lastLine = name, number
	at := s.re.FindIndex(line)
	m := grepMatch{Path: wireText(s.f.prefix + name), Line: number, Text: wireText(string(excerpt(line, at[0])))}
	s.room -= jsonSize(m.Path) + jsonSize(m.Text) + entryOverhead
	if len(s.data.Matches) == s.limit || s.room < 0 {
		s.cut = true
		return errEnough
	}
	s.data.Matches = append(s.data.Matches, m)
	return nil
}
