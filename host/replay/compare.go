package replay

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
)

// Difference is a place where an answer is not what it was.
type Difference struct {
	Path string         `json:"path"`          // such as data.matches[0].line
	Was  jsontext.Value `json:"was,omitempty"` // left out where there was nothing
	Is   jsontext.Value `json:"is,omitempty"`  // where there is nothing now
}

// maxShown is how many bytes of a value a report shows.
const maxShown = 120

// String says it in words.
func (d Difference) String() string {
	switch {
	case d.Was == nil:
		return fmt.Sprintf("%s: was not there, is now %s", d.Path, shown(d.Is))
	case d.Is == nil:
		return fmt.Sprintf("%s: was %s, is not there now", d.Path, shown(d.Was))
	}
	was, is := shown(d.Was), shown(d.Is)
	if was == is { // both are long: begin where they differ
		at := 0
		for at < min(len(d.Was), len(d.Is)) && d.Was[at] == d.Is[at] {
			at++
		}
		at = max(0, at-20)
		was, is = "…"+shown(d.Was[at:]), "…"+shown(d.Is[at:])
	}
	return fmt.Sprintf("%s: was %s, is now %s", d.Path, was, is)
}

func shown(v jsontext.Value) string {
	if len(v) <= maxShown {
		return string(v)
	}
	return strings.ToValidUTF8(string(v[:maxShown]), "") + fmt.Sprintf("… (%d bytes)", len(v))
}

// comparer finds differences.
type comparer struct {
	ids    *ids
	ignore []string
	used   map[string]bool // of ignore
	found  []Difference
}

// compare holds two values against each other. What changes by nature does not count.
func (c *comparer) compare(path, key string, was, is jsontext.Value) {
	if bytes.Equal(was, is) || volatile(key) || c.ignored(path, key) {
		return
	}
	if was == nil || is == nil || was.Kind() != is.Kind() {
		c.found = append(c.found, Difference{path, was, is})
		return
	}
	switch was.Kind() {
	case '{':
		a, b := members(was), members(is)
		var names []string
		for name := range a {
			names = append(names, name)
		}
		for name := range b {
			if _, both := a[name]; !both {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		for _, name := range names {
			c.compare(strings.TrimPrefix(path+"."+name, "."), name, a[name], b[name])
		}
	case '[':
		a, b := elements(was), elements(is)
		for n := range max(len(a), len(b)) {
			c.compare(path+"["+strconv.Itoa(n)+"]", "", at(a, n), at(b, n))
		}
	case '"':
		if !c.sameText(key, text(was), text(is)) {
			c.found = append(c.found, Difference{path, was, is})
		}
	default:
		c.found = append(c.found, Difference{path, was, is})
	}
}

func at(list []jsontext.Value, n int) jsontext.Value {
	if n < len(list) {
		return list[n]
	}
	return nil
}

// ignored reports whether the user wants the place left out.
func (c *comparer) ignored(path, key string) bool {
	plain := index().ReplaceAllString(path, "[]")
	for _, want := range c.ignore {
		if want == key || want == path || want == plain {
			c.used[want] = true
			return true
		}
	}
	return false
}

var index = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\[\d+\]`) })

// volatile reports whether a member has another value each time: a time, a duration, the id of a
// process. Ids that the host makes up are told by their values.
func volatile(key string) bool {
	switch key {
	case "ts", "timestamp", "time", "pid", "ppid", "mtime", "uptime_seconds", "started", "ended", "finished", "last_called", "expires":
		return true
	}
	for _, end := range []string{"_at", "_ms", "_ts", "_time", "_pid", "_seconds_used"} {
		if strings.HasSuffix(key, end) {
			return true
		}
	}
	return strings.Contains(key, "duration") || strings.Contains(key, "elapsed") || strings.Contains(key, "latency")
}

// sameText reports whether two texts are the same up to ids, times, durations, and the folders
// of this machine.
func (c *comparer) sameText(key, was, is string) bool {
	if c.ids.same(was, is) {
		return true
	}
	return settled(c.ids.inText(was)) == settled(is)
}

// settled returns a text without what changes by nature.
func settled(s string) string {
	s = strings.ReplaceAll(s, os.TempDir()+"/", "/tmp/")
	for _, c := range changing() {
		s = c.ReplaceAllString(s, "\x00")
	}
	return s
}

var changing = sync.OnceValue(func() []*regexp.Regexp {
	return []*regexp.Regexp{
		made(),
		regexp.MustCompile(`\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[-+]\d\d:?\d\d)?`),
		regexp.MustCompile(`\b1\d{9}(\.\d+)?\b`), // seconds since 1970
		regexp.MustCompile(`\b\d+(\.\d+)? ?(ns|µs|us|ms|s|seconds?)\b`),
		regexp.MustCompile(`/tmp/[^\s"':,;]+`),
	}
})
