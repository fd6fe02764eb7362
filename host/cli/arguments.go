package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/schema"
	"a2e/protocol"
	"a2e/protocol/client"
)

// typesOf returns the JSON types that each argument may have; none = any.
type typesOf map[string][]string

// arguments is what a command line gives: an object, or words such as key=value.
type arguments struct {
	whole protocol.Object
	keys  []string
	texts []string
	json  []bool // key:=JSON
}

// readArguments reads what is given as one object by a flag, or as words.
func readArguments(sys *System, flag, object string, words []string) (a arguments, err error) {
	if object != "" && len(words) > 0 {
		return a, fmt.Errorf("give them as key=value or with %s, not both", flag)
	}
	if object != "" {
		text, err := readArgs(object, sys.In)
		if err != nil {
			return a, err
		}
		if a.whole, err = protocol.ParseObject(text); err != nil {
			return a, fmt.Errorf("%s: %w", flag, err)
		}
		return a, nil
	}
	for _, word := range words {
		key, text, ok := strings.Cut(word, "=")
		key, isJSON := strings.CutSuffix(key, ":")
		switch {
		case !ok || key == "":
			return a, fmt.Errorf("argument %q: write key=value", word)
		case slices.Contains(a.keys, key):
			return a, fmt.Errorf("argument %q: %s is given twice", word, key)
		case isJSON && !jsontext.Value(text).IsValid():
			return a, fmt.Errorf("argument %q: what follows := must be JSON", word)
		}
		a.keys, a.texts, a.json = append(a.keys, key), append(a.texts, text), append(a.json, isJSON)
	}
	return a, nil
}

// object makes the object. types is asked only where it matters; nil = any type is fine.
func (a arguments) object(types func() (typesOf, error)) (protocol.Object, error) {
	if len(a.keys) == 0 {
		return a.whole, nil
	}
	var known typesOf
	if types != nil {
		var err error
		if known, err = types(); err != nil {
			return protocol.Object{}, err
		}
	}
	raw := []byte{'{'}
	for i, key := range a.keys {
		if i > 0 {
			raw = append(raw, ',')
		}
		raw = append(protocol.AppendString(raw, key), ':')
		if text := a.texts[i]; a.json[i] || wantsJSON(text, known[key]) {
			raw = append(raw, text...)
		} else {
			raw = protocol.AppendString(raw, text)
		}
	}
	return protocol.ParseObject(append(raw, '}'))
}

// wantsJSON reports whether a word is meant as JSON: what may be text is, unless it is JSON of
// another type that is possible too. What fits no type the host refuses.
func wantsJSON(text string, types []string) bool {
	val := jsontext.Value(text)
	switch {
	case !val.IsValid():
		return false
	case len(types) == 0 || !slices.Contains(types, "string"):
		return true
	}
	names := map[jsontext.Kind]string{'n': "null", 't': "boolean", 'f': "boolean", '0': "number", '{': "object", '[': "array"}
	name := names[val.Kind()]
	return slices.Contains(types, name) || name == "number" && slices.Contains(types, "integer")
}

// toolTypes returns the types of a tool's parameters.
func toolTypes(ctx context.Context, c *client.Client, name string) (typesOf, error) {
	var resp protocol.ToolListResponse
	if err := c.Call(ctx, protocol.TypeToolListReq, &protocol.ToolListRequest{IncludeDeferred: true}, &resp); err != nil {
		return nil, err
	}
	types := typesOf{}
	for _, t := range resp.Tools {
		for _, p := range t.InputParameters {
			if t.Name == name && p.Type != "any" && p.Type != "" {
				types[p.Name] = []string{p.Type}
			}
		}
	}
	return types, nil
}

// skillTypes returns the types of a skill's arguments.
func skillTypes(ctx context.Context, c *client.Client, name string) (typesOf, error) {
	var resp protocol.SkillDiscoverResponse
	if err := c.Call(ctx, protocol.TypeSkillDiscoverReq, &protocol.SkillDiscoverRequest{}, &resp); err != nil {
		return nil, err
	}
	types := typesOf{}
	for _, s := range resp.Skills {
		properties, _ := s.InputSchema["properties"].(map[string]any)
		for key, property := range properties {
			if s.Name == name {
				types[key] = schema.Types(property)
			}
		}
	}
	return types, nil
}

func readArgs(word string, stdin io.Reader) ([]byte, error) {
	if word == "-" {
		return io.ReadAll(stdin)
	}
	if file, ok := strings.CutPrefix(word, "@"); ok {
		return os.ReadFile(file)
	}
	return []byte(word), nil
}
