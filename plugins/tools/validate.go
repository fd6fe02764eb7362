package tools

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"

	"a2e/host/schema"
	"a2e/protocol"
)

// maxQuoted bounds a name in a message, in bytes: a peer may send a name of megabytes.
const maxQuoted = 64

// maxProblems bounds the problems that one answer lists.
const maxProblems = 20

// valueType is the declared type of a parameter.
type valueType string

// The types, as a tool's definition names them.
const (
	typeString  valueType = "string"
	typeInteger valueType = "integer"
	typeNumber  valueType = "number"
	typeBoolean valueType = "boolean"
	typeObject  valueType = "object"
	typeArray   valueType = "array"
	typeAny     valueType = "any"
)

// param is one declared parameter, made ready for checking.
type param struct {
	name     string
	typ      valueType
	required bool
	enum     []string
	nested   params // members of an object; nil = any
}

// params are the parameters of one tool, or of one object in them: few, so that
// a walk over them is quicker than a map.
type params []param

// newParams makes the table of a tool's parameters, once per tool. The error
// names a parameter whose declaration is not valid.
func newParams(declared []protocol.ToolParameter) (params, error) {
	out := make(params, 0, len(declared))
	for _, d := range declared {
		p := param{name: d.Name, typ: valueType(d.Type), required: d.Required, enum: d.Enum}
		switch {
		case !p.typ.known():
			return nil, fmt.Errorf("parameter %q: unknown type %q; the types are string, integer, number, boolean, "+
				"object, array, any", d.Name, d.Type)
		case d.Name == "":
			return nil, fmt.Errorf("a parameter of type %s has no name", d.Type)
		case out.find([]byte(d.Name)) >= 0:
			return nil, fmt.Errorf("parameter %q is declared twice", d.Name)
		case len(d.Properties) > 0 && p.typ != typeObject:
			return nil, fmt.Errorf("parameter %q: only an object has properties, this is of type %s", d.Name, d.Type)
		}
		nested, err := newParams(schema.Members(d.Properties))
		if err != nil {
			return nil, fmt.Errorf("parameter %q: %w", d.Name, err)
		}
		p.nested = nested
		out = append(out, p)
	}
	return out, nil
}

func (ps params) find(name []byte) int {
	for i := range ps {
		if ps[i].name == string(name) {
			return i
		}
	}
	return -1
}

func (ps params) names() []string {
	out := make([]string, len(ps))
	for i := range ps {
		out[i] = ps[i].name
	}
	return out
}

// check checks arguments against the parameters and returns them as the tool
// reads them: unchanged, or with integers such as 3.0 or 1e2 rewritten as
// digits alone. It allocates nothing when it changes nothing and finds no problem.
func (ps params) check(args protocol.Object) (protocol.Object, error) {
	c := checker{}
	c.object(ps, args, nil)
	if c.problems != nil {
		return args, protocol.Violation(c.problems...)
	}
	if !c.respell {
		return args, nil
	}
	return protocol.ParseObject(respellObject(nil, ps, args))
}

// Check checks arguments against the parameters of a tool. It returns them as the tool reads
// them; the error is a `schema_violation`.
type Check func(args protocol.Object) (protocol.Object, error)

// NewCheck makes the check of a tool that another program declares. An unknown type
// takes any value. The error names a parameter whose declaration is not valid.
func NewCheck(declared []protocol.ToolParameter) (Check, error) {
	ps, err := newParams(forgiving(declared))
	return ps.check, err
}

func forgiving(declared []protocol.ToolParameter) []protocol.ToolParameter {
	declared = slices.Clone(declared)
	for i := range declared {
		d := &declared[i]
		if !valueType(d.Type).known() {
			d.Type = string(typeAny)
		}
		if valueType(d.Type) != typeObject {
			d.Properties = nil
		}
		if len(d.Properties) > 0 {
			members := make(map[string]protocol.ToolParameter, len(d.Properties))
			for _, m := range forgiving(schema.Members(d.Properties)) {
				members[m.Name] = m
			}
			d.Properties = members
		}
	}
	return declared
}

// CheckBy returns a Tool.Check for arguments that a schema describes. compile makes the schema at the first call. If
// it fails, or the check of arguments would cost too much, they pass: what the tool calls decides then.
func CheckBy(compile func() (*schema.Schema, error)) func(args protocol.Object) error {
	compiled := sync.OnceValues(compile)
	return func(args protocol.Object) error {
		s, err := compiled()
		if err != nil || len(args.Raw()) > s.MaxBytes() {
			return nil
		}
		if wrong := s.Check(args.Raw(), "/arguments"); wrong != nil {
			return protocol.Violation(wrong...)
		}
		return nil
	}
}

// checker collects the problems of one set of arguments.
type checker struct {
	problems []protocol.FieldError
	respell  bool // some integer is written with a fraction or an exponent
}

// valuePath is the position of a value: the chain of names that leads to it.
type valuePath struct {
	name string
	up   *valuePath
}

// pointer returns the JSON Pointer of a value in the message.
func (p *valuePath) pointer() string {
	if p == nil {
		return "/arguments"
	}
	return schema.Below(p.up.pointer(), p.name)
}

func (c *checker) fail(up *valuePath, name, format string, args ...any) {
	if len(c.problems) < maxProblems {
		at := valuePath{name: name, up: up}
		c.problems = append(c.problems, protocol.FieldError{Path: at.pointer(), Message: fmt.Sprintf(format, args...)})
	}
}

func (c *checker) object(ps params, o protocol.Object, up *valuePath) {
	for key, v := range o.All() {
		at := ps.find(key)
		if at < 0 {
			c.unknown(ps, string(key), up)
			continue
		}
		c.value(&ps[at], v, up)
	}
	for i := range ps {
		if ps[i].required {
			if _, ok := o.Get(ps[i].name); !ok {
				c.fail(up, ps[i].name, "required, but missing; it is of type %s", ps[i].typ)
			}
		}
	}
}

func (c *checker) unknown(ps params, name string, up *valuePath) {
	if len(c.problems) >= maxProblems { // an agent may send a million of them
		return
	}
	c.fail(up, name, "unknown argument; %s", schema.Suggest(name, "arguments", ps.names()))
}

func (c *checker) value(p *param, v protocol.Value, up *valuePath) {
	kind := v.Kind()
	if !p.typ.holds(kind) {
		c.fail(up, p.name, "must be of type %s, is %s", p.typ, kindName(kind))
		return
	}
	if p.typ == typeInteger && !plainInteger(v) {
		digits, ok := wholeNumber(v)
		if !ok {
			c.fail(up, p.name, "must be of type integer, is a number with a fraction or out of range")
			return
		}
		c.respell, v = true, digits
	}
	if len(p.enum) > 0 && !inEnum(p.enum, v) {
		c.fail(up, p.name, "must be one of %s", quotedList(p.enum))
		return
	}
	if len(p.nested) > 0 {
		c.members(p, v, up)
	}
}

// members checks an object inside the arguments. It is called only for parameters that declare
// properties, so it may allocate.
func (c *checker) members(p *param, v protocol.Value, up *valuePath) {
	o, err := protocol.ParseObject(v)
	if err != nil {
		c.fail(up, p.name, "must be of type object: %v", err)
		return
	}
	c.object(p.nested, o, &valuePath{name: p.name, up: up})
}

// known reports whether the type is one of those above.
func (t valueType) known() bool {
	return slices.Contains([]valueType{
		typeString, typeInteger, typeNumber, typeBoolean, typeObject, typeArray,
		typeAny,
	}, t)
}

// holds reports whether a value of that JSON kind may have this type.
func (t valueType) holds(kind byte) bool {
	switch t {
	case typeString:
		return kind == '"'
	case typeInteger, typeNumber:
		return kind == '0'
	case typeBoolean:
		return kind == 't' || kind == 'f'
	case typeObject:
		return kind == '{'
	case typeArray:
		return kind == '['
	}
	return true
}

func kindName(kind byte) string {
	switch kind {
	case 'n':
		return "null (leave an argument out to get its default)"
	case 't', 'f':
		return "a boolean"
	case '"':
		return "a string"
	case '0':
		return "a number"
	case '{':
		return "an object"
	}
	return "an array"
}

// inEnum reports whether the enum has a value: a string by its decoded text, any other value by its JSON text.
func inEnum(enum []string, v protocol.Value) bool {
	text, ok := v.Str()
	return ok && slices.Contains(enum, text) || v.Kind() != '"' && slices.Contains(enum, string(v))
}

func quotedList(values []string) string {
	var all []string
	for _, v := range values[:min(len(values), maxProblems)] {
		all = append(all, strconv.Quote(v))
	}
	if len(values) > maxProblems {
		all = append(all, "…")
	}
	return strings.Join(all, ", ")
}

// plainInteger reports whether a number is written as digits alone.
func plainInteger(number []byte) bool { return !bytes.ContainsAny(number, ".eE") }

// maxWhole bounds the integers taken from a number with a fraction or an exponent: a float64 represents
// all of them exactly.
const maxWhole = 1 << 53

// wholeNumber returns the digits of a JSON number that is written with a fraction or an exponent
// but is an integer: 3.0, 1e2, 1.50e1.
func wholeNumber(number []byte) ([]byte, bool) {
	n, err := strconv.ParseFloat(string(number), 64)
	if err != nil || n != math.Trunc(n) || math.Abs(n) > maxWhole {
		return nil, false
	}
	return strconv.AppendInt(nil, int64(n), 10), true
}

// respellObject appends o with each integer written as digits alone. The caller has
// checked o.
func respellObject(dst []byte, ps params, o protocol.Object) []byte {
	dst = append(dst, '{')
	for key, v := range o.All() {
		if dst[len(dst)-1] != '{' {
			dst = append(dst, ',')
		}
		dst = append(protocol.AppendString(dst, key), ':')
		dst = respellValue(dst, &ps[ps.find(key)], v)
	}
	return append(dst, '}')
}

func respellValue(dst []byte, p *param, v protocol.Value) []byte {
	if p.typ == typeInteger && !plainInteger(v) {
		if digits, ok := wholeNumber(v); ok {
			return append(dst, digits...)
		}
	}
	if len(p.nested) > 0 {
		if o, err := protocol.ParseObject(v); err == nil {
			return respellObject(dst, p.nested, o)
		}
	}
	return append(dst, v...)
}
