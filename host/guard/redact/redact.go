// Package redact removes secrets from the output of a host. It finds them by their value, so it does
// not matter where one stands: in a list, an error, an argument or an output.
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

// Text replaces a secret.
const Text = "[redacted]"

// Set contains the secrets that must not be shown. It may grow while it is used, and is safe for
// concurrent use. A nil Set is empty.
type Set struct {
	base *Set // the secrets of the whole host; nil = none

	mu     sync.Mutex
	values map[string]struct{} // guarded by mu
	forms  atomic.Pointer[forms]
	stale  atomic.Bool // forms does not yet contain all values
}

// forms are the spellings in which the values may occur.
type forms struct {
	text    [][]byte // in any text: plain, as in JSON, as in a URL, line by line
	line    [][]byte // those of text that may occur within a JSON string
	words   []string // text as strings, to search in a string
	longest int      // length of the longest form, in bytes
}

// mayBeInText reports whether a text contains one of the forms.
func (f *forms) mayBeInText(text string) bool {
	return slices.ContainsFunc(f.words, func(form string) bool { return strings.Contains(text, form) })
}

// New makes a Set that also contains all secrets of base, even those added to base later.
func New(base *Set) *Set { return &Set{base: base, values: make(map[string]struct{})} }

// Add adds the value of a variable or a header if IsSecret says that it is a secret. Otherwise it adds
// the secret parts of the value: the password of a URL or of a connection string.
func (s *Set) Add(name, value string) {
	if IsSecret(name, value) {
		s.AddSecret(value)
		return
	}
	s.addParts([]byte(value))
}

// AddSecret adds a value that is certainly a secret, such as a token. Values shorter than minSecret
// are ignored, because they occur in too many texts.
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

// known returns the forms of the values, or nil if there are none. It makes them when they are first needed.
func (s *Set) known() *forms {
	if s.stale.Load() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.stale.Load() {
			s.forms.Store(formsOf(s.values))
			s.stale.Store(false) // after the forms, because others read them without the lock
		}
	}
	return s.forms.Load()
}

// AddURL adds the secrets of a URL: its password, a token in place of the user name, and secret
// parameters of its query. If the URL cannot be parsed, it adds the password as written.
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

// Query yields the parameters of a URL's query as written and, if that differs, unescaped. Unlike
// url.ParseQuery it skips none: the parts of a parameter with semicolons are yielded as well.
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

// AddEnviron adds the secrets among the variables, NAME=value each. It looks only at variables with
// the name of a secret.
func (s *Set) AddEnviron(environ []string) {
	for _, entry := range environ {
		if name, value, _ := strings.Cut(entry, "="); SpeaksOfSecret(name) {
			s.Add(name, value)
		}
	}
}

// nextText returns the text between the next pair of quotes in a line of JSON, and the rest of the line after it.
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
	all := map[string]bool{} // whether it may occur within a JSON string
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

// piecesOf returns the lines of a value that are long enough to search for, or the whole value if all are too short.
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

// quotedForms returns a text as written between the quotes of a JSON string, also by encoders that
// escape HTML, slashes or non-ASCII characters.
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

// ascii escapes the non-ASCII characters in the content of a JSON string.
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

// In reports whether a text contains one of the secrets.
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
		kept = copy(buf, buf[max(0, kept-longest):kept]) // it may be the beginning of a secret
	}
}

// Text returns a text without the secrets. If it contains none, it returns the same text without an allocation.
func (s *Set) Text(text string) string {
	for set := s; set != nil && text != ""; set = set.base {
		if f := set.known(); f != nil && f.mayBeInText(text) {
			return string(s.Bytes([]byte(text)))
		}
	}
	return text
}

// Bytes returns a text without the secrets, or the same slice if it contains none.
func (s *Set) Bytes(text []byte) []byte { return replace(text, s.all()) }

// Line returns a line of JSON without the secrets in its texts, or the same slice if it contains none.
// Valid JSON without spaces between its parts stays valid.
func (s *Set) Line(line []byte) []byte {
	for set := s; set != nil; set = set.base {
		if f := set.known(); f != nil && f.mayBeIn(line) {
			return replaceTexts(line, s.all())
		}
	}
	return line
}

// all returns the forms of the Set and of its base sets.
func (s *Set) all() (all []*forms) {
	for ; s != nil; s = s.base {
		if f := s.known(); f != nil {
			all = append(all, f)
		}
	}
	return all
}

// mayBeIn reports whether a line of JSON may contain a secret. Optional escapes allow more spellings
// of a secret than can be searched for, so a line with such escapes always may.
func (f *forms) mayBeIn(line []byte) bool {
	return bytes.Contains(line, []byte(`\u`)) || bytes.Contains(line, []byte(`\/`)) ||
		slices.ContainsFunc(f.line, func(form []byte) bool { return bytes.Contains(line, form) })
}

// replaceQuoted replaces the secrets in a JSON string; quoted includes the quotes.
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

// replaceTexts replaces secrets only in the texts of a line of JSON, because a number may have the
// digits of a secret. It keeps the message's own keys and the values of address: they repeat what the
// peer sent, and without them an answer would match no request.
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

// address returns the keys of a message whose values identify it and what it belongs to.
func address() []string { return []string{"type", "method", "id", "req_id", "task_id"} }

// replace returns a text with the mask in place of each form. Overlapping forms get one mask, so that
// no rest of one is left next to the other.
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

// spansIn returns where a text contains the forms, in order. Overlapping spans are merged.
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

// Longest returns the length of the longest form of a secret, in bytes; 0 = there are no secrets.
func (s *Set) Longest() (n int) {
	for ; s != nil; s = s.base {
		if f := s.known(); f != nil {
			n = max(n, f.longest)
		}
	}
	return n
}

// Head returns about the first n bytes of a text that may be longer or cut off. No part of a secret that reaches beyond
// them is shown; for that the text should have at least n+Longest bytes, if there are as many.
func (s *Set) Head(text []byte, n int) []byte {
	if len(text) <= n {
		return s.Bytes(text)
	}
	text = text[:min(len(text), n+s.Longest())]
	all := s.all()
	shown, _ := s.Writer(nil).upTo(text, min(n, len(text)-begun(text, all)), all)
	return shown[:min(len(shown), n)]
}

// TrimBegun returns a truncated text without the part at its end that may be the beginning of a
// secret, because an incomplete secret would not be recognised.
func (s *Set) TrimBegun(text []byte) []byte { return text[:len(text)-begun(text, s.all())] }

// minSecret is the minimum length of a value to search for, in bytes.
const minSecret = 4
