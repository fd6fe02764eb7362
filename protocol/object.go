package protocol

import (
	"bytes"
	"errors"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Object is the checked JSON of an object from the wire: it has valid syntax
// and UTF-8, and no duplicate key at any depth. It points into its line: code
// that keeps it after the answer to the request must Clone it first.
// The zero Object is `{}`.
type Object struct {
	text    []byte // the text that the spans point into
	at      span   // the span of the object itself
	members []member
}

// step returns the distance in the table to the next member of the same object.
func (m *member) step() int { return 1 + int(m.kids) }

// whole returns the Object for a scanned text, which must be an object with optional white space around it.
func whole(text []byte, members []member) Object {
	if text[0] == '{' && text[len(text)-1] == '}' { // nearly always
		return Object{text: text, at: span{0, uint32(len(text))}, members: members}
	}
	trimmed := bytes.TrimLeft(text, blanks)
	from := len(text) - len(trimmed)
	to := from + len(bytes.TrimRight(trimmed, blanks))
	return Object{text: text, at: span{uint32(from), uint32(to)}, members: members}
}

// blanks is the white space of JSON.
const blanks = " \t\r\n"

// ParseObject checks raw and returns it as an Object. The error is an *Error:
// `schema_violation` if raw is not an object or has a key twice, otherwise `parse_error`.
func ParseObject(raw []byte) (Object, error) {
	s := scanner{b: raw}
	switch err := s.document(); {
	case s.dup:
		return Object{}, Errorf(CodeSchemaViolation, "%w; each key may appear once", err)
	case err != nil:
		return Object{}, Errorf(CodeParseError, "not valid JSON: %w", err)
	}
	obj := whole(raw, s.members)
	if raw[obj.at.from] != '{' {
		return Object{}, Errorf(CodeSchemaViolation, "a JSON object should be here, such as {\"key\":\"value\"}")
	}
	return obj, nil
}

// Raw returns the original JSON of the object.
func (o Object) Raw() []byte {
	if o.text == nil {
		return []byte("{}")
	}
	return o.at.of(o.text)
}

// Clone returns a copy that shares no memory with the line.
func (o Object) Clone() Object {
	c, err := ParseObject(slices.Clone(o.Raw()))
	if err != nil {
		panic("protocol: clone of an unchecked object: " + err.Error())
	}
	return c
}

// Len returns the number of members.
func (o Object) Len() int {
	n := 0
	for i := 0; i < len(o.members); i += o.members[i].step() {
		n++
	}
	return n
}

// place returns the table entry of member i.
func (o Object) place(i int) *member {
	at := 0
	for ; i > 0; i-- {
		at += o.members[at].step()
	}
	return &o.members[at]
}

// Key returns the decoded key of member i, in the order sent.
func (o Object) Key(i int) string { return string(o.place(i).key.text(o.text)) }

// Value returns the value of member i, in the order sent.
func (o Object) Value(i int) Value { return o.place(i).val.of(o.text) }

// All iterates over the members in the order sent. A key is valid only within
// the loop body; copy it with string(key).
func (o Object) All() func(yield func(key []byte, val Value) bool) {
	return func(yield func([]byte, Value) bool) {
		for i := 0; i < len(o.members); i += o.members[i].step() {
			if m := &o.members[i]; !yield(m.key.text(o.text), m.val.of(o.text)) {
				return
			}
		}
	}
}

// find returns the index of a member in the table, or -1.
func (o Object) find(key string) int {
	for i := 0; i < len(o.members); i += o.members[i].step() {
		if k := o.members[i].key; (k.escaped || int(k.to-k.from) == len(key)) && string(k.text(o.text)) == key {
			return i
		}
	}
	return -1
}

// Get returns the value of a key; keys match exactly.
func (o Object) Get(key string) (Value, bool) {
	i := o.find(key)
	if i < 0 {
		return nil, false
	}
	return o.members[i].val.of(o.text), true
}

// Text returns the string value of a key, or "" if the key is absent or its value is not a string.
func (o Object) Text(key string) string {
	val, _ := o.Get(key)
	text, _ := val.Str()
	return text
}

// With returns a copy of the object, in its own memory, with the member key set to val.
func (o Object) With(key string, val jsontext.Value) (Object, error) {
	raw := append(make([]byte, 0, len(o.Raw())+len(key)+len(val)+8), '{')
	for name, v := range o.All() {
		if string(name) != key {
			raw = append(append(AppendString(raw, name), ':'), v...)
			raw = append(raw, ',')
		}
	}
	raw = append(append(AppendString(raw, key), ':'), val...)
	return ParseObject(append(raw, '}'))
}

// Child returns the object that is the value of a key; ok reports whether the value is an object. It
// scans the value again only if the table does not have its members.
func (o Object) Child(key string) (child Object, ok bool) {
	i := o.find(key)
	if i < 0 {
		return Object{}, false
	}
	if o.members[i].kids > 0 {
		return o.child(i)
	}
	child, err := ParseObject(o.members[i].val.of(o.text))
	return child, err == nil
}

// child returns the value of the member at i in the table as an Object, without
// another scan. The bool reports whether the value is an object.
func (o Object) child(i int) (Object, bool) {
	m := &o.members[i]
	if o.text[m.val.from] != '{' {
		return Object{}, false
	}
	return Object{text: o.text, at: m.val, members: o.members[i+1 : i+m.step()]}, true
}

// withoutNulls returns the object without the members that are null.
func (o Object) withoutNulls() Object {
	var out []byte
	found := false
	for _, val := range o.All() {
		found = found || val.Kind() == 'n'
	}
	if !found {
		return o
	}
	for key, val := range o.All() {
		if val.Kind() != 'n' {
			out = append(AppendString(append(out, ','), key), ':')
			out = append(out, val...)
		}
	}
	if out == nil {
		return Object{}
	}
	out[0] = '{'
	out = append(out, '}')
	return Object{text: out, at: span{0, uint32(len(out))}}
}

// Decode reads the object into dst, a pointer to a struct with json tags.
// Members that dst does not have are ignored. The error is a `schema_violation`
// that names the member of the wrong type.
func (o Object) Decode(dst any) error {
	return Misfit("", json.Unmarshal(o.Raw(), dst, decodeOptions))
}

// MarshalJSONTo implements json.MarshalerTo. It writes the original JSON.
func (o Object) MarshalJSONTo(enc *jsontext.Encoder) error { return enc.WriteValue(o.Raw()) }

// UnmarshalJSONFrom implements json.UnmarshalerFrom. The object gets its own memory.
func (o *Object) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	val, err := dec.ReadValue()
	if err != nil {
		return err
	}
	if val.Kind() == 'n' {
		*o = Object{}
		return nil
	}
	obj, err := ParseObject(slices.Clone(val))
	if err != nil {
		return &json.SemanticError{JSONPointer: dec.StackPointer(), Err: errors.New("should be an object")}
	}
	*o = obj
	return nil
}

// elements calls do for each element of val, with the start and end of the element and the start of its
// members in the table of s. It reports whether val is an array.
func elements(s *scanner, val Value, do func(from, to, members int)) bool {
	if val.Kind() != '[' {
		return false
	}
	s.reset(val)
	s.i++
	for s.space(); !s.take(']'); s.space() {
		from, members := s.i, len(s.members)
		if s.value(true) != nil {
			return false
		}
		do(from, s.i, members)
		s.space()
		s.take(',')
		s.space()
	}
	return true
}

// Strings returns the texts of an array of strings; ok reports whether the value is such an array. The
// texts share one block of memory.
func (v Value) Strings() (texts []string, ok bool) {
	texts, problems := stringsOf("", v)
	return texts, problems == nil
}

// stringsOf reads an array of strings. The problems name the elements that are not strings, below path.
func stringsOf(path string, v Value) (texts []string, problems []FieldError) {
	text := string(v)
	var s scanner
	isArray := elements(&s, v, func(from, to, _ int) {
		switch el := v[from:to]; {
		case el.Kind() != '"':
			problems = append(problems, wrongElement(path, len(texts), el, "string"))
		case plain(el[1:len(el)-1]) == len(el)-2:
			texts = append(texts, text[from+1:to-1])
			return
		default:
			texts = append(texts, string(unquote(el)))
			return
		}
		texts = append(texts, "")
	})
	if !isArray {
		problems = []FieldError{{Path: path, Message: "is a JSON " + kindName(v.Kind()) + "; should be array"}}
	}
	return texts, problems
}

// objectsOf reads an array of objects, which point into the line. The problems name the elements that are
// not objects, below path.
func objectsOf(path string, v Value) (objects []Object, problems []FieldError) {
	var s scanner
	isArray := elements(&s, v, func(from, to, members int) {
		if el := v[from:to]; el.Kind() != '{' {
			problems = append(problems, wrongElement(path, len(objects), el, "object"))
		}
		end := len(s.members)
		objects = append(objects, Object{
			text: v, at: span{uint32(from), uint32(to)},
			members: s.members[members:end:end],
		})
	})
	if !isArray {
		problems = []FieldError{{Path: path, Message: "is a JSON " + kindName(v.Kind()) + "; should be array"}}
	}
	return objects, problems
}

func wrongElement(path string, i int, el Value, want string) FieldError {
	return FieldError{Path: path + "/" + strconv.Itoa(i), Message: "is a JSON " + kindName(el.Kind()) + "; should be " +
		want}
}
