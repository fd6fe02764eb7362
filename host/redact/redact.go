// Package redact keeps secrets out of what a host shows. It knows them by their value, so
// that it does not matter where one stands: in a list, an error, an argument or an output.
package redact

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unicode"
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
}

// forms are the ways in which the values may be written, the longest first.
type forms struct {
	text    [][]byte // in any text: as they are, as in JSON, as in a URL, line by line
	line    [][]byte // of those, the ones within a text of JSON
	longest int      // bytes
}

// New makes a Set that holds all of base as well, also what base gets later.
func New(base *Set) *Set { return &Set{base: base, values: make(map[string]struct{})} }

// Add takes a value that came under a name, that of a variable or a header, unless it is a
// plain setting such as "debug" or 8080: to hide those would spoil ordinary output.
func (s *Set) Add(name, value string) {
	if IsSecret(name, value) {
		s.AddSecret(value)
	}
}

// AddSecret takes a value that is a secret for sure, such as a token. Very short ones are
// not looked for: they stand in every second text.
func (s *Set) AddSecret(value string) {
	if s == nil || len(strings.TrimSpace(value)) < minSecret {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values[value] = struct{}{}
	if _, token, ok := strings.Cut(value, " "); ok && len(token) >= minSecret && !strings.Contains(token, " ") {
		s.values[token] = struct{}{} // Bearer TOKEN
	}
	s.forms.Store(formsOf(s.values))
}

// AddURL takes what a URL has in confidence: its password, and the values of its query.
func (s *Set) AddURL(text string) {
	u, err := url.Parse(text)
	if err != nil {
		return
	}
	if password, ok := u.User.Password(); ok {
		s.AddSecret(password)
	}
	for name, values := range u.Query() {
		for _, v := range values {
			s.Add(name, v)
		}
	}
}

// AddEnviron takes the variables, each as NAME=value, whose names speak of a secret.
func (s *Set) AddEnviron(environ []string) {
	for _, entry := range environ {
		if name, value, _ := strings.Cut(entry, "="); SpeaksOfSecret(name) {
			s.Add(name, value)
		}
	}
}

// AddMessage takes what a message in compact JSON has in confidence: texts whose key is that of
// a secret, such as auth_token, or is written like a variable that holds one, such as GITHUB_TOKEN,
// and what addresses in texts have of the kind.
func (s *Set) AddMessage(line []byte) {
	for {
		key, rest, ok := nextText(line)
		if !ok {
			return
		}
		s.addAddresses(key)
		if line = rest; len(rest) < 2 || rest[0] != ':' || rest[1] != '"' || !secretKey(key) {
			continue
		}
		raw, _, _ := nextText(rest)
		if value, err := jsontext.AppendUnquote(nil, append(append([]byte{'"'}, raw...), '"')); err == nil {
			s.Add(string(key), string(value))
		}
	}
}

// addAddresses takes the passwords and keys of the URLs in a text.
func (s *Set) addAddresses(text []byte) {
	if !bytes.Contains(text, []byte("://")) {
		return
	}
	for word := range bytes.FieldsFuncSeq(text, func(r rune) bool { return unicode.IsSpace(r) || strings.ContainsRune("\"'`\\<>(){}", r) }) {
		u, err := url.Parse(string(word))
		if err != nil || u.Host == "" {
			continue
		}
		if password, ok := u.User.Password(); ok {
			s.AddSecret(password)
		}
		for name, values := range u.Query() {
			if kind := strings.ToLower(name); secretKey([]byte(name)) || kind == "key" || kind == "sig" || strings.HasSuffix(kind, "signature") {
				for _, v := range values {
					s.AddSecret(v)
				}
			}
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

// secretKey reports whether a key of a message is that of a secret.
func secretKey(key []byte) bool {
	name := string(key)
	if len(name) > 3 && len(name) <= 64 && name == strings.ToUpper(name) && SpeaksOfSecret(name) {
		return true
	}
	switch strings.ReplaceAll(strings.ToLower(name), "-", "_") {
	case "auth_token", "access_token", "refresh_token", "bearer_token", "token", "password", "passwd", "passphrase",
		"secret", "client_secret", "api_key", "apikey", "x_api_key", "authorization", "proxy_authorization", "cookie", "private_key":
		return true
	}
	return false
}

func formsOf(values map[string]struct{}) *forms {
	all := map[string]bool{} // whether it may stand within a text of JSON
	for v := range values {
		for _, piece := range append(strings.Split(v, "\n"), v, url.QueryEscape(v), url.PathEscape(v)) {
			if piece = strings.TrimSpace(piece); len(piece) < minSecret {
				continue
			}
			all[piece] = all[piece] || false
			for _, q := range quotedForms(piece) {
				all[q] = true
			}
		}
	}
	f := &forms{}
	for form, inJSON := range all {
		f.text, f.longest = append(f.text, []byte(form)), max(f.longest, len(form))
		if inJSON {
			f.line = append(f.line, []byte(form))
		}
	}
	for _, list := range [][][]byte{f.text, f.line} { // one may begin with another
		slices.SortFunc(list, func(a, b []byte) int { return cmp.Or(len(b)-len(a), bytes.Compare(a, b)) })
	}
	return f
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
	return []string{plain, slashed, ascii(plain), ascii(slashed), strings.NewReplacer("<", `\u003c`, ">", `\u003e`, "&", `\u0026`).Replace(plain)}
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

// Text returns a text without the secrets.
func (s *Set) Text(text string) string { return string(s.Bytes([]byte(text))) }

// Bytes returns a text without the secrets: the same slice where there are none in it.
func (s *Set) Bytes(text []byte) []byte {
	for ; s != nil; s = s.base {
		if f := s.forms.Load(); f != nil {
			text = replace(text, f.text)
		}
	}
	return text
}

// Line returns a line of JSON without the secrets in its texts: the same slice where there
// are none in it. Valid JSON, without spaces between its parts, stays valid.
func (s *Set) Line(line []byte) []byte {
	for ; s != nil; s = s.base {
		if f := s.forms.Load(); f != nil && f.mayBeIn(line) {
			line = replaceTexts(line, f.text)
		}
	}
	return line
}

// mayBeIn reports whether a line of JSON may hold a secret. With escapes that only some encoders
// write there are more ways to spell one than can be looked for.
func (f *forms) mayBeIn(line []byte) bool {
	return bytes.Contains(line, []byte(`\u`)) || bytes.Contains(line, []byte(`\/`)) ||
		slices.ContainsFunc(f.line, func(form []byte) bool { return bytes.Contains(line, form) })
}

// replaceQuoted replaces within a text of JSON; quoted has its quotes.
func replaceQuoted(quoted []byte, forms [][]byte) []byte {
	text, err := jsontext.AppendUnquote(nil, quoted)
	if err != nil {
		return replace(quoted, forms)
	}
	shown := replace(text, forms)
	if bytes.Equal(shown, text) {
		return quoted
	}
	shown, _ = jsontext.AppendQuote(nil, bytes.ToValidUTF8(shown, []byte("\uFFFD"))) // half a character may be left
	return shown
}

// replaceTexts replaces within the texts of a line of JSON only, since a number may have the
// digits of a secret, and leaves the message's own keys and its address as they are: that
// repeats what the peer sent, and without it an answer belongs to no request.
func replaceTexts(line []byte, forms [][]byte) []byte {
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
			text = replaceQuoted(text, forms)
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

func replace(text []byte, forms [][]byte) []byte {
	for _, form := range forms {
		if bytes.Contains(text, form) {
			text = bytes.ReplaceAll(text, form, []byte(Text))
		}
	}
	return text
}

// Longest is the length of the longest form of a secret, in bytes; 0 = there is none.
func (s *Set) Longest() (n int) {
	for ; s != nil; s = s.base {
		if f := s.forms.Load(); f != nil {
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
	longest := s.Longest()
	shown := s.Bytes(text[:min(len(text), n+longest)])
	return shown[:max(0, min(len(shown)-longest, n))] // its last bytes may begin one
}

// minSecret is how many bytes a value must have to be looked for.
const minSecret = 4

// plain matches a word of at most 16 letters, such as production, a number (also addresses, versions, sizes and durations) and a locale.
// It is compiled when it is first needed, which most starts of the host never do.
var plain = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(?:[A-Za-z][A-Za-z_-]{0,15}|[-+0-9.,:]+[a-zA-Z]{0,2}|(?:C|POSIX|[a-z]{2,3}_[A-Z]{2})(?:[.@][A-Za-z0-9-]+)*)$`)
})

// IsSecret reports whether a value must be hidden. Under a name that speaks of a secret
// every value but true and false is one; under others all but plain settings are: a word, a number, a locale,
// and files and folders that exist.
func IsSecret(name, value string) bool {
	switch {
	case slices.Contains([]string{"true", "false", "null", "none"}, strings.ToLower(value)):
		return false
	case SpeaksOfSecret(name):
		return true
	case plain().MatchString(value):
		return false
	}
	paths := filepath.SplitList(value)
	return !slices.ContainsFunc(paths, filepath.IsAbs) || slices.ContainsFunc(paths, func(p string) bool {
		if p == "" {
			return false
		}
		_, err := os.Stat(p)
		return !filepath.IsAbs(p) || err != nil
	})
}

// SpeaksOfSecret reports whether a name, such as API_KEY or Authorization, is that of one.
func SpeaksOfSecret(name string) bool {
	name = strings.ReplaceAll(strings.ReplaceAll(strings.ToUpper(name), "AUTHORIZ", "AUTH"), "AUTHOR", "")
	return slices.ContainsFunc([]string{"KEY", "TOKEN", "SECRET", "PASS", "CREDENTIAL", "AUTH", "COOKIE"}, func(w string) bool {
		return strings.Contains(name, w)
	})
}

// Writer passes a stream on without the secrets, also where one comes in pieces. Close
// passes on what was held back.
type Writer struct {
	set  *Set
	dst  io.Writer
	held []byte // may be the beginning of a secret
}

// Writer makes a Writer to dst.
func (s *Set) Writer(dst io.Writer) *Writer { return &Writer{set: s, dst: dst} }

// Write implements io.Writer. It keeps no part of p.
func (w *Writer) Write(p []byte) (int, error) {
	text := p
	if len(w.held) > 0 {
		text = append(w.held, p...)
	}
	text = w.set.Bytes(text)
	keep := w.set.begun(text)
	if _, err := w.dst.Write(text[:len(text)-keep]); err != nil {
		return 0, err
	}
	w.held = append(w.held[:0:0], text[len(text)-keep:]...)
	return len(p), nil
}

// Close passes on the rest. It does not close what it writes to.
func (w *Writer) Close() error {
	rest := w.held
	w.held = nil
	if len(rest) == 0 {
		return nil
	}
	_, err := w.dst.Write(rest)
	return err
}

// begun is the length of the longest end of a text that a secret begins with.
func (s *Set) begun(text []byte) (n int) {
	for ; s != nil; s = s.base {
		f := s.forms.Load()
		if f == nil {
			continue
		}
		for _, form := range f.text {
			for k := min(len(form)-1, len(text)); k > n; k-- {
				if bytes.HasSuffix(text, form[:k]) {
					n = k
				}
			}
		}
	}
	return n
}

// Whole makes a writer to dst that hides the secrets of each Write by itself, and holds
// nothing back: for logs, which are written line by line.
func (s *Set) Whole(dst io.Writer) io.Writer { return whole{s, dst} }

type whole struct {
	set *Set
	dst io.Writer
}

// Write implements io.Writer.
func (w whole) Write(p []byte) (int, error) {
	if _, err := w.dst.Write(w.set.Bytes(p)); err != nil {
		return 0, err
	}
	return len(p), nil
}

// BeforeToken returns a text that is no whole message up to the value of a token in it, since what
// cannot be parsed cannot be masked by its value.
func BeforeToken(text []byte) []byte {
	const key = "auth_token"
	if at := bytes.Index(text, []byte(key)); at >= 0 {
		return append(bytes.Clone(text[:at+len(key)]), " "+Text...)
	}
	return text
}
