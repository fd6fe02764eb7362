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
	"sync"
	"unicode/utf8"

	"a2e/host/schema/pattern"
	"a2e/protocol"
)

const (
	defaultGrepLimit = 200
	maxGrepLimit     = 10_000
	maxRegexpBytes   = 4096
	maxRegexpSteps   = 10_000  // of the compiled expression; each may be tried for each byte
	workPerLook      = 4 << 20 // steps times bytes between two looks at the context: some tens of milliseconds
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

// size returns about how many bytes the match takes in an answer.
func (m grepMatch) size() int { return jsonSize(m.Path) + jsonSize(m.Text) + entryOverhead }

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
	f         *files
	re        *regexp.Regexp
	steps     int // of re
	prefilter *prefilter
	whole     page // the page of an empty answer
	page      page
	data      grepData
	searched  int
}

func (f *files) newGrep(a *grepArgs) (*grepRun, error) {
	page, err := newPage(a.Limit, defaultGrepLimit, maxGrepLimit, f.room)
	if err != nil {
		return nil, err
	}
	switch {
	case a.Pattern == "":
		return nil, protocol.Errorf(protocol.CodeToolError, "the pattern is empty; give a regular expression, or "+
			"use glob to find files by name")
	case len(a.Pattern) > maxRegexpBytes:
		return nil, protocol.Errorf(protocol.CodeToolError, "the pattern has %d bytes; at most %d are taken",
			len(a.Pattern), maxRegexpBytes)
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
	return &grepRun{
		f: f, re: re, steps: steps, prefilter: newPrefilter(expr), whole: page, page: page,
		data: grepData{Matches: []grepMatch{}},
	}, nil
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
	err = s.searchTree(ctx, w, dir, short)
	s.page.full = s.page.full || w.cut
	s.data.Skipped += w.skipped
	return err
}

// searchFile searches the one file that the agent named; short is its clean path.
func (s *grepRun) searchFile(ctx context.Context, name, short string) error {
	file, info, err := s.f.open(name)
	if err != nil {
		return err
	}
	one := s.newSearch(short)
	s.newWorker().search(ctx, one, file, info.Size())
	if err := s.take(one); !errors.Is(err, errEnough) {
		return err
	}
	return nil
}

const grepWorkers = 2

// searchTree searches the files of a walk: the walk finds them, workers open and search them, and
// the matches are added to the answer in the order of the walk.
func (s *grepRun) searchTree(ctx context.Context, w *treeWalk, dir *os.Root, short string) error {
	all, stop := context.WithCancel(ctx)
	defer stop()
	feed := newBatchFeed()
	w.visit = func(dir *os.Root, rel string, d fs.DirEntry) error {
		if !d.IsDir() && d.Type()&fs.ModeSymlink == 0 {
			feed.add(dir, d, s.newSearch(path.Join(short, rel)))
		}
		return all.Err()
	}
	w.leave = feed.leave
	var group sync.WaitGroup
	var walked error
	group.Go(func() {
		walked = w.run(all, dir)
		feed.close()
	})
	for range grepWorkers {
		group.Go(func() {
			worker := s.newWorker()
			for batch := range feed.unsearched {
				worker.searchBatch(all, batch)
			}
		})
	}
	var err error
	for batch := range feed.ordered {
		<-batch.done
		for _, one := range batch.files {
			if err == nil {
				if err = s.take(one); err != nil {
					stop()
				}
			}
		}
	}
	group.Wait()
	switch {
	case errors.Is(err, errEnough):
		return nil
	case err != nil:
		return err
	}
	return walked
}

// openFile opens a file of a walk and returns it with its size; nil = the file cannot be searched.
func (s *grepRun) openFile(dir *os.Root, d fs.DirEntry) (*os.File, int64) {
	if !d.Type().IsRegular() {
		return nil, 0
	}
	before, err := d.Info()
	if err != nil {
		return nil, 0
	}
	file, info, err := s.f.openSame(dir, d.Name(), os.O_RDONLY, before)
	if err != nil {
		return nil, 0
	}
	return file, info.Size()
}

// fileSearch is the search of one file.
type fileSearch struct {
	name string
	page page // bounds the matches of this file

	matches []grepMatch
	counted bool // counts as searched
	skipped bool
	err     error
}

func (s *grepRun) newSearch(name string) *fileSearch { return &fileSearch{name: name, page: s.whole} }

// take adds the matches of a file to the answer. It returns errEnough when no more fits.
func (s *grepRun) take(one *fileSearch) error {
	if one.err != nil && !errors.Is(one.err, errEnough) {
		return one.err
	}
	if one.skipped {
		s.data.Skipped++
	}
	if one.counted {
		s.searched++
	}
	for _, m := range one.matches {
		if !s.page.takes(m.size()) {
			return errEnough
		}
		s.data.Matches = append(s.data.Matches, m)
	}
	s.page.full = s.page.full || one.page.full
	return one.err
}

// grepWorker searches one file after another.
type grepWorker struct {
	*grepRun
	prefilter *prefilter // finds lines that can match; nil = every line is tried
	work      int        // steps times bytes since the last look at the context
	buf       []byte
}

func (s *grepRun) newWorker() *grepWorker {
	return &grepWorker{grepRun: s, prefilter: s.prefilter.clone(), buf: make([]byte, searchBytes)}
}

// searchBatch searches files of one folder.
func (w *grepWorker) searchBatch(ctx context.Context, batch *fileBatch) {
	defer close(batch.done)
	for i, one := range batch.files {
		if one.err = ctx.Err(); one.err != nil {
			break
		}
		file, size := w.openFile(batch.folder.dir, batch.entries[i])
		if one.skipped = file == nil; file != nil {
			w.search(ctx, one, file, size)
		}
	}
	if err := batch.folder.release(); err != nil {
		last := batch.files[len(batch.files)-1]
		last.err = cmp.Or(last.err, err)
	}
}

// search searches a file and closes it. size is the file's size when it was opened.
func (w *grepWorker) search(ctx context.Context, one *fileSearch, file *os.File, size int64) {
	one.err = errors.Join(w.file(ctx, one, file, size), file.Close())
}

// find returns the index of the match in a line; at is -1 if there is none. A running expression
// stops only at the end of its input, so a line that could take long is read rune by rune from a
// reader that ends with ctx.
func (w *grepWorker) find(ctx context.Context, line []byte) (at int, err error) {
	if w.work += w.steps * (len(line) + 1); w.work < workPerLook {
		return firstOf(w.re.FindIndex(line)), nil
	}
	w.work = 0
	if w.steps*len(line) < workPerLook {
		return firstOf(w.re.FindIndex(line)), ctx.Err()
	}
	r := &stoppable{Reader: bytes.NewReader(line), ctx: ctx, every: workPerLook / w.steps}
	return firstOf(w.re.FindReaderIndex(r)), ctx.Err()
}

func firstOf(found []int) int {
	if found == nil {
		return -1
	}
	return found[0]
}

// stoppable reads the runes of a line, and ends when its context ends.
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

// hit records one line that matches.
func (w *grepWorker) hit(one *fileSearch, number int, line []byte, at int) error {
	if n := len(one.matches); n > 0 && one.matches[n-1].Line == number {
		return nil // a further piece of a very long line
	}
	m := grepMatch{Path: wireText(w.f.prefix + one.name), Line: number, Text: wireText(string(w.excerpt(line, at)))}
	if !one.page.takes(m.size()) {
		return errEnough
	}
	one.matches = append(one.matches, m)
	return nil
}

const (
	searchBytes = 256 << 10 // bytes read at a time; a longer line is searched in pieces
	sniffBytes  = 8000      // a NUL in the first ones makes a file binary
	maxLineText = 400       // bytes of a line in the answer
	leadText    = 100       // of those, before the match
)

// file searches an open file, a buffer at a time.
func (w *grepWorker) file(ctx context.Context, one *fileSearch, file *os.File, size int64) error {
	kept, number := 0, 1 // bytes of an unfinished line at the start of buf, and its number
	for first := true; ; first = false {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := readUpTo(file, w.buf[kept:], size)
		size -= int64(n)
		end := err != nil // end of the file, or a read error
		if end && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			one.skipped = true
			return nil
		}
		text := w.buf[:kept+n]
		if first && bytes.IndexByte(text[:min(len(text), sniffBytes)], 0) >= 0 {
			one.skipped = true
			return nil
		}
		if first {
			text = bytes.TrimPrefix(text, []byte("\uFEFF")) // ^ matches after it
			one.counted = true
		}
		whole := bytes.LastIndexByte(text, '\n') + 1
		if end || whole == 0 {
			whole = len(text)
		}
		if err := w.lines(ctx, one, number, text[:whole]); err != nil {
			return err
		}
		if end {
			return nil
		}
		number += bytes.Count(text[:whole], []byte("\n"))
		kept = copy(w.buf, text[whole:])
	}
}

// readUpTo reads the remaining size bytes of a file, or fills buf. A file of unknown size is read to its end.
func readUpTo(file *os.File, buf []byte, size int64) (n int, err error) {
	if size <= 0 || size >= int64(len(buf)) {
		return io.ReadFull(file, buf)
	}
	if n, err = io.ReadFull(file, buf[:size]); err == nil {
		err = io.EOF
	}
	return n, err
}

// lines searches text, whose first line has the given number. It skips lines that cannot match.
func (w *grepWorker) lines(ctx context.Context, one *fileSearch, number int, text []byte) error {
	if w.prefilter != nil {
		w.prefilter.start()
	}
	for start := 0; start < len(text); number++ {
		if w.prefilter != nil {
			at := w.prefilter.find(text, start)
			if at < 0 {
				return nil
			}
			from := start + bytes.LastIndexByte(text[start:at], '\n') + 1
			number += bytes.Count(text[start:from], []byte("\n"))
			start = from
		}
		line, _, _ := bytes.Cut(text[start:], []byte("\n"))
		start += len(line) + 1
		line = bytes.TrimSuffix(line, []byte("\r"))
		at, err := w.find(ctx, line)
		if err == nil && at >= 0 {
			err = w.hit(one, number, line, at)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// excerpt returns a line, or the part of a long line that starts a little before
// the match. It masks secrets first, so that no cut leaves a part of a secret unmasked.
func (w *grepWorker) excerpt(line []byte, match int) []byte {
	if len(line) <= maxLineText {
		return line
	}
	match = len(w.f.secrets.Bytes(line[:match]))
	line = w.f.secrets.Bytes(line)
	start := max(0, min(match-leadText, len(line)-maxLineText))
	for start > 0 && start < len(line) && !utf8.RuneStart(line[start]) {
		start++
	}
	return protocol.Head(line[start:], maxLineText)
}
