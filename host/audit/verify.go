package audit

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
)

// Kind is what is wrong with a chain.
type Kind string

// The kinds of breaks that Verify tells apart.
const (
	// BreakChanged: a line's `prev` is the hash of no line there is: the line
	// before it was edited, or lines between the two were removed.
	BreakChanged Kind = "edited or removed"
	// BreakOrder: a line's `prev` is the hash of another line than the one
	// before it: lines were moved, repeated or put in.
	BreakOrder Kind = "reordered or inserted"
	// BreakHalf: the last line of a file has no newline and is no whole entry.
	BreakHalf Kind = "half line"
	// BreakNotJSON: a line is no JSON object that ends with `prev`, or is longer
	// than any entry.
	BreakNotJSON Kind = "not an entry"
)

// Break is the first place where a chain does not hold.
type Break struct {
	File    string // path of the file
	Line    int    // line in that file, from 1: the one whose `prev` or form is wrong
	Kind    Kind
	Message string // for a person: what was expected and what is there
}

// FileReport counts one file of a chain.
type FileReport struct {
	Path    string
	Entries int
}

// Report is what Verify found.
type Report struct {
	Files   []FileReport // oldest first
	Entries int          // entries whose link holds, up to Broken
	Dropped int          // entries the host counted but could not keep (`audit/dropped`)
	// Anchor is the `prev` of the oldest entry when that is not the first of its
	// chain: entries before it were rotated away, or removed with their whole
	// files, which cannot be told apart. "" when the chain is there from its start.
	Anchor string
	// Last is the hash of the newest entry. Nothing vouches for that entry and for
	// entries removed behind it; compare Last with a copy kept elsewhere.
	Last   string
	Broken *Break // nil when every link holds
}

// OK tells whether every link holds.
func (r Report) OK() bool { return r.Broken == nil }

// String describes the report in a few lines for a person.
func (r Report) String() string {
	var b strings.Builder
	for _, f := range r.Files {
		fmt.Fprintf(&b, "%s: %d entries\n", f.Path, f.Entries)
	}
	if r.Anchor != "" {
		fmt.Fprintf(&b, "older entries are not there any more (rotated away); the chain is checked from prev %s on\n", r.Anchor)
	}
	if r.Dropped > 0 {
		fmt.Fprintf(&b, "%d entries were dropped by the host while the disk failed\n", r.Dropped)
	}
	if r.Broken != nil {
		fmt.Fprintf(&b, "BROKEN at %s:%d: %s: %s", r.Broken.File, r.Broken.Line, r.Broken.Kind, r.Broken.Message)
	} else {
		fmt.Fprintf(&b, "ok: %d entries in an unbroken chain, the last has the hash %s", r.Entries, r.Last)
	}
	return b.String()
}

// Verify checks every link of the chain at path: the rotated files path.N to
// path.1 and then path itself. It may run beside hosts that write. The error is
// for files that cannot be read; a broken chain is in the Report.
func Verify(path string) (Report, error) {
	files, err := openChain(path)
	if err != nil {
		return Report{}, err
	}
	defer func() {
		for _, f := range files {
			_ = f.h.Close()
		}
	}()
	c := checker{prev: noLink()}
	for _, f := range files {
		c.r.Files = append(c.r.Files, FileReport{Path: f.path})
		err := f.each(func(line []byte, n int, form lineForm) bool { return c.check(f.path, line, n, form) })
		if err != nil {
			return c.r, err
		}
		if c.r.Broken != nil {
			break
		}
	}
	if c.r.Entries > 0 {
		c.r.Last = string(c.prev[:])
	}
	if b := c.r.Broken; b != nil && b.Kind == BreakChanged {
		err = c.findLink(files)
	}
	return c.r, err
}

// checker follows a chain line by line.
type checker struct {
	r     Report
	prev  link   // hash of the line before
	at    string // where that line is
	wrong link   // the `prev` that broke the chain
}

// check takes one more line; false stops the walk.
func (c *checker) check(path string, line []byte, n int, form lineForm) bool {
	fail := func(k Kind, format string, args ...any) bool {
		c.r.Broken = &Break{File: path, Line: n, Kind: k, Message: fmt.Sprintf(format, args...)}
		return false
	}
	got, ok := linkIn(line)
	switch {
	case form == lineHalf && !ok:
		return fail(BreakHalf, "the file ends within an entry: a host was killed while it wrote, or the end was cut off (the next start of a host repairs it)")
	case form == lineLong:
		return fail(BreakNotJSON, "the line is longer than any entry (%d bytes)", maxLine)
	case !ok:
		return fail(BreakNotJSON, `the line is no JSON object that ends with "prev" and 64 hex digits`)
	case c.at == "" && got != c.prev:
		c.r.Anchor = string(got[:])
	case got != c.prev:
		c.wrong = got
		return fail(BreakChanged, "its prev is not the hash of %s: that line was edited, or lines between the two were removed", c.at)
	}
	c.prev, c.at = linkOf(line), path+":"+strconv.Itoa(n)
	c.r.Entries++
	c.r.Files[len(c.r.Files)-1].Entries++
	c.r.Dropped += droppedIn(line)
	return true
}

// findLink looks for the line that the broken link points to: when there is
// one, lines were moved rather than lost.
func (c *checker) findLink(files []chainFile) error {
	for _, f := range files {
		err := f.each(func(line []byte, n int, _ lineForm) bool {
			if linkOf(line) != c.wrong {
				return true
			}
			c.r.Broken.Kind = BreakOrder
			c.r.Broken.Message = fmt.Sprintf("it was written right behind %s:%d, but stands behind %s", f.path, n, c.at)
			return false
		})
		if err != nil || c.r.Broken.Kind == BreakOrder {
			return err
		}
	}
	return nil
}

// droppedIn gives the count of an audit/dropped entry, 0 for others.
func droppedIn(line []byte) int {
	if !strings.Contains(string(line), droppedType) {
		return 0
	}
	var e struct {
		Type    string `json:"type"`
		Dropped int    `json:"dropped"`
	}
	if json.Unmarshal(line, &e) != nil || e.Type != droppedType {
		return 0
	}
	return e.Dropped
}

// chainFile is one open file of a chain, up to the size it had when the walk began.
type chainFile struct {
	path string
	h    *os.File
	size int64
}

type lineForm int

const (
	lineWhole lineForm = iota
	lineHalf           // at the end of the file, without a newline
	lineLong           // cut, being longer than any entry
)

// each calls fn for every line until it returns false. The line is valid
// during the call only.
func (f chainFile) each(fn func(line []byte, n int, form lineForm) bool) error {
	r := bufio.NewReaderSize(io.NewSectionReader(f.h, 0, f.size), maxLine+1)
	for n := 1; ; n++ {
		line, err := r.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			if !fn(line, n, lineLong) {
				return nil
			}
			for errors.Is(err, bufio.ErrBufferFull) {
				_, err = r.ReadSlice('\n')
			}
		case err == nil:
			if !fn(line[:len(line)-1], n, lineWhole) {
				return nil
			}
		case errors.Is(err, io.EOF) && len(line) > 0:
			fn(line, n, lineHalf)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("audit: read %s: %w", f.path, err)
		}
	}
}

// openChain opens the files of a chain, oldest first, all of one moment: under
// the writers' lock where there is one. Open files stay the same when a host
// rotates them during the walk.
func openChain(path string) (files []chainFile, err error) {
	if exists(path + lockFileName) {
		// A lock that cannot be had only means that a rotation may look like a break.
		if unlock, err := (&file{path: path}).lock(nil, lockPatience); err == nil {
			defer unlock()
		}
	}
	names, err := chainNames(path)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		f, err := openPart(name)
		if errors.Is(err, fs.ErrNotExist) && name == path && len(names) > 1 {
			continue // a host was stopped between a rotation and the next entry
		}
		if err != nil {
			for _, f := range files {
				_ = f.h.Close()
			}
			return nil, fmt.Errorf("audit: cannot read %s: %w", name, err)
		}
		files = append(files, f)
	}
	return files, nil
}

func openPart(path string) (chainFile, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return chainFile{}, err
	}
	if !fi.Mode().IsRegular() { // opening a pipe would wait for its other end
		return chainFile{}, errors.New("not a regular file")
	}
	h, err := os.Open(path)
	if err != nil {
		return chainFile{}, err
	}
	return chainFile{path: path, h: h, size: fi.Size()}, nil
}

// chainNames lists path.N … path.1 as far as they exist, and path.
func chainNames(path string) ([]string, error) {
	base := filepath.Base(path)
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("audit: cannot read the folder of %s: %w", path, err)
	}
	var numbers []int
	for _, e := range entries {
		digits, ok := strings.CutPrefix(e.Name(), base+".")
		if n, err := strconv.Atoi(digits); ok && err == nil && n > 0 && strconv.Itoa(n) == digits {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	slices.Reverse(numbers)
	names := make([]string, 0, len(numbers)+1)
	for _, n := range numbers {
		names = append(names, path+"."+strconv.Itoa(n))
	}
	return append(names, path), nil
}
