package protocol

import (
	"bytes"
	"reflect"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Mend repairs a message of another program. It replaces a null that the type does not allow by an empty list or
// map, and removes an optional member that is null. It replaces an empty object where the type has a list, as some
// programs send it by default, by an empty list. The error is a `schema_violation` that names the first null
// without a replacement. Members and types that the protocol does not know stay unchanged.
func Mend(t Type, obj Object) (Object, error) {
	info, ok := Lookup(t)
	if !ok || !mendable(obj.Raw()) {
		return obj, nil
	}
	text, err := appendMended(nil, obj.Raw(), reflect.TypeOf(info.New()), "")
	if err != nil {
		return obj, err
	}
	return ParseObject(text)
}

// mendable reports whether a text may need mending.
func mendable(text []byte) bool {
	return bytes.Contains(text, []byte("null")) || bytes.Contains(text, []byte("{}"))
}

// appendMended appends a value, mended for the Go type t.
func appendMended(dst []byte, val Value, t reflect.Type, path string) ([]byte, error) {
	if val.Kind() == 'n' {
		return appendForNull(dst, t, path)
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case isRaw(t) || !mendable(val):
	case t.Kind() == reflect.Slice && string(val) == "{}":
		return append(dst, "[]"...), nil
	case val.Kind() == '{' && (t.Kind() == reflect.Struct || t.Kind() == reflect.Map):
		return appendMendedObject(dst, val, t, path)
	case val.Kind() == '[' && (t.Kind() == reflect.Slice || t.Kind() == reflect.Array):
		return appendMendedList(dst, val, t, path)
	}
	return append(dst, val...), nil
}

// appendForNull appends the replacement of a null for the Go type t.
func appendForNull(dst []byte, t reflect.Type, path string) ([]byte, error) {
	switch {
	case t.Kind() == reflect.Pointer, t.Kind() == reflect.Interface, t == reflect.TypeFor[jsontext.Value](),
		t == reflect.TypeFor[Value](), isNullable(t):
		return append(dst, "null"...), nil
	case t.Kind() == reflect.Slice:
		return append(dst, "[]"...), nil
	case t.Kind() == reflect.Map, t == reflect.TypeFor[Object]():
		return append(dst, "{}"...), nil
	}
	return dst, Violation(FieldError{Path: path, Message: "is a JSON null; should be " + typeName(t.Kind().String())})
}

// isRaw reports whether a type holds raw JSON.
func isRaw(t reflect.Type) bool {
	return t == reflect.TypeFor[jsontext.Value]() || t == reflect.TypeFor[Value]() || t == reflect.TypeFor[Object]()
}

// isNullable reports whether a type is a NullableList or NullableMap.
func isNullable(t reflect.Type) bool {
	return t.PkgPath() == reflect.TypeFor[Object]().PkgPath() && strings.HasPrefix(t.Name(), "Nullable")
}

func appendMendedObject(dst []byte, val Value, t reflect.Type, path string) ([]byte, error) {
	obj, err := ParseObject(val)
	if err != nil {
		return dst, err
	}
	dst = append(dst, '{')
	first := true
	for key, member := range obj.All() {
		of, optional := memberType(t, string(key))
		if optional && member.Kind() == 'n' {
			continue
		}
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = append(AppendString(dst, key), ':')
		if of == nil {
			dst = append(dst, member...)
			continue
		}
		if dst, err = appendMended(dst, member, of, path+"/"+string(key)); err != nil {
			return dst, err
		}
	}
	return append(dst, '}'), nil
}

// memberType returns the type of a member, or nil for an unknown member, and whether the member
// may be absent.
func memberType(t reflect.Type, key string) (of reflect.Type, optional bool) {
	if t.Kind() == reflect.Map {
		return t.Elem(), false
	}
	for _, f := range reflect.VisibleFields(t) {
		name, rest, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == key && f.IsExported() {
			return f.Type, strings.Contains(rest, "omitzero") || strings.Contains(rest, "omitempty")
		}
	}
	return nil, false
}

func appendMendedList(dst []byte, val Value, t reflect.Type, path string) ([]byte, error) {
	var entries []jsontext.Value
	if err := json.Unmarshal(val, &entries); err != nil {
		return dst, Misfit(path, err)
	}
	dst = append(dst, '[')
	for i, entry := range entries {
		if i > 0 {
			dst = append(dst, ',')
		}
		var err error
		if dst, err = appendMended(dst, Value(entry), t.Elem(), path+"/"+strconv.Itoa(i)); err != nil {
			return dst, err
		}
	}
	return append(dst, ']'), nil
}
