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

// arguments are those of one call, checked, with the defaults filled in.
type arguments struct {
	raw    jsontext.Value // an object
	names  []string       // in the order of the inputs, others after them as they came
	values map[string]jsontext.Value
	line   string // the line of words, as given
}

// prepare checks the arguments of a call. The error is a schema_violation.
//
// Hosts that call skills with a line of words send it as "args". Where a skill has inputs
// and none of that name, the line fills them: the words one by one those of `arguments`,
// else the whole line the first required text that is not given, or the first text.
func (f *front) prepare(obj protocol.Object) (*arguments, error) {
	if size := len(obj.Raw()); size > maxArgumentBytes {
		return nil, protocol.Violation(protocol.FieldError{Path: "/arguments", Message: "has " + strconv.Itoa(size) + " bytes; at most " + strconv.Itoa(maxArgumentBytes) + " are taken"})
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
			d, ok := f.inputs.defaults[name]
			if !ok {
				continue
			}
			a.values[name] = d
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

// spread gives the line of words to the inputs that it is meant for, and the names of the
// arguments there are then.
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
		if _, there := a.values[name]; there || !f.inputs.texts[name] {
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

// encode makes raw of the values.
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

// text gives the value of an argument as it stands in a text: a string without its quotes,
// anything else as JSON.
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

// all gives the arguments as a line of words.
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

// words gives the line of words apart; without a line, the values in their order.
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

// splitWords takes a line apart at white space; what stands in quotes stays together.
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
