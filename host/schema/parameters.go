package schema

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/protocol"
)

// Limits of the parameters that are made from a peer's schema.
const (
	maxParameters = 200 // of one object
	maxNested     = 4   // objects within objects
)

// typeAny is the type of a parameter that accepts any value; the other types are those of JSON Schema.
const typeAny = "any"

func isType(name string) bool {
	return slices.Contains([]string{"string", "integer", "number", "boolean", "object", "array"}, name)
}

// Object returns the JSON Schema of an object with the given members; closed = no others are allowed.
func Object(members []protocol.ToolParameter, closed bool) jsontext.Value {
	return appendObject(nil, members, closed)
}

func appendObject(dst []byte, members []protocol.ToolParameter, closed bool) []byte {
	dst = append(dst, `{"type":"object","properties":{`...)
	var required []string
	for i, m := range members {
		dst = append(protocol.AppendString(appendComma(dst, i), m.Name), ':')
		dst = appendMember(dst, m, closed)
		if m.Required {
			required = append(required, m.Name)
		}
	}
	dst = append(dst, '}')
	if len(required) > 0 {
		dst = append(dst, `,"required":`...)
		dst = appendList(dst, required, protocol.AppendString[string])
	}
	if closed {
		dst = append(dst, `,"additionalProperties":false`...)
	}
	return append(dst, '}')
}

// appendMember appends the schema of one member.
func appendMember(dst []byte, m protocol.ToolParameter, closed bool) []byte {
	start := len(dst) + 1
	switch {
	case m.Type == "object" && len(m.Properties) > 0:
		dst = appendObject(dst, Members(m.Properties), closed)
		dst = dst[:len(dst)-1] // the description comes after it
	case isType(m.Type):
		dst = append(append(append(dst, `{"type":"`...), m.Type...), '"')
	default:
		dst = append(dst, '{')
	}
	if m.Type == "array" {
		dst = append(dst, `,"items":{}`...) // some model vendors refuse an array without it
	}
	if m.Description != "" {
		dst = protocol.AppendString(append(appendComma(dst, len(dst)-start), `"description":`...), m.Description)
	}
	if len(m.Enum) > 0 {
		dst = append(appendComma(dst, len(dst)-start), `"enum":`...)
		dst = appendList(dst, allowed(m.Type, m.Enum), func(dst []byte,
			v jsontext.Value,
		) []byte {
			return append(dst, v...)
		})
	}
	return append(dst, '}')
}

// appendComma appends a comma if n > 0.
func appendComma(dst []byte, n int) []byte {
	if n == 0 {
		return dst
	}
	return append(dst, ',')
}

func appendList[T any](dst []byte, all []T, one func([]byte, T) []byte) []byte {
	dst = append(dst, '[')
	for i, v := range all {
		dst = one(appendComma(dst, i), v)
	}
	return append(dst, ']')
}

// allowed returns the values that an enum allows: an argument that is not a text is compared with the
// text as JSON.
func allowed(typ string, enum []string) []jsontext.Value {
	var all []jsontext.Value
	for _, text := range enum {
		literal := jsontext.Value(text)
		written := typ != "string" && literal.IsValid() && literal.Kind() != '"'
		if typ == typeAny || !written {
			all = append(all, protocol.AppendString(nil, text))
		}
		if written {
			all = append(all, literal)
		}
	}
	return all
}

// Members returns the properties of an object, each with its key as its name, sorted by name.
func Members(properties map[string]protocol.ToolParameter) []protocol.ToolParameter {
	out := make([]protocol.ToolParameter, 0, len(properties))
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		p := properties[name]
		p.Name = name
		out = append(out, p)
	}
	return out
}

// Parameters returns the members of an object from its JSON Schema, required ones first. Schemas that
// tool/list cannot express get the type any.
func Parameters(schema any) []protocol.ToolParameter { return parameters(schema, 0) }

func parameters(schema any, depth int) []protocol.ToolParameter {
	obj, _ := schema.(map[string]any)
	members, _ := obj["properties"].(map[string]any)
	required := texts(obj["required"])
	out := make([]protocol.ToolParameter, 0, len(members))
	for _, name := range slices.Sorted(maps.Keys(members)) {
		if name == "" || len(out) == maxParameters {
			continue
		}
		p := parameter(members[name], depth)
		p.Name, p.Required = name, slices.Contains(required, name)
		out = append(out, p)
	}
	slices.SortStableFunc(out, func(a, b protocol.ToolParameter) int {
		switch {
		case a.Required == b.Required:
			return 0
		case a.Required:
			return -1
		}
		return 1
	})
	return out
}

func parameter(schema any, depth int) protocol.ToolParameter {
	obj, _ := schema.(map[string]any)
	description, _ := obj["description"].(string)
	title, _ := obj["title"].(string)
	p := protocol.ToolParameter{Type: typeAny, Description: cmp.Or(description, title)}
	types := slices.DeleteFunc(named(obj), func(t string) bool { return t == "null" })
	if len(types) == 1 && isType(types[0]) {
		p.Type = types[0]
	}
	if enum := texts(obj["enum"]); len(enum) > 0 && p.Type == "string" {
		p.Enum = enum
	}
	if p.Type == "object" && depth < maxNested {
		for _, nested := range parameters(obj, depth+1) {
			if p.Properties == nil {
				p.Properties = make(map[string]protocol.ToolParameter)
			}
			p.Properties[nested.Name] = nested
		}
	}
	return p
}

// Types returns the types in a JSON Schema, including those of its alternatives; nil = any.
func Types(schema any) []string {
	obj, _ := schema.(map[string]any)
	types := named(obj)
	for _, key := range []string{"anyOf", "oneOf"} {
		alternatives, _ := obj[key].([]any)
		for _, alternative := range alternatives {
			types = append(types, Types(alternative)...)
		}
	}
	return types
}

// named returns the types in the keyword type.
func named(obj map[string]any) []string {
	if name, ok := obj["type"].(string); ok {
		return []string{name}
	}
	return texts(obj["type"])
}

// texts returns the items of a list of texts, or nil if an item is not a text.
func texts(v any) []string {
	list, _ := v.([]any)
	out := make([]string, 0, len(list))
	for _, item := range list {
		text, ok := item.(string)
		if !ok {
			return nil
		}
		out = append(out, text)
	}
	return out
}

// Limits of a suggestion.
const (
	maxNear     = 3  // names that one message suggests
	maxCompared = 64 // bytes of a name; a peer may send a name of megabytes
)

// DidYouMean returns `did you mean "x" or "y"?` with the known names that are most similar to name, at
// most three, the most similar first. It returns "" if none is similar.
func DidYouMean(name string, known []string) string {
	type candidate struct {
		name     string
		distance int
	}
	var near []candidate
	for _, k := range known {
		if d := distance(folded(name), folded(k)); d <= max(1, len(k)/3) && d < len(k) {
			near = append(near, candidate{k, d})
		}
	}
	if len(near) == 0 {
		return ""
	}
	slices.SortFunc(near, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.distance, b.distance), cmp.Compare(a.name, b.name))
	})
	var names []string
	for _, c := range near[:min(len(near), maxNear)] {
		names = append(names, strconv.Quote(c.name))
	}
	return "did you mean " + strings.Join(names, " or ") + "?"
}

// Suggest returns the result of DidYouMean, or a list of the known names, such as "the arguments: a,
// b"; what is the noun for them.
func Suggest(name, what string, known []string) string {
	const most = 10
	hint := DidYouMean(name, known)
	switch {
	case hint != "":
		return hint
	case len(known) == 0:
		return "there are no " + what
	case len(known) > most:
		return "some of the " + what + ": " + strings.Join(known[:most], ", ")
	}
	return "the " + what + ": " + strings.Join(known, ", ")
}

// folded returns a name in the form in which names are compared: in lower case, with _ for -.
func folded(s string) string {
	s = strings.ToLower(s[:min(len(s), maxCompared)])
	return strings.ReplaceAll(s[:min(len(s), maxCompared)], "-", "_") // lower case may need more bytes
}

// distance returns how many bytes must be inserted, removed, replaced or swapped with their neighbour
// to turn a into b (optimal string alignment). Both have at most maxCompared bytes.
func distance(a, b string) int {
	var rows [3][maxCompared + 1]int
	before, last, row := &rows[0], &rows[1], &rows[2]
	for j := range len(b) + 1 {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			differs := 1
			if a[i-1] == b[j-1] {
				differs = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+differs)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
