package audit

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"

	"a2e/protocol"
)

// Kind says what is wrong with a chain.
type Kind string

// The kinds of breaks that Verify distinguishes.
const (
	// BreakChanged: a line's `prev` is not the hash of any line: the line before it was edited, or lines
	// between the two were removed.
	BreakChanged Kind = "edited or removed"
	// BreakOrder: a line's `prev` is the hash of another line than the one before it: lines were moved,
	// repeated or inserted.
	BreakOrder Kind = "reordered or inserted"
	// BreakHalf: the last line of a file has no newline and is not a complete entry.
	BreakHalf Kind = "half line"
	// BreakNotJSON: a line is not a JSON object that ends with `prev`, or is longer than any entry.
	BreakNotJSON Kind = "not an entry"
	// BreakForged: an entry is not signed with the key, or its number does not follow the one before.
	BreakForged Kind = "forged"
)

// Break is the first place where a chain is broken.
type Break struct {
	File    string // path of the file
	Line    int    // line in that file, from 1, whose `prev` or form is wrong; 0 = no line
	Kind    Kind
	Message string // a text for people: what was expected and what was found
}

// FileReport is the number of entries in one file of a chain.
type FileReport struct {
	Path    string
	Entries int
}

// Report is the result of Verify.
type Report struct {
	Files   []FileReport // oldest first
	Entries int          // entries whose link is correct, up to Broken
	Dropped int          // entries that the host counted but could not write (`audit/dropped`)
	// Anchor is the `prev` of the oldest entry if that is not the first of its chain: older entries were moved away, or
	// removed with their whole files, which Verify cannot tell apart. "" = the chain is complete from its start.
	Anchor string
	// Last is the hash of the newest entry. Without a key nothing proves that entry, or that no entries
	// were removed after it; compare Last with a copy kept elsewhere.
	Last   string
	Signed int    // entries with a MAC
	Keyed  bool   // there was a key, which proves the signed entries
	Broken *Break // nil if the chain is not broken
}

// OK reports whether the chain is not broken.
func (r Report) OK() bool { return r.Broken == nil }

// String describes the report in a few lines for a person.
func (r Report) String() string {
	var b strings.Builder
	for _, f := range r.Files {
		fmt.Fprintf(&b, "%s: %s\n", f.Path, protocol.Count(f.Entries, "entry"))
	}
	if r.Anchor != "" {
		fmt.Fprintf(&b, "older entries were moved away; the chain is checked from prev %s on\n", r.Anchor)
	}
	if r.Dropped > 0 {
		fmt.Fprintf(&b, "the host dropped %s while the disk failed\n", protocol.Count(r.Dropped, "entry"))
	}
	if r.Broken != nil {
		at := r.Broken.File
		if r.Broken.Line > 0 {
			at += ":" + strconv.Itoa(r.Broken.Line)
		}
		fmt.Fprintf(&b, "BROKEN at %s: %s: %s", at, r.Broken.Kind, r.Broken.Message)
	} else {
		fmt.Fprintf(&b, "ok: %s in an unbroken chain, the last has the hash %s", protocol.Count(r.Entries, "entry"),
			r.Last)
	}
	r.proof(&b)
	return b.String()
}

// Verify checks every link of the chain at path: the older files path.N to path.1, as logrotate names
// them, and then path itself. With a key it also checks every signature. It may run while hosts write.
// The error is for files that cannot be read; a broken chain is in the Report.
func Verify(path string, key Key) (Report, error) {
	by, err := key.load()
	if err != nil {
		return Report{}, fmt.Errorf("audit: the key cannot be used: %w", err)
	}
	if by == nil && key.File != "" && !key.Optional {
		return Report{}, fmt.Errorf("audit: there is no key at %s", key.File)
	}
	c := checker{prev: noLink(), by: by, r: Report{Keyed: by != nil}}
	files, err := openChain(path)
	if err != nil {
		return Report{}, err
	}
	defer func() {
		for _, f := range files {
			_ = f.h.Close()
		}
	}()
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
		c.r.Last = c.prev.String()
	}
	if b := c.r.Broken; b != nil && b.Kind == BreakChanged {
		err = c.findLink(files)
	}
	return c.r, err
}

// checker follows a chain line by line.
type checker struct {
	r     Report
	prev  link   // hash of the previous line
	at    string // place of that line
	wrong link   // the `prev` that broke the chain

	by     *signer // nil without a key
	number int64   // of the last signed entry
}

// check checks the next line; false stops the walk.
func (c *checker) check(path string, line []byte, n int, form lineForm) bool {
	fail := func(k Kind, format string, args ...any) bool {
		c.r.Broken = &Break{File: path, Line: n, Kind: k, Message: fmt.Sprintf(format, args...)}
		return false
	}
	got, ok := linkIn(line)
	switch {
	case form == lineHalf && !ok:
		return fail(BreakHalf, "the file ends within an entry: a host was killed while it wrote, or the end was cut "+
			"off (the next host that writes repairs it)")
	case form == lineLong:
		return fail(BreakNotJSON, "the line is longer than any entry (%d bytes)", maxLine)
	case !ok:
		return fail(BreakNotJSON, `the line is not a JSON object that ends with "prev" and 64 hex digits`)
	case c.at == "" && got != c.prev:
		c.r.Anchor = got.String()
	case got != c.prev:
		c.wrong = got
		return fail(BreakChanged, "its prev is not the hash of %s: that line was edited, or lines between the two "+
			"were removed", c.at)
	}
	if why := c.signature(line); why != "" {
		return fail(BreakForged, "%s", why)
	}
	c.prev, c.at = linkOf(line), path+":"+strconv.Itoa(n)
	c.r.Entries++
	c.r.Files[len(c.r.Files)-1].Entries++
	c.r.Dropped += droppedIn(line)
	return true
}

// findLink looks for the line to which the broken link points: if it exists, lines were moved rather than lost.
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

// droppedIn returns the count of an audit/dropped entry, or 0 for other entries.
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

// signature checks the signature of a line: after the first signed line all lines must be signed. It
// returns what is wrong, or "".
func (c *checker) signature(line []byte) string {
	at, signed := signatureIn(line)
	if signed {
		c.r.Signed++
	}
	switch {
	case c.by == nil:
		return ""
	case !signed && c.number > 0:
		return "it is not signed, unlike the entries before it: it was inserted, or its signature was removed"
	case !signed:
		return ""
	case !c.by.vouches(line, at):
		return "the key did not sign it: the entry was changed or forged, or another key signed it"
	case c.number > 0 && at.number != c.number+1:
		return fmt.Sprintf("it has the number %d behind %d", at.number, c.number)
	}
	c.number = at.number
	return ""
}

// proof writes what the report proves and what it does not prove.
func (r Report) proof(b *strings.Builder) {
	if r.Broken != nil {
		return
	}
	switch {
	case r.Keyed && r.Signed == 0:
		b.WriteString("\nproved: nothing yet; the key has signed no entry")
	case r.Keyed:
		fmt.Fprintf(b, "\nproved by the key: %s signed, and between them none is missing, changed or moved",
			protocol.Count(r.Signed, "entry"))
		b.WriteString("\nnot proved: that nothing was cut off at either end; anything against the holder of the key")
		if r.Entries > r.Signed {
			fmt.Fprintf(b, "; more than the order of the %s before the key",
				protocol.Count(r.Entries-r.Signed, "entry"))
		}
	case r.Signed > 0:
		b.WriteString("\nproved: the links alone, as the key was not given (--key-file)\nnot proved: who wrote the " +
			"entries; that the end was not cut off and all hashes recomputed")
	default:
		b.WriteString("\nproved: the links alone, as the log has no key\nnot proved: who wrote the entries; that " +
			"the end was not cut off and all hashes recomputed")
	}
}
