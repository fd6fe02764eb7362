package record

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/guard/redact"
)

// Difference is a place where an answer differs from the recorded one.
type Difference struct {
	Path string         `json:"path"`          // such as data.matches[0].line
	Was  jsontext.Value `json:"was,omitempty"` // left out if the value was missing
	Is   jsontext.Value `json:"is,omitempty"`  // left out if the value is missing now
}

// maxShown is how many bytes of a value a report shows at most.
const maxShown = 120

// String describes the difference in words.
func (d Difference) String() string {
	switch {
	case d.Was == nil:
		return fmt.Sprintf("%s: was missing, is now %s", d.Path, shown(d.Is))
	case d.Is == nil:
		return fmt.Sprintf("%s: was %s, is now missing", d.Path, shown(d.Was))
	}
	was, is := shown(d.Was), shown(d.Is)
	if was == is { // both are long: begin near the first difference
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

// comparer collects differences.
type comparer struct {
	ids    *ids
	ignore []string
	used   map[string]bool // entries of ignore that matched
	found  []Difference
}

// compare compares two values. It ignores values that naturally change.
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
		names := slices.AppendSeq(slices.Collect(maps.Keys(a)), maps.Keys(b))
		slices.Sort(names)
		for _, name := range slices.Compact(names) {
			c.compare(strings.TrimPrefix(path+"."+name, "."), name, a[name], b[name])
		}
	case '[':
		a, b := elements(was), elements(is)
		for n := range max(len(a), len(b)) {
			c.compare(path+"["+strconv.Itoa(n)+"]", "", at(a, n), at(b, n))
		}
	case '"':
		if now := c.ids.inText(text(was)); now != text(is) && settled(now) != settled(text(is)) {
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

// ignored reports whether the user wants to ignore this place.
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

// volatile reports whether a member has another value in each run: a time, a duration or a process
// id. Ids that the host generates are recognized by their values.
func volatile(key string) bool {
	switch key {
	case "ts", "timestamp", "time", "pid", "ppid", "mtime", "uptime_seconds", "started", "ended", "finished",
		"last_called", "expires":
		return true
	}
	for _, end := range []string{"_at", "_ms", "_ts", "_time", "_pid", "_seconds_used"} {
		if strings.HasSuffix(key, end) {
			return true
		}
	}
	return strings.Contains(key, "duration") || strings.Contains(key, "elapsed") || strings.Contains(key, "latency")
}

// settled returns a text without the parts that naturally change.
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

// ids maps the ids that the host generated for the record (sessions, processes, plans) to the ids
// that it generates now.
type ids struct {
	now   map[string]string
	asked map[string]jsontext.Value // ids of requests of the host, as JSON
	own   map[string]bool           // words that the agent said first: it says them again
	from  string                    // the workspace of the record
	to    string                    // the workspace now
	token string                    // replaces the masked token; "" = the mask stays
	met   bool                      // an MCP client has introduced itself: its later requests need no token
}

// spoken matches words that may be ids.
var spoken = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`[0-9A-Za-z_-]{6,}`) })

// made matches generated ids.
var made = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{12,}`)
})

// spokenByAgent records the words of a line of the agent.
func (i *ids) spokenByAgent(line jsontext.Value) {
	for _, word := range spoken().FindAll(line, -1) {
		if _, known := i.now[string(word)]; !known {
			i.own[string(word)] = true
		}
	}
}

// learn learns from a message of the host, in its recorded and its current form.
func (i *ids) learn(was, is *message) {
	if was.ReqID == nil && was.ID != nil && is.ID != nil {
		i.asked[string(was.ID)] = is.ID
	}
	i.walk("", was.raw, is.raw)
}

// walk learns from each pair of strings at the same place.
func (i *ids) walk(key string, was, is jsontext.Value) {
	if was.Kind() != is.Kind() || bytes.Equal(was, is) {
		return
	}
	switch was.Kind() {
	case '{':
		a, b := members(was), members(is)
		for name, value := range a {
			if other, ok := b[name]; ok {
				i.walk(name, value, other)
			}
		}
	case '[':
		a, b := elements(was), elements(is)
		for n := range min(len(a), len(b)) {
			i.walk(key, a[n], b[n])
		}
	case '"':
		i.pair(key, text(was), text(is))
	}
}

// pair learns that a string has another value now: the whole string if the key says that it is an
// id, otherwise the ids in it.
func (i *ids) pair(key, was, is string) {
	if lower := strings.ToLower(key); strings.HasSuffix(lower, "id") || strings.HasSuffix(lower, "cursor") {
		i.add(was, is)
		return
	}
	a, b := made().FindAllString(was, -1), made().FindAllString(is, -1)
	if len(a) != len(b) {
		return
	}
	for n := range a {
		i.add(a[n], b[n])
	}
}

func (i *ids) add(was, is string) {
	if len(was) >= 4 && was != is && !i.own[was] {
		i.now[was] = is
	}
}

// inText returns a text with the ids and the workspace of this run.
func (i *ids) inText(was string) string {
	if now, ok := i.now[was]; ok {
		return now
	}
	if i.from != "" && i.from != i.to {
		was = strings.ReplaceAll(was, i.from, i.to)
	}
	if len(i.now) == 0 {
		return was
	}
	return spoken().ReplaceAllStringFunc(was, func(word string) string {
		if now, ok := i.now[word]; ok {
			return now
		}
		return word
	})
}

// rewrite returns a line of the agent with the ids of this run.
func (i *ids) rewrite(m *message) []byte {
	line := []byte(m.raw)
	if now, ok := i.asked[string(m.ID)]; ok && m.RPC != nil && m.answersHost() {
		line = bytes.Replace(line, append([]byte(`"id":`), m.ID...), append([]byte(`"id":`), now...), 1)
	}
	secret := i.maskedToken(m, line)
	out, at := make([]byte, 0, len(line)+1), 0
	for {
		begin := bytes.IndexByte(line[at:], '"')
		if begin < 0 {
			return append(append(out, line[at:]...), '\n')
		}
		begin += at
		end := begin + 1
		for end < len(line)-1 && line[end] != '"' {
			if line[end] == '\\' {
				end++
			}
			end++
		}
		end = min(end+1, len(line))
		quoted := line[begin:end]
		out = append(out, line[at:begin]...)
		said := text(quoted)
		switch now := i.inText(said); {
		case end < len(line) && line[end] == ':':
		case end == secret:
			quoted = quote(i.token)
		case now != said:
			quoted = quote(now)
		}
		out = append(out, quoted...)
		at = end
	}
}

// maskedToken returns where the masked token of a handshake ends in its line, or 0 if there is
// none. In any other place the mask stays, so that the token is not shown to others.
func (i *ids) maskedToken(m *message, line []byte) int {
	field := i.tokenField(m)
	if i.token == "" || field == "" {
		return 0
	}
	dec := jsontext.NewDecoder(bytes.NewReader(line), jsontext.AllowDuplicateNames(true))
	for found := 0; ; {
		token, err := dec.ReadToken()
		if err != nil {
			return found
		}
		if dec.StackPointer() == field && token.Kind() == '"' && token.String() == redact.Text {
			found = int(dec.InputOffset()) // of several members with this name, the last one counts
		}
	}
}

// tokenField returns where a message has the token of a handshake in its protocol, or "" if it has none.
func (i *ids) tokenField(m *message) jsontext.Pointer {
	const inMeta = "/params/_meta/a2e~1auth_token"
	switch {
	case m.RPC == nil && (m.Type == "handshake/req" || m.Type == "TASK_DISPATCH"):
		return "/auth_token"
	case m.RPC == nil:
		return ""
	case m.Method == "rpc.handshake":
		return "/params/auth_token"
	case m.Method == "initialize":
		i.met = true
		return inMeta
	case m.Params.Meta.Version != "" && !i.met: // without initialize, the first request has the token
		i.met = true
		return inMeta
	}
	return ""
}

func quote(s string) []byte {
	quoted, _ := jsontext.AppendQuote(nil, s) // its error only means that there is U+FFFD
	return quoted
}

func members(v jsontext.Value) (all map[string]jsontext.Value) {
	_ = json.Unmarshal(v, &all, jsontext.AllowDuplicateNames(true)) // a value that is no object has no members
	return all
}

func elements(v jsontext.Value) (all []jsontext.Value) {
	_ = json.Unmarshal(v, &all, jsontext.AllowDuplicateNames(true)) // a value that is no list has no elements
	return all
}
