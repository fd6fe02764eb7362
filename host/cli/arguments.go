package cli

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/schema"
	"a2e/protocol"
)

// parameter describes an argument that a tool or skill takes.
type parameter struct {
	protocol.ToolParameter
	types []string // JSON types that it may have; empty = any
	items []string // JSON types of the items of an array
}

// word is one key=value or key:=JSON of a command line.
type word struct {
	key, text string
	json      bool
}

// arguments holds the arguments of a command line: one object, or words.
type arguments struct {
	whole protocol.Object
	words []word
	given bool // the arguments were passed as one object
}

// readArguments reads the arguments, which are either one object in a flag, or words.
func readArguments(sys *System, flag, object string, words []string) (a arguments, err error) {
	if object != "" && len(words) > 0 {
		return a, fmt.Errorf("give them as key=value or with %s, not both", flag)
	}
	if a.given = object != ""; a.given {
		text, err := readArgs(object, sys.In)
		if err != nil {
			return a, err
		}
		if a.whole, err = protocol.ParseObject(text); err != nil {
			return a, fmt.Errorf("%s: %w", flag, err)
		}
		return a, nil
	}
	for _, one := range words {
		key, text, ok := strings.Cut(one, "=")
		key, isJSON := strings.CutSuffix(key, ":")
		switch {
		case !ok || key == "":
			return a, fmt.Errorf("argument %q: write key=value", one)
		case isJSON && !jsontext.Value(text).IsValid():
			return a, fmt.Errorf("argument %q: what follows := must be JSON", one)
		}
		a.words = append(a.words, word{key, text, isJSON})
	}
	return a, nil
}

// object builds the object for the tool, skill or request with the name called. params are its
// parameters, or nil if they are unknown. The error says how to write the arguments.
func (a arguments) object(called string, params []parameter) (protocol.Object, error) {
	if a.given {
		return a.whole, nil
	}
	if err := a.lacks(called, params); err != nil {
		return protocol.Object{}, fail(exitUsage, err)
	}
	raw := []byte{'{'}
	for i, w := range a.words {
		same := slices.DeleteFunc(slices.Clone(a.words), func(o word) bool { return o.key != w.key })
		if slices.ContainsFunc(a.words[:i], func(o word) bool { return o.key == w.key }) {
			continue
		}
		p := parameterOf(params, w.key)
		val, err := p.value(same)
		if err != nil {
			return protocol.Object{}, fail(exitUsage, err)
		}
		if len(raw) > 1 {
			raw = append(raw, ',')
		}
		raw = append(append(protocol.AppendString(raw, w.key), ':'), val...)
	}
	return protocol.ParseObject(append(raw, '}'))
}

// parameterOf returns the parameter with a name. An unknown parameter takes any type.
func parameterOf(params []parameter, name string) (p parameter) {
	for _, p := range params {
		if p.Name == name {
			return p
		}
	}
	return p
}

// lacks returns an error if a required parameter is missing. The error also names the words that
// match no parameter, as one of them may be a typing error.
func (a arguments) lacks(called string, params []parameter) error {
	var names []string
	var missing strings.Builder
	for _, p := range params {
		names = append(names, p.Name)
		if p.Required && !slices.ContainsFunc(a.words, func(w word) bool { return w.key == p.Name }) {
			line := fmt.Sprintf("%s=%s  %s", p.Name, strings.ToUpper(cmp.Or(strings.Join(p.types, "|"), "any")),
				oneLine(p.Description))
			missing.WriteString("\n  " + strings.TrimRight(line, " "))
		}
	}
	if missing.Len() == 0 {
		return nil
	}
	wrong := ""
	for _, w := range a.words {
		if !slices.Contains(names, w.key) {
			wrong += strings.TrimRight(fmt.Sprintf("there is no argument %q; %s", w.key,
				schema.DidYouMean(w.key, names)), "; ") + "\n"
		}
	}
	needs := "needs"
	if len(a.words) > 0 {
		needs = "also needs"
	}
	return fmt.Errorf("%s%s %s:%s", wrong, called, needs, missing.String())
}

// value returns the JSON value of all words of one key. Several words become an array, if the parameter takes one.
func (p parameter) value(words []word) ([]byte, error) {
	first := words[0]
	if len(words) > 1 {
		if !slices.Contains(p.types, "array") {
			return nil, fmt.Errorf("argument %q: %s is given twice", words[1].key+"="+words[1].text, first.key)
		}
		raw := []byte{'['}
		for i, w := range words {
			if i > 0 {
				raw = append(raw, ',')
			}
			if w.json || len(p.items) > 0 && wantsJSON(w.text, p.items) {
				raw = append(raw, w.text...)
			} else {
				raw = protocol.AppendString(raw, w.text)
			}
		}
		return append(raw, ']'), nil
	}
	switch text := first.text; {
	case first.json:
		return []byte(text), nil
	case wantsJSON(text, p.types) && (len(p.types) == 0 || fits(text, p.types)):
		return []byte(text), nil
	case len(p.types) == 0 || slices.Contains(p.types, "string"):
		return protocol.AppendString(nil, text), nil
	}
	return nil, p.misfit(first)
}

// misfit returns the error that says how to write a word.
func (p parameter) misfit(w word) error {
	text := cut(oneLine(w.text), usualColumns/2)
	switch {
	case slices.Contains(p.types, "array"):
		parts := strings.Fields(w.text)
		list, _ := json.Marshal(parts) // texts never fail
		return fmt.Errorf("%s takes a list, and %q is one text; write %s='%s', or %s=%s", w.key, text, w.key, list,
			w.key, strings.Join(parts, " "+w.key+"="))
	case slices.Contains(p.types, "object"):
		return fmt.Errorf(`%s takes an object, and %q is not one; write %s='{"name":"value"}'`, w.key, text, w.key)
	case slices.Contains(p.types, "boolean"):
		return fmt.Errorf("%s takes true or false, and %q is neither", w.key, text)
	case slices.Contains(p.types, "integer"):
		return fmt.Errorf("%s takes a whole number, and %q is not one; write %s=5", w.key, text, w.key)
	}
	return fmt.Errorf("%s takes a %s, and %q is not one", w.key, strings.Join(p.types, " or "), text)
}

// wantsJSON reports whether a word is meant as JSON. For a parameter that takes text this is so
// only if the word is JSON of another possible type.
func wantsJSON(text string, types []string) bool {
	return jsontext.Value(text).IsValid() && (!slices.Contains(types, "string") || jsontext.Value(text).Kind() != '"' &&
		fits(text, types))
}

// fits reports whether a JSON text has one of the types. The host checks the bounds of numbers.
func fits(text string, types []string) bool {
	names := map[jsontext.Kind]string{
		'n': "null", 't': "boolean", 'f': "boolean", '0': "number", '{': "object",
		'[': "array", '"': "string",
	}
	name := names[jsontext.Value(text).Kind()]
	return slices.Contains(types, name) || name == "number" && slices.Contains(types, "integer")
}

// toolParameters returns the parameters of a tool, or nil if there is no such tool or it has none.
func toolParameters(tools []protocol.ToolDefinition, name string) (params []parameter) {
	for _, t := range tools {
		for _, p := range t.InputParameters {
			one := parameter{ToolParameter: p}
			if p.Type != "any" && p.Type != "" {
				one.types = []string{p.Type}
			}
			if t.Name == name {
				params = append(params, one)
			}
		}
	}
	return params
}

// skillParameters returns the parameters of a skill, or nil if there is no such skill or it has none.
func skillParameters(skills []protocol.SkillDefinition, name string) (params []parameter) {
	for _, s := range skills {
		if s.Name == name {
			params = append(params, parametersOf(s.InputSchema)...)
		}
	}
	return params
}

// parametersOf returns the parameters of an object that is described by a JSON Schema.
func parametersOf(input map[string]any) (params []parameter) {
	properties, _ := input["properties"].(map[string]any)
	for _, p := range schema.Parameters(input) {
		property, _ := properties[p.Name].(map[string]any)
		params = append(params, parameter{p, schema.Types(property), schema.Types(property["items"])})
	}
	return params
}

func readArgs(word string, stdin io.Reader) ([]byte, error) {
	text, err := []byte(word), error(nil)
	if word == "-" {
		text, err = io.ReadAll(stdin)
	} else if file, ok := strings.CutPrefix(word, "@"); ok {
		text, err = os.ReadFile(file)
	}
	return bytes.TrimPrefix(text, []byte("\ufeff")), err
}
