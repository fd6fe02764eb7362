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
	"regexp/syntax"
	"slices"
	"strings"
	"unicode/utf8"

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
	Pattern    string `json:"pattern" need:"Regular expression to find within a line, such as func \\w+Handler. Escape ( [ { . * + ? to find them as they are."`
	Path       string `json:"path" may:"File or folder to search, relative to the workspace (default: all of it)."`
	IgnoreCase bool   `json:"ignore_case" may:"Take upper and lower case as the same (default false)."`
	Limit      int64  `json:"limit" may:"How many lines to give at most (default 200, at most 10000)."`
}

type grepData struct {
	Matches []grepMatch `json:"matches" need:"One {path, line, text} for each line that matches; lines count from 1."`
	Skipped int         `json:"skipped" need:"Files and folders that were not searched: binary, hard-linked, special, or not readable."`
}

type grepMatch struct {
	Path string `json:"path"`
	Line int    `json:"line"` // from 1
	Text string `json:"text"` // the line, or the part of a long one around the match
}

func (f *files) grep(ctx context.Context, a *grepArgs) (*Outcome, error) {
	return f.reading(ctx, cmp.Or(a.Path, "."), func(in *files, name string) (*Outcome, error) {
		s, err := in.newGrep(a)
		if err != nil {
			return nil, err
		}
		if err := s.searchPath(ctx, name); err != nil {
			return nil, err
		}
		out := &Outcome{Data: s.data, Truncated: s.page.full}
		out.Summary = fmt.Sprintf("%s; searched %s, skipped %d", protocol.Count(len(s.data.Matches), "match"),
			protocol.Count(s.searched, "file"), s.data.Skipped)
		if out.Truncated {
			out.Summary += "; there is more: narrow the pattern or the path"
		}
		return out, nil
	})
}

// grepRun is one call of grep.
type grepRun struct {
	f        *files
	re       *regexp.Regexp
	steps    int    // of re
	work     int    // steps times bytes since the last look at the context
	needle   []byte // each matching line has it; empty = not known
	page     page
	data     grepData
	searched int
	buf      []byte

	lastName string // where the last match was
	lastLine int
}

func (f *files) newGrep(a *grepArgs) (*grepRun, error) {
	page, err := newPage(a.Limit, defaultGrepLimit, maxGrepLimit, f.room)
	if err != nil {
		return nil, err
	}
	switch {
	case a.Pattern == "":
		return nil, protocol.Errorf(protocol.CodeToolError, "the pattern is empty; give a regular expression, or use glob to find files by name")
	case len(a.Pattern) > maxRegexpBytes:
		return nil, protocol.Errorf(protocol.CodeToolError, "the pattern has %d bytes; at most %d are taken", len(a.Pattern), maxRegexpBytes)
	}
	if breaksLines(a.Pattern) {
		return nil, protocol.Errorf(protocol.CodeToolError,
			"the pattern has a line break, and grep looks at one line at a time; give a pattern for a part of one line")
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
		return nil, protocol.Errorf(protocol.CodeToolError, "the pattern is not a regular expression in RE2 syntax: "+
			"%v; put a \\ before a character that is meant as it is", err)
	}
	return &grepRun{f: f, re: re, steps: steps, needle: []byte(needleOf(expr)), page: page,
		data: grepData{Matches: []grepMatch{}}, buf: make([]byte, searchBytes)}, nil
}

// breaksLines reports whether an expression asks for a line break.
func breaksLines(expr string) bool {
	re, err := syntax.Parse(expr, syntax.Perl)
	return err == nil && hasBreak(re)
}

func hasBreak(re *syntax.Regexp) bool {
	return re.Op == syntax.OpLiteral && slices.Contains(re.Rune, '\n') || slices.ContainsFunc(re.Sub, hasBreak)
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
		return s.searchFile(ctx, name, short)
	}
	dir, _, real, err := s.f.openDir(short)
	if err != nil {
		return err
	}
	defer dir.Close()
	w := &treeWalk{f: s.f, base: real, descend: func(string) bool { return true }}
	w.visit = func(dir *os.Root, rel string, d fs.DirEntry) error {
		return s.visit(ctx, dir, path.Join(short, rel), d)
	}
	err = w.run(ctx, dir)
	s.page.full = s.page.full || w.cut
	s.data.Skipped += w.skipped
	return err
}

// searchFile searches the one file that the agent named; short is its clean path.
func (s *grepRun) searchFile(ctx context.Context, name, short string) error {
	file, _, err := s.f.open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := s.file(ctx, file, short); !errors.Is(err, errEnough) {
		return err
	}
	return nil
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
	file, _, err := s.f.openIn(dir, d.Name(), os.O_RDONLY, true)
	if err != nil {
		s.data.Skipped++
		return nil
	}
	return errors.Join(s.file(ctx, file, name), file.Close())
}

// find returns where the expression matches in a line; at is -1 where it does not. Nothing
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

// stoppable returns the runes of a line, and ends with its context.
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
	m := grepMatch{Path: wireText(s.f.prefix + name), Line: number, Text: wireText(string(s.excerpt(line, at)))}
	if !s.page.takes(jsonSize(m.Path) + jsonSize(m.Text) + entryOverhead) {
		return errEnough
	}
	s.data.Matches = append(s.data.Matches, m)
	return nil
}

const (
	searchBytes = 256 << 10 // read at a time; a longer line is searched in pieces
	sniffBytes  = 8000      // a NUL in these makes a file binary
	maxLineText = 400       // bytes of a line in the answer
	leadText    = 100       // of those, before the match
)

// file searches what was opened, a buffer at a time.
func (s *grepRun) file(ctx context.Context, file *os.File, name string) error {
	kept, number := 0, 1 // bytes of an unfinished line at the start of buf, and its number
	for first := true; ; first = false {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := io.ReadFull(file, s.buf[kept:])
		end := err != nil // of the file, or of what can be read of it
		if end && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			s.data.Skipped++
			return nil
		}
		text := s.buf[:kept+n]
		if first && bytes.IndexByte(text[:min(len(text), sniffBytes)], 0) >= 0 {
			s.data.Skipped++
			return nil
		}
		if first {
			text = bytes.TrimPrefix(text, []byte("\uFEFF")) // ^ is behind it
			s.searched++
		}
		whole := bytes.LastIndexByte(text, '\n') + 1
		if end || whole == 0 {
			whole = len(text)
		}
		if err := s.lines(ctx, name, number, text[:whole]); err != nil {
			return err
		}
		if end {
			return nil
		}
		number += bytes.Count(text[:whole], []byte("\n"))
		kept = copy(s.buf, text[whole:])
	}
}

// lines searches text, which starts with line number. Where every match has to
// have the needle, only the lines with it are looked at.
func (s *grepRun) lines(ctx context.Context, name string, number int, text []byte) error {
	for len(text) > 0 {
		if len(s.needle) > 0 {
			at := bytes.Index(text, s.needle)
			if at < 0 {
				return nil
			}
			start := bytes.LastIndexByte(text[:at], '\n') + 1
			number += bytes.Count(text[:start], []byte("\n"))
			text = text[start:]
		}
		line, rest, _ := bytes.Cut(text, []byte("\n"))
		line = bytes.TrimSuffix(line, []byte("\r"))
		at, err := s.find(ctx, line)
		if err == nil && at >= 0 {
			err = s.hit(name, number, line, at)
		}
		if err != nil {
			return err
		}
		text, number = rest, number+1
	}
	return nil
}

// needleOf returns a text that each match of the expression has in it, the longest
// that is easily told, or "".
func needleOf(expr string) string {
	re, err := syntax.Parse(expr, syntax.Perl)
	if err != nil {
		return ""
	}
	return literalIn(re.Simplify())
}

func literalIn(re *syntax.Regexp) string {
	switch re.Op {
	case syntax.OpLiteral:
		// U+FFFD also matches bytes that are no UTF-8.
		if s := string(re.Rune); re.Flags&syntax.FoldCase == 0 && !strings.ContainsAny(s, "\n\uFFFD") {
			return s
		}
	case syntax.OpCapture, syntax.OpPlus:
		return literalIn(re.Sub[0])
	case syntax.OpConcat:
		longest := ""
		for _, sub := range re.Sub {
			if s := literalIn(sub); len(s) > len(longest) {
				longest = s
			}
		}
		return longest
	}
	return ""
}

// excerpt returns a line, or the part of a long one that starts a little before
// the match. What is cut off may not be a part of a secret.
func (s *grepRun) excerpt(line []byte, match int) []byte {
	if len(line) <= maxLineText {
		return line
	}
	match = len(s.f.secrets.Bytes(line[:match]))
	line = s.f.secrets.Bytes(line)
	start := max(0, min(match-leadText, len(line)-maxLineText))
	for start > 0 && start < len(line) && !utf8.RuneStart(line[start]) {
		start++
	}
	return protocol.Head(line[start:], maxLineText)
}
