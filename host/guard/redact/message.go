package redact

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// AddMessage adds the secrets of a message: the texts under names that mean a secret, also in lists
// and objects there, the variables and headers that are secret by their name or look, the arguments
// after flags such as --token, and the secret parts of URLs and assignments.
func (s *Set) AddMessage(line []byte) {
	if plain(line) {
		return
	}
	dec := jsontext.NewDecoder(bytes.NewReader(line), jsontext.AllowDuplicateNames(true))
	_ = s.addValue(dec, "", false) // values before a syntax error are added
}

// plain reports whether a quick check shows that a message has no secrets: no name that may mean a
// secret, no variables or headers, no URL, and no escape that could hide them.
func plain(line []byte) bool {
	return !messageParts().in(line) && !containsAny(line, []string{"://", `\u`, `\/`}) &&
		!containsAny(line, lettersOfASCII())
}

// addValue adds the secrets of the next value, which has this name. variables = its members are variables or headers.
func (s *Set) addValue(dec *jsontext.Decoder, name string, variables bool) error {
	switch dec.PeekKind() {
	case '{':
		return s.addObject(dec, name, variables)
	case '[':
		return s.addList(dec, name, variables)
	}
	texts, err := readTexts(dec)
	for _, text := range texts {
		s.addText(name, text, variables)
	}
	return err
}

// readTexts reads a value that is neither object nor list. It returns the decoded text, and also the encoded one if
// that differs, because the line may be part of another text. If the text is cut off, it returns the existing part.
func readTexts(dec *jsontext.Decoder) (texts []string, err error) {
	raw, err := dec.ReadValue()
	if err != nil {
		begun := bytes.TrimLeft(dec.UnreadBuffer(), " \t\r\n:,")
		if half, ok := bytes.CutPrefix(begun, []byte(`"`)); ok && errors.Is(err, io.ErrUnexpectedEOF) {
			texts = append(texts, string(half))
		}
		return texts, err
	}
	if raw.Kind() == '"' {
		text, _ := jsontext.AppendUnquote(nil, raw) // the decoder has checked it
		texts = append(texts, string(text))
		if written := raw[1 : len(raw)-1]; !bytes.Equal(written, text) {
			texts = append(texts, string(written))
		}
	}
	return texts, nil
}

func (s *Set) addText(name, text string, variable bool) {
	if variable || SpeaksOfSecret(name) {
		s.Add(name, text)
	} else {
		s.addParts([]byte(text))
	}
}

func (s *Set) addObject(dec *jsontext.Decoder, name string, variables bool) error {
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	for dec.PeekKind() != '}' {
		token, err := dec.ReadToken()
		if err != nil {
			return err
		}
		key := token.String()
		s.addParts([]byte(key))
		inner := variables || holdsVariables(key)
		if SpeaksOfSecret(name) && kindOf(key) == kindOther {
			key = name // as in credentials: {main: …}
		}
		if err := s.addValue(dec, key, inner); err != nil {
			return err
		}
	}
	_, err := dec.ReadToken()
	return err
}

func (s *Set) addList(dec *jsontext.Decoder, name string, variables bool) error {
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	before := ""
	for dec.PeekKind() != ']' {
		switch kind := dec.PeekKind(); {
		case kind == '{' && variables: // {"name": …, "value": …}
			raw, err := dec.ReadValue()
			if err != nil {
				return err
			}
			var pair struct{ Name, Key, Value string }
			_ = json.Unmarshal(raw, &pair, json.MatchCaseInsensitiveNames(true)) // on an error it is no pair
			s.Add(cmp.Or(pair.Name, pair.Key), pair.Value)
		case kind == '"':
			texts, err := readTexts(dec)
			for _, text := range texts {
				s.addItem(name, before, text)
			}
			if err != nil {
				return err
			}
			before = texts[0]
		default:
			if err := s.addValue(dec, name, variables); err != nil {
				return err
			}
		}
	}
	_, err := dec.ReadToken()
	return err
}

// addItem adds the secrets of a text in a list, after another text: NAME=value, Name: value, or the argument of a flag.
func (s *Set) addItem(name, before, text string) {
	s.addText(name, text, false)
	if at := strings.IndexAny(text, "=:"); at > 0 && SpeaksOfSecret(text[:at]) &&
		!strings.ContainsAny(text[:at], " /") {
		s.Add(text[:at], strings.TrimSpace(text[at+1:]))
	}
	if strings.HasPrefix(before, "-") && !strings.ContainsAny(before, "= ") && SpeaksOfSecret(before) {
		s.Add(before, text)
	}
}

// addParts adds the secret parts of a text: parts of URLs, values assigned to the name of a secret, as
// in AccountKey=…;Endpoint=… or host=db password=…, arguments after flags such as --token, and the
// secrets of JSON in the text.
func (s *Set) addParts(text []byte) {
	if bytes.Contains(text, []byte("://")) {
		quote := func(r rune) bool { return unicode.IsSpace(r) || strings.ContainsRune("\"'`\\<>(){}", r) }
		for word := range bytes.FieldsFuncSeq(text, quote) {
			if bytes.Contains(word, []byte("://")) {
				s.AddURL(string(word))
			}
		}
	}
	if mayName(text) {
		s.addNamed(text)
	}
	s.addNested(text)
}

// addNamed adds the values in a text that follow the name of a secret.
func (s *Set) addNamed(text []byte) {
	if bytes.IndexByte(text, '=') > 0 {
		for _, m := range assigned().FindAllSubmatch(text, -1) {
			if name := string(m[1]); !strings.Contains(name, "://") && SpeaksOfSecret(name) {
				s.Add(name, unquoted(m[2]))
			}
		}
	}
	if bytes.Contains(text, []byte("-")) {
		for _, m := range flagged().FindAllSubmatch(text, -1) {
			if SpeaksOfSecret(string(m[1])) {
				s.Add(string(m[1]), unquoted(m[2]))
			}
		}
	}
	for _, m := range member().FindAllSubmatch(text, -1) { // also of incomplete objects
		if SpeaksOfSecret(string(m[1])) {
			s.Add(string(m[1]), string(m[2]))
		}
	}
}

// unquoted returns a value without the quotes that a shell removes.
func unquoted(value []byte) string { return strings.Trim(string(value), `"'`) }

// anyValue is the pattern of a value that may be in quotes.
const anyValue = `("(?:\\.|[^"\\])*"|'[^']*'|[^\s;]*)`

// assigned matches name=value, flagged --flag value, and member "name": "value", also if the end of
// the value is missing.
var (
	assigned = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`([^\s;="']+)=` + anyValue) })
	member   = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`"([^\s"\\]+)"\s*:\s*"((?:\\.|[^"\\])*)`)
	})
	flagged = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(?:^|\s)(--?[A-Za-z][-\w.]*)[ \t]+` + anyValue)
	})
)

// holdsVariables reports whether the members of a value with this name are variables or headers.
func holdsVariables(name string) bool {
	return slices.Contains([]string{"env", "environ", "environment", "headers"}, strings.ToLower(name))
}

// addNested adds the secrets of the objects and lists in a text, as far as they can be parsed.
func (s *Set) addNested(text []byte) {
	for {
		at := bytes.IndexAny(text, "{[")
		if at < 0 {
			return
		}
		name := ""
		if before, ok := bytes.CutSuffix(text[:at], []byte("=")); ok { // as in env={…}
			name = string(before[bytes.LastIndexAny(before, " \t\n")+1:])
		}
		text = text[at:]
		inner := bytes.TrimLeft(text[1:], " \t\r\n")
		if len(inner) == 0 || !bytes.ContainsAny(inner[:1], "\"{[") {
			text = text[1:]
			continue
		}
		dec := jsontext.NewDecoder(bytes.NewReader(text), jsontext.AllowDuplicateNames(true))
		_ = s.addValue(dec, name, holdsVariables(name)) // values before a syntax error are added
		text = text[max(1, dec.InputOffset()):]
	}
}

// Own returns a text without the secrets of the Set, and without those in the text itself that
// AddMessage would find. The Set does not keep the latter.
func (s *Set) Own(text []byte) []byte {
	own, ok := s.ownOf(text)
	if !ok {
		return []byte(Text)
	}
	return own.Bytes(text)
}

// OwnHead returns about the first n bytes of the result of Own. It is for logs.
func (s *Set) OwnHead(text []byte, n int) []byte {
	own, ok := s.ownOf(text[:min(len(text), maxLooked)])
	if !ok {
		return []byte(Text)
	}
	return own.Head(text, n)
}

const (
	maxLooked = 64 << 10 // bytes of a text that are searched for its own secrets by OwnHead
	maxOwn    = 512      // secrets of a text; one with more is hidden as a whole
)

// ownOf returns the Set with the secrets of a text added. ok is false if there are too many to show
// parts of the text.
func (s *Set) ownOf(text []byte) (*Set, bool) {
	own := New(s)
	own.addParts(text)
	return own, len(own.values) <= maxOwn
}

// BeforeToken returns an incomplete message up to the value of its first secret, because a value that
// cannot be parsed cannot be masked.
func BeforeToken(text []byte) []byte {
	for rest := text; ; {
		key, after, ok := nextText(rest)
		if !ok {
			return text
		}
		if SpeaksOfSecret(string(key)) && bytes.HasPrefix(bytes.TrimLeft(after, " \t"), []byte(":")) {
			return append(bytes.Clone(text[:len(text)-len(after)]), " "+Text...)
		}
		rest = after
	}
}
