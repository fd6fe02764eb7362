// Package redact keeps secrets out of what a host shows. It knows them by their value, so
// that it does not matter where one stands: in a list, an error, an argument or an output.
package redact

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// Text stands in place of a secret.
const Text = "[redacted]"

// Set is what must not be shown. It may grow while it is used, and is safe for concurrent
// use. A nil Set is empty.
type Set struct {
	base *Set // those of the whole host; nil = there is none

	mu     sync.Mutex
	values map[string]struct{} // guarded by mu
	forms  atomic.Pointer[forms]
	stale  atomic.Bool // forms lacks some of values
}

// forms are the ways in which the values may be written.
type forms struct {
	text    [][]byte // in any text: as they are, as in JSON, as in a URL, line by line
	line    [][]byte // of those, the ones within a text of JSON
	words   []string // text once more, to be looked for in a string
	longest int      // bytes
}

// mayBeInText reports whether a text has one of the forms.
func (f *forms) mayBeInText(text string) bool {
	return slices.ContainsFunc(f.words, func(form string) bool { return strings.Contains(text, form) })
}

// New makes a Set that holds all of base as well, also what base gets later.
func New(base *Set) *Set { return &Set{base: base, values: make(map[string]struct{})} }

// Add takes the value of a variable or a header by its name, as IsSecret judges it, and what is secret in a value
// that is not secret as a whole: the password of a URL, or of a connection string.
func (s *Set) Add(name, value string) {
	if IsSecret(name, value) {
		s.AddSecret(value)
		return
	}
	s.addParts([]byte(value))
}

// AddSecret takes a value that is a secret for sure, such as a token. Very short ones are
// not looked for: they stand in every second text.
func (s *Set) AddSecret(value string) {
	if s == nil || len(strings.TrimSpace(value)) < minSecret {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.values[value]; known {
		return
	}
	s.values[value] = struct{}{}
	if _, token, ok := strings.Cut(value, " "); ok && len(token) >= minSecret && !strings.Contains(token, " ") {
		s.values[token] = struct{}{} // Bearer TOKEN
	}
	s.stale.Store(true)
}

// known returns the forms of the values, made when they are looked for; nil = there is none.
func (s *Set) known() *forms {
	if s.stale.Load() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.stale.Load() {
			s.forms.Store(formsOf(s.values))
			s.stale.Store(false) // behind the forms: others read them without the lock
		}
	}
	return s.forms.Load()
}

// AddURL takes what a URL has in confidence: its password, a token in place of the user's name, and what is secret
// in its query. Of a URL that cannot be parsed it takes the password as it is written.
func (s *Set) AddURL(text string) {
	u, err := url.Parse(text)
	if err != nil {
		_, rest, _ := strings.Cut(text, "://")
		rest, query, _ := strings.Cut(rest, "?")
		if at := strings.LastIndexByte(rest, '@'); at > 0 {
			_, password, _ := strings.Cut(rest[:at], ":")
			s.AddSecret(password)
		}
		u = &url.URL{RawQuery: query}
	}
	if password, ok := u.User.Password(); ok {
		s.AddSecret(password)
	} else if name := u.User.Username(); looksSecret(name) {
		s.AddSecret(name)
	}
	for name, value := range Query(u.RawQuery) {
		if IsSecretQuery(name, value) {
			s.AddSecret(value)
		}
	}
}

// Query yields the parameters of a URL's query, as they are written and, where that differs, unescaped. Unlike
// url.ParseQuery it leaves none out: the parts of one with a semicolon are yielded as well.
func Query(raw string) iter.Seq2[string, string] {
	return func(yield func(name, value string) bool) {
		for param := range strings.SplitSeq(raw, "&") {
			parts := []string{param}
			if strings.Contains(param, ";") {
				parts = append(parts, strings.Split(param, ";")...)
			}
			for _, part := range parts {
				name, value, _ := strings.Cut(part, "=")
				if plain, err := url.QueryUnescape(name); err == nil {
					name = plain
				}
				plain, err := url.QueryUnescape(value)
				if !yield(name, value) || err == nil && plain != value && !yield(name, plain) {
					return
				}
			}
		}
	}
}

// AddEnviron takes the variables, each as NAME=value.
func (s *Set) AddEnviron(environ []string) {
	for _, entry := range environ {
		if name, value, _ := strings.Cut(entry, "="); SpeaksOfSecret(name) {
			s.Add(name, value)
		}
	}
}

// nextText returns what stands between the quotes of the next text of a line of JSON, and what
// stands behind them.
func nextText(line []byte) (text, rest []byte, ok bool) {
	begin := bytes.IndexByte(line, '"') + 1
	if begin == 0 {
		return nil, nil, false
	}
	end := begin
	for end < len(line) && line[end] != '"' {
		if line[end] == '\\' {
			end++
		}
		end++
	}
	end = min(end, len(line))
	return line[begin:end], line[min(end+1, len(line)):], true
}

func formsOf(values map[string]struct{}) *forms {
	all := map[string]bool{} // whether it may stand within a text of JSON
	for v := range values {
		for _, piece := range piecesOf(v) {
			for _, form := range []string{piece, url.QueryEscape(piece), url.PathEscape(piece)} {
				all[form] = all[form] || false
				for _, q := range quotedForms(form) {
					all[q] = true
				}
			}
		}
	}
	f := &forms{}
	for form, inJSON := range all {
		f.text, f.words, f.longest = append(f.text, []byte(form)), append(f.words, form), max(f.longest, len(form))
		if inJSON {
			f.line = append(f.line, []byte(form))
		}
	}
	return f
}

// piecesOf returns the lines of a value that are looked for, or the value as it is where all of them are too short.
func piecesOf(value string) (pieces []string) {
	for line := range strings.Lines(value) {
		if line = strings.TrimSpace(line); len(line) >= minSecret {
			pieces = append(pieces, line)
		}
	}
	if pieces == nil {
		pieces = []string{strings.TrimSpace(value)}
	}
	return pieces
}

// quotedForms returns a text as it stands between the quotes of a JSON string, also by the
// encoders that escape HTML, slashes, and what is not ASCII.
func quotedForms(text string) []string {
	quoted, err := jsontext.AppendQuote(nil, text)
	if err != nil {
		return nil
	}
	plain := string(quoted[1 : len(quoted)-1])
	slashed := strings.ReplaceAll(plain, "/", `\/`)
	return []string{plain, slashed, ascii(plain), ascii(slashed), strings.NewReplacer("<", `\u003c`, ">", `\u003e`, "&",
		`\u0026`).Replace(plain)}
}

// ascii escapes what is not ASCII in what stands between the quotes of a JSON string.
func ascii(text string) string {
	var out []byte
	for _, r := range text {
		switch {
		case r <= '~':
			out = utf8.AppendRune(out, r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
	}
	return string(out)
}

// In reports whether a text has one of the secrets.
func (s *Set) In(text io.Reader) (bool, error) {
	all, longest := s.all(), s.Longest()
	if longest == 0 {
		return false, nil
	}
	buf, kept := make([]byte, 64<<10+longest), 0
	for {
		n, err := text.Read(buf[kept:])
		kept += n
		if len(spansIn(buf[:kept], all)) > 0 {
			return true, nil
		}
		if errors.Is(err, io.EOF) {
			return false, nil
		} else if err != nil {
			return false, err
		}
		kept = copy(buf, buf[max(0, kept-longest):kept]) // it may begin one
	}
}

// Text returns a text without the secrets: the same one, at no allocation, where there are none in it.
func (s *Set) Text(text string) string {
	for set := s; set != nil && text != ""; set = set.base {
		if f := set.known(); f != nil && f.mayBeInText(text) {
			return string(s.Bytes([]byte(text)))
		}
	}
	return text
}

// Bytes returns a text without the secrets: the same slice where there are none in it.
func (s *Set) Bytes(text []byte) []byte { return replace(text, s.all()) }

// Line returns a line of JSON without the secrets in its texts: the same slice where there
// are none in it. Valid JSON, without spaces between its parts, stays valid.
func (s *Set) Line(line []byte) []byte {
	for set := s; set != nil; set = set.base {
		if f := set.known(); f != nil && f.mayBeIn(line) {
			return replaceTexts(line, s.all())
		}
	}
	return line
}

// all returns the forms of the set and of those below it.
func (s *Set) all() (all []*forms) {
	for ; s != nil; s = s.base {
		if f := s.known(); f != nil {
			all = append(all, f)
		}
	}
	return all
}

// mayBeIn reports whether a line of JSON may hold a secret. With escapes that only some encoders
// write there are more ways to spell one than can be looked for.
func (f *forms) mayBeIn(line []byte) bool {
	return bytes.Contains(line, []byte(`\u`)) || bytes.Contains(line, []byte(`\/`)) ||
		slices.ContainsFunc(f.line, func(form []byte) bool { return bytes.Contains(line, form) })
}

// replaceQuoted replaces within a text of JSON; quoted has its quotes.
func replaceQuoted(quoted []byte, all []*forms) []byte {
	text, err := jsontext.AppendUnquote(nil, quoted)
	if err != nil {
		return replace(quoted, all)
	}
	shown := replace(text, all)
	if bytes.Equal(shown, text) {
		return quoted
	}
	shown, _ = jsontext.AppendQuote(nil, bytes.ToValidUTF8(shown, []byte("\uFFFD"))) // half a character may be left
	return shown
}

// replaceTexts replaces within the texts of a line of JSON only, since a number may have the
// digits of a secret, and leaves the message's own keys and its address as they are: that
// repeats what the peer sent, and without it an answer belongs to no request.
func replaceTexts(line []byte, all []*forms) []byte {
	out := make([]byte, 0, len(line)+len(Text))
	depth, key := 0, ""
	for {
		begin := bytes.IndexByte(line, '"')
		if begin < 0 {
			return append(out, line...)
		}
		for _, c := range line[:begin] {
			switch c {
			case '{', '[':
				depth++
			case '}', ']':
				depth--
			}
		}
		inner, rest, _ := nextText(line)
		end := len(line) - len(rest)
		text := line[begin:end]
		isKey := end < len(line) && line[end] == ':'
		if depth != 1 || !isKey && !slices.Contains(address(), key) {
			text = replaceQuoted(text, all)
		}
		if key = ""; depth == 1 && isKey {
			key = string(inner)
		}
		out = append(append(out, line[:begin]...), text...)
		line = line[end:]
	}
}

// address lists the keys of a message that say what it is, and what it belongs to.
func address() []string { return []string{"type", "method", "id", "req_id", "task_id"} }

// replace returns a text with the mask in place of what it has of the forms. Where two of them overlap, one mask
// stands for both: no end of the one is left beside the other.
func replace(text []byte, all []*forms) []byte {
	spans := spansIn(text, all)
	if len(spans) == 0 {
		return text
	}
	out, from := make([]byte, 0, len(text)), 0
	for _, span := range spans {
		out = append(append(out, text[from:span.begin]...), Text...)
		from = span.end
	}
	return append(out, text[from:]...)
}

// span is a part of a text.
type span struct{ begin, end int }

// spansIn returns where a text has the forms, in order; those that overlap are one.
func spansIn(text []byte, all []*forms) (spans []span) {
	for _, f := range all {
		for _, form := range f.text {
			for from := 0; ; {
				at := bytes.Index(text[from:], form)
				if at < 0 {
					break
				}
				spans = append(spans, span{from + at, from + at + len(form)})
				from += at + 1
			}
		}
	}
	slices.SortFunc(spans, func(a, b span) int { return cmp.Or(a.begin-b.begin, b.end-a.end) })
	merged := spans[:0]
	for _, next := range spans {
		if n := len(merged); n > 0 && next.begin < merged[n-1].end {
			merged[n-1].end = max(merged[n-1].end, next.end)
		} else {
			merged = append(merged, next)
		}
	}
	return merged
}

// Longest is the length of the longest form of a secret, in bytes; 0 = there is none.
func (s *Set) Longest() (n int) {
	for ; s != nil; s = s.base {
		if f := s.known(); f != nil {
			n = max(n, f.longest)
		}
	}
	return n
}

// Head returns about the first n bytes of a text that may be longer, or broken off there. No
// part of a secret stays that reaches beyond them; for that the text should have at least
// n+Longest bytes, where there are so many.
func (s *Set) Head(text []byte, n int) []byte {
	if len(text) <= n {
		return s.Bytes(text)
	}
	text = text[:min(len(text), n+s.Longest())]
	all := s.all()
	shown, _ := s.Writer(nil).upTo(text, min(n, len(text)-begun(text, all)), all)
	return shown[:min(len(shown), n)]
}

// TrimBegun returns a text that was cut off without the part of its end that may begin a secret: where the rest of
// that is missing, it would not be known as one.
func (s *Set) TrimBegun(text []byte) []byte { return text[:len(text)-begun(text, s.all())] }

// minSecret is how many bytes a value must have to be looked for.
const minSecret = 4
