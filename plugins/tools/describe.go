package tools

import (
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/protocol"
)

// DescribeTool implements host.ToolDescriber.
func (p *Plugin) DescribeTool(name string) (host.ToolDetail, bool) { return p.set.DescribeTool(name) }

// DescribeTool tells of a tool that may be called; false = there is none of that name.
func (s *Set) DescribeTool(name string) (host.ToolDetail, bool) {
	t := s.content.Load().tools[name]
	if t == nil || t.Denied != "" {
		return host.ToolDetail{}, false
	}
	d := t.Detail
	d.Idempotent = d.Idempotent || t.Def.Idempotent
	if len(d.InputSchema) == 0 {
		d.InputSchema = appendSchema(nil, t.Def.InputParameters)
	}
	return d, true
}

// appendSchema appends the JSON Schema of an object with the given members and no others.
func appendSchema(dst []byte, members []protocol.ToolParameter) []byte {
	dst = append(dst, `{"type":"object","properties":{`...)
	var required []string
	for i, m := range members {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(protocol.AppendString(dst, m.Name), ':')
		dst = appendMember(dst, m)
		if m.Required {
			required = append(required, m.Name)
		}
	}
	dst = append(dst, '}')
	if len(required) > 0 {
		dst = append(dst, `,"required":`...)
		dst = appendList(dst, required, protocol.AppendString[string])
	}
	return append(dst, `,"additionalProperties":false}`...)
}

// appendMember appends the schema of one member.
func appendMember(dst []byte, m protocol.ToolParameter) []byte {
	typ := valueType(m.Type)
	start := len(dst)
	switch {
	case typ == typeObject && len(m.Properties) > 0:
		dst = appendSchema(dst, membersOf(m.Properties))
		dst = dst[:len(dst)-1] // the description comes behind it
	case typ == typeAny, !typ.known():
		dst = append(dst, '{')
	default:
		dst = append(dst, `{"type":`...)
		dst = protocol.AppendString(dst, string(typ))
	}
	if typ == typeArray {
		dst = append(dst, `,"items":{}`...) // some models' vendors refuse an array without
	}
	if m.Description != "" {
		dst = protocol.AppendString(append(appendComma(dst, start), `"description":`...), m.Description)
	}
	if len(m.Enum) > 0 {
		dst = append(appendComma(dst, start), `"enum":`...)
		dst = appendList(dst, allowed(typ, m.Enum), func(dst []byte, v jsontext.Value) []byte { return append(dst, v...) })
	}
	return append(dst, '}')
}

// appendComma appends a comma to an object that began at start, unless it is empty.
func appendComma(dst []byte, start int) []byte {
	if len(dst) == start+1 {
		return dst
	}
	return append(dst, ',')
}

func appendList[T any](dst []byte, all []T, one func([]byte, T) []byte) []byte {
	dst = append(dst, '[')
	for i, v := range all {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = one(dst, v)
	}
	return append(dst, ']')
}

// allowed gives the values that an enum means: an argument that is no text is held
// against it as it is written.
func allowed(typ valueType, enum []string) []jsontext.Value {
	var all []jsontext.Value
	for _, text := range enum {
		literal := jsontext.Value(text)
		written := typ != typeString && literal.IsValid() && literal.Kind() != '"'
		if typ == typeAny || !written {
			all = append(all, protocol.AppendString(nil, text))
		}
		if written {
			all = append(all, literal)
		}
	}
	return all
}
