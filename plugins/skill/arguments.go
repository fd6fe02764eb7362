package skill

import (
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/protocol"
)

const (
	maxArgumentBytes = 1 << 20 // of the JSON of all arguments
	wordsName        = "args"  // the argument that is a line of words, as on a command line
)

// arguments are the arguments of one call, checked, with the defaults filled in.
type arguments struct {
	raw    jsontext.Value // an object
	names  []string       // in the order of the inputs, then other arguments in the order sent
	values map[string]jsontext.Value
	line   string // the line of words, as sent
}

// prepare checks the arguments of a call. The error is a schema_violation.
//
// Hosts that call skills with a line of words send it as "args". If the skill declares no inputs, its
// words become the arguments named in `arguments`. If it declares inputs but none with that name, the
// whole line becomes the first missing input of type string, a required one if possible.
func (f *front) prepare(obj protocol.Object) (*arguments, error) {
	if size := len(obj.Raw()); size > maxArgumentBytes {
		return nil, protocol.Wrong("/arguments", "has %d bytes; at most %d are taken", size, maxArgumentBytes)
	}
	a := &arguments{values: map[string]jsontext.Value{}}
	var given []string
	for key, val := range obj.All() {
		given = append(given, string(key))
		a.values[string(key)] = slices.Clone(jsontext.Value(val))
	}
	if line, ok := protocol.Value(a.values[wordsName]).Str(); ok {
		a.line = line
		given = f.spread(a, given)
	}
	for _, name := range f.inputs.names {
		if _, there := a.values[name]; !there {
			d := f.inputs.Properties[name].Default
			if d == nil {
				continue
			}
			a.values[name] = jsontext.Value(d)
		}
		a.names = append(a.names, name)
	}
	for _, name := range given {
		if !slices.Contains(f.inputs.names, name) {
			a.names = append(a.names, name)
		}
	}
	a.encode()
	if wrong := f.inputs.Check(a.raw, "/arguments"); len(wrong) > 0 {
		return nil, protocol.Violation(wrong...)
	}
	return a, nil
}

// spread assigns the line of words to the inputs that it is meant for, and returns the names of the
// given arguments after that.
func (f *front) spread(a *arguments, given []string) []string {
	if f.inputs.loose {
		words := splitWords(a.line)
		for i, name := range f.positional {
			if _, there := a.values[name]; !there && i < len(words) {
				a.values[name] = protocol.AppendString(nil, words[i])
			}
		}
		return given
	}
	if slices.Contains(f.inputs.names, wordsName) {
		return given
	}
	var target string
	for _, name := range f.inputs.names {
		if _, there := a.values[name]; there || f.inputs.Properties[name].Type != "string" {
			continue
		}
		if target == "" || slices.Contains(f.inputs.Required, name) && !slices.Contains(f.inputs.Required, target) {
			target = name
		}
	}
	if target == "" {
		return given
	}
	a.values[target] = a.values[wordsName]
	delete(a.values, wordsName)
	return slices.DeleteFunc(given, func(name string) bool { return name == wordsName })
}

// encode sets raw to the JSON of the values.
func (a *arguments) encode() {
	a.raw = jsontext.Value{'{'}
	for i, name := range a.names {
		if i > 0 {
			a.raw = append(a.raw, ',')
		}
		a.raw = append(protocol.AppendString(a.raw, name), ':')
		a.raw = append(a.raw, a.values[name]...)
	}
	a.raw = append(a.raw, '}')
}

// text returns the value of an argument for use in a text: a string without its quotes, null as "",
// other values as JSON.
func (a *arguments) text(name string) string {
	val := a.values[name]
	if text, ok := protocol.Value(val).Str(); ok {
		return text
	}
	if val.Kind() == 'n' {
		return ""
	}
	return string(val)
}

// all returns the arguments as a line of words.
func (a *arguments) all() string {
	switch {
	case a.line != "":
		return a.line
	case len(a.names) == 0:
		return ""
	case len(a.names) == 1:
		return a.text(a.names[0])
	}
	return string(a.raw)
}

// words returns the words of the line or, without a line, the values in their order.
func (a *arguments) words() []string {
	if a.line != "" {
		return splitWords(a.line)
	}
	words := make([]string, len(a.names))
	for i, name := range a.names {
		words[i] = a.text(name)
	}
	return words
}

// splitWords splits a line at white space; text in quotes stays together.
func splitWords(line string) (words []string) {
	var word strings.Builder
	var quoted rune
	inWord := false
	for _, r := range line {
		switch {
		case quoted != 0 && r == quoted:
			quoted = 0
		case quoted == 0 && (r == '"' || r == '\''):
			quoted, inWord = r, true
		case quoted == 0 && unicode.IsSpace(r):
			if inWord {
				words = append(words, word.String())
			}
			word.Reset()
			inWord = false
		default:
			word.WriteRune(r)
			inWord = true
		}
	}
	if inWord {
		words = append(words, word.String())
	}
	return words
}

// render puts the arguments into the text of a skill:
//
//	{{name}}  ${name}  {name}   an input; {name} and ${name} only where the skill declares it
//	$ARGUMENTS                  all arguments, as the line of words that was given
//	$ARGUMENTS[N]  $N  $name    its words, $N and $name only where the front matter says that
//	                            it takes such a line (argument-hint, arguments)
//	${CLAUDE_SKILL_DIR}         the skill's folder
//
// An input without a value becomes empty text. Other text stays unchanged. Nothing else is
// inserted, such as environment variables, and inserted text is not searched for placeholders. If the
// text has no placeholder, the arguments are appended. max limits the result, in bytes.
func (s *skill) render(a *arguments, max int) (string, error) {
	r := &renderer{skill: s, args: a, max: max}
	if err := r.body(); err != nil {
		return "", err
	}
	if len(a.names) > 0 && !r.shown {
		shown := string(a.raw)
		if a.line != "" && len(a.names) == 1 {
			shown = a.line
		}
		if err := r.put("\n\nARGUMENTS: " + shown); err != nil {
			return "", err
		}
	}
	return r.out.String(), nil
}

type renderer struct {
	*skill
	args  *arguments
	max   int
	out   strings.Builder
	shown bool     // the text has a placeholder
	words []string // of the line, if split is true
	split bool     // words is set
}

// put appends a text, or returns an error if the result would be longer than max.
func (r *renderer) put(text string) error {
	if r.out.Len()+len(text) > r.max {
		return protocol.Errorf(protocol.CodeSkillError, "the instructions of skill %q would have more than %d bytes "+
			"with these arguments in them; give shorter ones", r.name, r.max)
	}
	r.out.WriteString(text)
	return nil
}

func (r *renderer) body() error {
	rest := r.skill.body
	for {
		at := strings.IndexAny(rest, "{$")
		if at < 0 {
			return r.put(rest)
		}
		if err := r.put(rest[:at]); err != nil {
			return err
		}
		rest = rest[at:]
		value, size := r.placeholder(rest)
		if size == 0 {
			value, size = rest[:1], 1
		}
		if err := r.put(value); err != nil {
			return err
		}
		rest = rest[size:]
	}
}

// placeholder reads a placeholder at the beginning of a text. It returns its value and its length in
// bytes; 0 = there is none.
func (r *renderer) placeholder(text string) (value string, size int) {
	switch {
	case strings.HasPrefix(text, "{{"):
		return r.between(text, "{{", "}}", r.given)
	case strings.HasPrefix(text, folderMark):
		return r.dir, len(folderMark)
	case strings.HasPrefix(text, "${"):
		return r.between(text, "${", "}", r.dollar)
	case strings.HasPrefix(text, "{"):
		return r.between(text, "{", "}", r.declared)
	case strings.HasPrefix(text, "$ARGUMENTS"):
		return r.all(text)
	}
	return r.word(text)
}

// folderMark is the placeholder for the skill's folder.
const folderMark = "${CLAUDE_SKILL_DIR}"

// maxPlaceholder is the longest name in a placeholder with its end mark, in bytes.
const maxPlaceholder = 128

// between reads a name between two marks.
func (r *renderer) between(text, open, end string, value func(name string) (string, bool)) (string, int) {
	inner := text[len(open):min(len(text), len(open)+maxPlaceholder)]
	at := strings.Index(inner, end)
	if at < 0 {
		return "", 0
	}
	name := inner[:at]
	if end == "}}" {
		name = strings.TrimSpace(name)
		for _, prefix := range []string{"inputs.", "arguments.", "args."} {
			name = strings.TrimPrefix(name, prefix)
		}
	}
	v, ok := value(name)
	if !ok {
		return "", 0
	}
	r.shown = true
	return v, len(open) + at + len(end)
}

// declared returns the value of an input by its name. The bool reports whether the skill declares it.
func (r *renderer) declared(name string) (string, bool) {
	if !slices.Contains(r.inputs.names, name) {
		return "", false
	}
	if r.inputs.loose && name == wordsName {
		return r.args.all(), true
	}
	return r.args.text(name), true
}

// given returns the value of an argument of the call, or of a declared input.
func (r *renderer) given(name string) (string, bool) {
	if _, there := r.args.values[name]; there {
		return r.args.text(name), true
	}
	return r.declared(name)
}

// dollar returns the value of ${name}.
func (r *renderer) dollar(name string) (string, bool) {
	if name == "ARGUMENTS" {
		return r.args.all(), true
	}
	return r.declared(name)
}

// all reads $ARGUMENTS and $ARGUMENTS[N].
func (r *renderer) all(text string) (string, int) {
	size := len("$ARGUMENTS")
	after := text[size:]
	if end := strings.IndexByte(after[:min(len(after), 8)], ']'); end > 0 && after[0] == '[' {
		if i, err := strconv.Atoi(after[1:end]); err == nil && i >= 0 {
			return r.nth(i), size + end + 1
		}
	}
	if after != "" && inName(after[0]) {
		return "", 0
	}
	r.shown = true
	return r.args.all(), size
}

// word reads $N and $name.
func (r *renderer) word(text string) (string, int) {
	end := 1
	for end < len(text) && inName(text[end]) {
		end++
	}
	name := text[1:end]
	if !r.wordy || name == "" {
		return "", 0
	}
	if i, err := strconv.Atoi(name); err == nil && len(name) <= 2 {
		return r.nth(i), end
	}
	if !slices.Contains(r.positional, name) {
		return "", 0
	}
	r.shown = true
	return r.args.text(name), end
}

// nth returns word i of the line, from 0, or "" if the line has fewer words.
func (r *renderer) nth(i int) string {
	if r.shown = true; !r.split {
		r.words, r.split = r.args.words(), true
	}
	if i < len(r.words) {
		return r.words[i]
	}
	return ""
}

func inName(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_'
}
