// Package schema contains everything about JSON Schema:
//
//	schema.go     Compile, Check; the names of tools that models' APIs accept
//	expand.go     references, dialects, and the limits
//	parameters.go conversion to and from the parameters of a tool; suggestions for misspelled names
//	fit.go        the schemas that models' APIs accept
//	normalise.go  the schemas that MCP clients accept, with keywords.go, applicators.go and regexp.go
//
// A schema often comes from a peer. It is compiled only if the cost of checking is limited: references
// are replaced by what they refer to, and the resulting schemas and the steps of the patterns are
// counted.
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

// Limits of one check.
const (
	maxMisfits = 20    // misfits that one check reports
	maxName    = 128   // bytes of a name in a path
	maxMessage = 300   // bytes
	maxChoices = 2000  // bytes of a message about choices
	maxMatch   = 100e6 // steps of all patterns times bytes of the value; this takes seconds and cannot be cancelled
)

// Schema is a JSON Schema against which values can be checked. It does not change.
type Schema struct {
	*jsonschema.Schema // with references replaced by what they refer to
	resolved           *jsonschema.Resolved
	steps              int // of all its patterns
}

// Compile compiles a JSON Schema of the dialects draft-04 to 2020-12, given as JSON or as a decoded
// value. The error says why no value can be checked against it: it is not a schema, names an unknown
// dialect or type, refers to itself or to something outside, or has more than maxNodes schemas after
// references are replaced.
func Compile(schema any, maxNodes int) (s *Schema, err error) {
	defer func() {
		if r := recover(); r != nil { // a panic of the library on unexpected input
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
		root["$schema"] = name7 // as written here, the other dialects are a part of draft-07
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

// head reads the keywords of the root that apply to the whole schema, and removes the root's id. Ids
// deeper inside would change the meaning of references.
func (e *expander) head(root map[string]any) error {
	name, _ := root["$schema"].(string)
	if e.dialect = dialectOf(name); e.dialect == unknown {
		return fmt.Errorf("names the dialect %.80q in $schema, which is not known; %s is", name, name2020)
	}
	delete(root, idWord(e.dialect))
	return nil
}

// CheckDefaults returns an error if a default does not fit its schema.
func (s *Schema) CheckDefaults() error {
	_, err := s.CloneSchemas().Resolve(&jsonschema.ResolveOptions{ValidateDefaults: true})
	return err
}

// MaxBytes returns the maximum length of a value that can be checked against the patterns of the
// schema, in bytes.
func (s *Schema) MaxBytes() int {
	if s.steps == 0 {
		return math.MaxInt
	}
	return maxMatch / s.steps
}

// Check returns what does not fit in a value, or nil if all fits. path is the place of the value.
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

// misfits returns what does not fit in a value, as deep inside as possible, or nil if all fits.
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

// memberMisfits checks the members of an object.
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

// itemMisfits checks the items of a list. It resolves their schema only once, because a list may have
// very many items.
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

// nearestMisfits checks choices of which none fits. It takes the choice with the fewest misfits, but
// not one whose fixed values, such as a type, differ. The misfits of that choice come first, then
// those of the other choices. For oneOf, more than one choice may fit; these are named.
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

// choiceName returns the number of a choice, from 1, and its title.
func choiceName(i int, choice *jsonschema.Schema) string {
	if choice.Title == "" {
		return strconv.Itoa(i + 1)
	}
	return fmt.Sprintf("%d (%s)", i+1, protocol.Clip(choice.Title, maxName))
}

// firstOf returns the first misfit as a text, with its place relative to path.
func firstOf(found []protocol.FieldError, path string) string {
	return strings.TrimSpace(strings.TrimPrefix(found[0].Path, path) + " " + protocol.Clip(found[0].Message, maxName))
}

// holds returns why a value does not fit a part of a schema, or nil.
func holds(s *jsonschema.Schema, value any) error {
	resolved, err := s.CloneSchemas().Resolve(nil)
	if err != nil {
		return nil
	}
	return resolved.Validate(value)
}

// reason returns the innermost error that an error of the library wraps. A value of a wrong type is
// not shown, because it may be long or secret.
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

// Below returns the JSON Pointer of the member name of the value at path.
func Below(path, name string) string {
	return string(jsontext.Pointer(path).AppendToken(protocol.Clip(name, maxName)))
}

// LongestName is the maximum length of a tool's name in models' APIs.
const LongestName = 64

// Names maps tools to names that models' APIs accept, and back: letters, digits, _ and -, at most
// LongestName characters, each name once. A tool keeps its name if the APIs accept it.
type Names struct{ there, here map[string]string }

// NewNames makes the names for some tools.
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

// FittingName replaces the characters of a name that some API does not accept, and truncates the name.
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

// There returns the API's name for a tool. For a tool that is not in Names, it returns FittingName.
func (n Names) There(tool string) string {
	if name, ok := n.there[tool]; ok {
		return name
	}
	return FittingName(tool)
}

// Here returns the tool for a name of the API, or the name itself if there is none.
func (n Names) Here(name string) string {
	if tool, ok := n.here[name]; ok {
		return tool
	}
	return name
}
