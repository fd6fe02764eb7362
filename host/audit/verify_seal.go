package audit

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/go-json-experiment/json"
)

// signature looks at what a line says of itself: from the first signed one on all must be.
// It gives what is wrong.
func (c *checker) signature(line []byte) string {
	at, signed := signatureIn(line)
	if signed {
		c.r.Signed++
	}
	switch {
	case c.by == nil:
		return ""
	case !signed && c.number > 0:
		return "it is not signed, as the entries before it are: it was put in, or the signature was taken off"
	case !signed:
		return ""
	case !c.by.vouches(line, at):
		return "the key did not sign it: the entry was changed or made up, or the key is another"
	case c.number > 0 && at.number != c.number+1:
		return fmt.Sprintf("it has the number %d behind %d", at.number, c.number)
	}
	if c.number == 0 {
		c.first = at.number
	}
	c.number = at.number
	return ""
}

// checkSeal compares what is there with what the seal says was there. Its lock is not held any
// more: entries may have come since.
func (c *checker) checkSeal(path, seal string) {
	s := c.seal
	fail := func(k Kind, format string, args ...any) {
		line := 0
		if n := len(c.r.Files); n > 0 {
			path, line = c.r.Files[n-1].Path, c.r.Files[n-1].Entries
		}
		c.r.Broken = &Break{File: path, Line: line, Kind: k, Message: fmt.Sprintf(format, args...)}
	}
	switch {
	case errors.Is(c.sealErr, errNoSeal):
		fail(BreakSeal, "the log has a key but no seal (%s): it was taken away, or no host has written with this key", seal)
	case c.sealErr != nil:
		fail(BreakSeal, "%v (%s)", c.sealErr, seal)
	case s.Broken != "":
		fail(BreakSeal, "%s", s.Broken)
	case c.number < s.Count:
		fail(BreakCut, "the log ends with entry %d, the seal of %s knows %d: %d entries were cut off", c.number, s.Time, s.Count, s.Count-c.number)
	case s.Count > 0 && s.Count >= c.first && !c.sealed:
		fail(BreakCut, "entry %d is not the one that was sealed", s.Count)
	case s.Count > 0 && c.first > s.Oldest:
		fail(BreakCut, "the log begins with entry %d, the seal of %s knows of those from %d on: a file was taken away", c.first, s.Time, s.Oldest)
	default:
		c.r.Sealed = &Seal{Count: s.Count, Beyond: c.number - s.Count}
		if s.Count > 0 {
			c.r.Sealed.Time = s.Time
		}
	}
}

// checkUnkeyed finds a log whose key was taken away: it is sealed all the same.
func (c *checker) checkUnkeyed(path, seal string) {
	raw, err := os.ReadFile(seal)
	if seal == "" || err != nil {
		return
	}
	var s struct {
		Count int64 `json:"count"`
	}
	if _ = json.Unmarshal(raw, &s); s.Count > 0 || c.r.Signed > 0 {
		c.r.Broken = &Break{File: path, Kind: BreakSeal, Message: fmt.Sprintf("the log has a seal (%s) but its key is missing: nothing of it can be proved", seal)}
	}
}

// proof says what the report proves and what it does not.
func (r Report) proof(b *strings.Builder) {
	if r.Broken != nil {
		return
	}
	switch {
	case r.Sealed != nil && r.Sealed.Count == 0:
		b.WriteString("\nproved: nothing yet; the key has signed no entry")
	case r.Sealed != nil:
		fmt.Fprintf(b, "\nproved by the key: %d entries are signed, and none up to number %d is missing, changed or moved (sealed %s)", r.Signed, r.Sealed.Count, r.Sealed.Time)
		fmt.Fprintf(b, "\nnot proved: that nothing was cut off behind the seal (%d entries are behind it); anything against who holds the key", r.Sealed.Beyond)
		if r.Entries > r.Signed {
			fmt.Fprintf(b, "; the %d entries of before the key beyond their order", r.Entries-r.Signed)
		}
	case r.Signed > 0:
		b.WriteString("\nproved: the links alone, as the key was not given (--key-file)\nnot proved: who wrote the entries; that the end was not cut off and all hashes made anew")
	default:
		b.WriteString("\nproved: the links alone, as the log has no key\nnot proved: who wrote the entries; that the end was not cut off and all hashes made anew")
	}
}
