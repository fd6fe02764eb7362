// Package schema is JSON Schema in one place:
//
//	schema.go     Compile one, Check values against it; the names of tools that models' APIs take
//	expand.go     references, dialects, and the bounds
//	parameters.go from and to the parameters of a tool; the name that was meant
//	fit.go        what models' APIs take of a schema
//	normalise.go  what MCP's clients take of one, with keywords.go, applicators.go and regexp.go
//
// A schema often comes from a peer. It is made ready only if checking by it has an end: what its
// references stand for is put in their place and counted, and so are the steps of its patterns.
package schema

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/jsonschema-go/jsonschema"

	"a2e/protocol"
)

// Bounds of one check.
const (
	maxMisfits = 20    // that one check lists
	maxName    = 128   // bytes of a name in a path
	maxMessage = 300   // bytes
	maxChoices = 2000  // bytes of a message about choices
	maxMatch   = 100e6 // steps of all patterns times bytes of what is checked: seconds that nothing can stop
)

// Schema is a JSON Schema that values can be held against. It does not change.
type Schema struct {
	*jsonschema.Schema // with what references stand for in their place
	resolved           *jsonschema.Resolved
	steps              int // of all its patterns
}

// Compile makes a JSON Schema ready, given as JSON or as a decoded value, of the dialects draft-04 to
// 2020-12. The error says why no value can be held against it: it is no schema, names another
// dialect or a type that there is not, refers to itself or to something outside of it, or comes to
// more than maxNodes schemas with what references stand for.
func Compile(schema any, maxNodes int) (s *Schema, err error) {
	defer func() {
		if r := recover(); r != nil { // the library's, on what it does not expect
			err = fmt.Errorf("cannot be used: %v", r)
		}
	}()
	raw, err := json.Marshal(schema)
	if err != nil {
		return nil, fmt.Errorf("is not JSON: %w", err)
	}
	e := expander{left: maxNodes}
	if err := json.Unmarshal(raw, &e.root); err != nil {
		return nil, fmt.Errorf("is not JSON: %w", err)
	}
	if root, ok := e.root.(map[string]any); ok {
		if err := e.head(root); err != nil {
			return nil, err
		}
	}
	flat := e.schema(e.root)
	if e.err != nil {
		return nil, e.err
	}
	if root, ok := flat.(map[string]any); ok && e.dialect.tuples() {
		root["$schema"] = name7 // of which the others are a part, as they are written here
	}
	if raw, err = json.Marshal(flat); err != nil {
		return nil, err
	}
	s = &Schema{Schema: new(jsonschema.Schema), steps: e.steps}
	if err := s.UnmarshalJSON(raw); err != nil {
		return nil, fmt.Errorf("is not a JSON Schema: %w", err)
	}
	if s.resolved, err = s.Resolve(nil); err != nil {
		return nil, fmt.Errorf("is not a JSON Schema that can be used: %w", err)
	}
	return s, nil
}

// head reads what the root says of the whole schema, and takes out its name: deeper ones would
// change what references mean.
func (e *expander) head(root map[string]any) error {
	name, _ := root["$schema"].(string)
	if e.dialect = dialectOf(name); e.dialect == unknown {
		return fmt.Errorf("names the dialect %.80q in $schema, which is not known; %s is", name, name2020)
	}
	delete(root, idWord(e.dialect))
	return nil
}

// CheckDefaults says which default does not fit the schema that it stands in.
func (s *Schema) CheckDefaults() error {
	_, err := s.CloneSchemas().Resolve(&jsonschema.ResolveOptions{ValidateDefaults: true})
	return err
}

// MaxBytes returns how long a value may be to be held against the patterns of the schema.
func (s *Schema) MaxBytes() int {
	if s.steps == 0 {
		return math.MaxInt
	}
	return maxMatch / s.steps
}

// Check returns what in a value, which path names, does not fit; nil = it fits.
func (s *Schema) Check(raw []byte, path string) []protocol.FieldError {
	if len(raw) > s.MaxBytes() {
		return one(path, fmt.Sprintf("has %d bytes, too many to check against the patterns of the schema; at most "+
			"%d are allowed", len(raw), s.MaxBytes()))
	}
	var value any
	if err := json.Unmarshal(raw, &value); err != nil {
		return one(path, err.Error())
	}
	if s.resolved.Validate(value) == nil {
		return nil
	}
	all := misfits(s.Schema, value, path)
	return all[:min(len(all), maxMisfits)]
}

func one(path, message string) []protocol.FieldError {
	return []protocol.FieldError{{Path: path, Message: message}}
}

// misfits finds what in a value does not fit a schema, as deep inside as can be told; nil = it
// fits.
func misfits(s *jsonschema.Schema, value any, path string) (all []protocol.FieldError) {
	err := holds(s, value)
	if err == nil {
		return nil
	}
	switch value := value.(type) {
	case map[string]any:
		all = memberMisfits(s, value, path)
	case []any:
		all = itemMisfits(s, value, path)
	}
	for _, part := range s.AllOf {
		all = append(all, misfits(part, value, path)...)
	}
	all = append(all, nearestMisfits("anyOf", s.AnyOf, value, path)...)
	all = append(all, nearestMisfits("oneOf", s.OneOf, value, path)...)
	if s.If != nil {
		then := s.Else
		if holds(s.If, value) == nil {
			then = s.Then
		}
		if then != nil {
			all = append(all, misfits(then, value, path)...)
		}
	}
	if s.Enum != nil && holds(&jsonschema.Schema{Enum: s.Enum}, value) != nil {
		all = append(all, one(path, "should be one of "+listed(s.Enum))...)
	}
	if s.Const != nil && holds(&jsonschema.Schema{Const: s.Const}, value) != nil {
		all = append(all, one(path, "should be "+listed([]any{*s.Const}))...)
	}
	if len(all) == 0 {
		return one(path, reason(err))
	}
	return all
}

// listed returns values as JSON, with commas between them.
func listed(values []any) string {
	texts := make([]string, len(values))
	for i, value := range values {
		raw, err := json.Marshal(value, json.Deterministic(true))
		if err != nil {
			raw = []byte("?")
		}
		texts[i] = string(raw)
	}
	return protocol.Clip(strings.Join(texts, ", "), maxMessage)
}

// memberMisfits looks at the members of an object.
func memberMisfits(s *jsonschema.Schema, members map[string]any, path string) (all []protocol.FieldError) {
	for _, name := range s.Required {
		if _, there := members[name]; !there {
			all = append(all, one(Below(path, name), "is missing")...)
		}
	}
	known, others := slices.Sorted(maps.Keys(s.Properties)), s.AdditionalProperties
	if len(s.PatternProperties) > 0 {
		others = nil
	}
	for _, name := range slices.Sorted(maps.Keys(members)) {
		part := s.Properties[name]
		switch {
		case len(all) >= maxMisfits:
			return all
		case part != nil:
			all = append(all, misfits(part, members[name], Below(path, name))...)
		case others != nil && others.Not == nil:
			all = append(all, misfits(others, members[name], Below(path, name))...)
		case others != nil:
			all = append(all, one(Below(path, name), "is not known; "+nameHint(name, known))...)
		}
	}
	return all
}

func nameHint(name string, known []string) string {
	if hint := DidYouMean(name, known); hint != "" {
		return hint
	}
	if len(known) == 0 {
		return "there are none"
	}
	return protocol.Clip("there are: "+strings.Join(known, ", "), maxMessage)
}

// itemMisfits looks at the items of a list. Their schema is made ready once: a list may have
// very many that fit.
func itemMisfits(s *jsonschema.Schema, items []any, path string) (all []protocol.FieldError) {
	first := min(len(s.PrefixItems), len(items))
	for i, item := range items[:first] {
		all = append(all, misfits(s.PrefixItems[i], item, path+"/"+strconv.Itoa(i))...)
	}
	if s.Items == nil {
		return all
	}
	ready, err := s.Items.CloneSchemas().Resolve(nil)
	for i, item := range items[first:] {
		if err != nil || len(all) >= maxMisfits {
			break
		}
		if ready.Validate(item) != nil {
			all = append(all, misfits(s.Items, item, path+"/"+strconv.Itoa(first+i))...)
		}
	}
	return all
}

// nearestMisfits looks at choices of which none fits. The one meant is that with the least to say against it,
// and none whose fixed values, such as a type, are others: what is wrong by it comes first, then what is wrong by
// each of the choices. Of oneOf more than one may fit, and these are named.
func nearestMisfits(
	keyword string, choices []*jsonschema.Schema, value any, path string,
) (least []protocol.FieldError) {
	weight := math.MaxInt
	var against, fitting []string
	for i, choice := range choices {
		found := misfits(choice, value, path)
		if len(found) == 0 {
			fitting = append(fitting, choiceName(i, choice))
			continue
		}
		against = append(against, choiceName(i, choice)+": "+firstOf(found, path))
		n := len(found)
		members, _ := value.(map[string]any)
		for name, part := range choice.Properties {
			if given, there := members[name]; there && (part.Const != nil || part.Enum != nil) &&
				holds(part, given) != nil {
				n += 1000
			}
		}
		if n < weight {
			least, weight = found, n
		}
	}
	switch {
	case len(fitting) > 1 && keyword == "oneOf":
		return one(path, protocol.Clip("fits more than one choice of oneOf: "+strings.Join(fitting, ", "), maxMessage))
	case len(fitting) > 0:
		return nil
	case len(against) < 2:
		return least
	}
	told := fmt.Sprintf("fits none of the %d choices of %s: %s", len(choices), keyword, strings.Join(against, "; "))
	return append(slices.Clone(least[:min(len(least), maxMisfits-1)]), one(path, protocol.Clip(told, maxChoices))...)
}

// choiceName names a choice by its place, from 1, and its title.
func choiceName(i int, choice *jsonschema.Schema) string {
	if choice.Title == "" {
		return strconv.Itoa(i + 1)
	}
	return fmt.Sprintf("%d (%s)", i+1, protocol.Clip(choice.Title, maxName))
}

// firstOf says the first of misfits, with its place below path.
func firstOf(found []protocol.FieldError, path string) string {
	return strings.TrimSpace(strings.TrimPrefix(found[0].Path, path) + " " + protocol.Clip(found[0].Message, maxName))
}

// holds says why a value does not fit a part of a schema.
func holds(s *jsonschema.Schema, value any) error {
	resolved, err := s.CloneSchemas().Resolve(nil)
	if err != nil {
		return nil
	}
	return resolved.Validate(value)
}

// reason is the last of the causes that an error of the library wraps. A value of a wrong type
// is not shown: it may be long, or secret.
func reason(err error) string {
	for inner := err; inner != nil; inner = errors.Unwrap(inner) {
		err = inner
	}
	text := err.Error()
	wrongType := regexp.MustCompile(`(?s)^type: .* has type "([^"]*)", want (?:one of )?"([^"]*)"$`)
	if types := wrongType.FindStringSubmatch(text); types != nil {
		text = fmt.Sprintf("should be of type %s, is of type %s", types[2], types[1])
	}
	return protocol.Clip(text, maxMessage)
}

// Below returns the JSON Pointer of a member of what path names.
func Below(path, name string) string {
	return string(jsontext.Pointer(path).AppendToken(protocol.Clip(name, maxName)))
}

// LongestName is the length of the longest name of a tool that models' APIs take.
const LongestName = 64

// Names are names of tools that models' APIs take, and the way back: letters, digits, _ and -, at
// most LongestName of them, each name once. A tool whose name is one of these keeps it.
type Names struct{ there, here map[string]string }

// NewNames returns the names of some tools.
func NewNames(tools []string) Names {
	n := Names{make(map[string]string, len(tools)), make(map[string]string, len(tools))}
	for _, tool := range tools {
		if tool != "" && FittingName(tool) == tool {
			n.there[tool], n.here[tool] = tool, tool
		}
	}
	for _, tool := range tools {
		if _, named := n.there[tool]; named {
			continue
		}
		name := FittingName(tool)
		for i := 2; ; i++ {
			if _, taken := n.here[name]; name != "" && !taken {
				break
			}
			name = fmt.Sprintf("%.*s_%d", LongestName-len("_9999"), FittingName(tool), i)
		}
		n.there[tool], n.here[name] = name, tool
	}
	return n
}

// FittingName returns a name with what no API takes replaced, and its end cut off.
func FittingName(name string) string {
	name = strings.Map(func(r rune) rune {
		if isNameRune(r) {
			return r
		}
		return '_'
	}, name)
	return name[:min(len(name), LongestName)]
}

func isNameRune(r rune) bool {
	return r == '_' || r == '-' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
}

// There returns the name that a tool has there; one that is none of them has what fits.
func (n Names) There(tool string) string {
	if name, ok := n.there[tool]; ok {
		return name
	}
	return FittingName(tool)
}

// Here returns the tool that a name there stands for, or the name itself.
func (n Names) Here(name string) string {
	if tool, ok := n.here[name]; ok {
		return tool
	}
	return name
}
