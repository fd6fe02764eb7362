package protocol

import (
	"encoding/base64"
	"errors"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// decodeOptions allow duplicate names because the scan of a line has already
// refused them.
var decodeOptions = json.JoinOptions(jsontext.AllowDuplicateNames(true))

// encodeOptions replace invalid UTF-8 by U+FFFD instead of losing the whole answer, and
// sort maps so that equal answers have equal bytes.
var encodeOptions = json.JoinOptions(jsontext.AllowInvalidUTF8(true), json.Deterministic(true))

// exactOptions keep the bytes of raw JSON within a value; encoding fails if it has invalid UTF-8.
var exactOptions = json.JoinOptions(jsontext.PreserveRawStrings(true), json.Deterministic(true))

// Defaulter is a request struct with fields whose default is not the zero value.
type Defaulter interface{ SetDefaults() }

// LineDecoder is a request struct that reads itself from a scanned line, without
// scanning it again. Defaults are set before.
type LineDecoder interface{ DecodeLine(obj Object) error }

// Appender is a response that encodes itself: AppendJSON appends one JSON object.
type Appender interface {
	AppendJSON(dst []byte) ([]byte, error)
}

// Decode reads a scanned message into dst, a pointer to the struct of its type.
// Absent and null fields get their defaults, and unknown fields are ignored. If a required
// field is missing or null, or a value has the wrong type, the error is a `schema_violation`.
func Decode(obj Object, required []string, dst any) error {
	var missing []FieldError
	for _, name := range required {
		if val, ok := obj.Get(name); !ok || val.Kind() == 'n' {
			missing = append(missing, FieldError{Path: "/" + name, Message: "is required"})
		}
	}
	if missing != nil {
		return Violation(missing...)
	}
	defaulter, ok := dst.(Defaulter)
	if ok {
		defaulter.SetDefaults()
	}
	if d, ok := dst.(LineDecoder); ok {
		return d.DecodeLine(obj)
	}
	if ok {
		obj = obj.withoutNulls() // json/v2 would set null fields to zero
	}
	return obj.Decode(dst)
}

// Misfit turns an error of json/v2 about a value at the pointer prefix into a `schema_violation` that names JSON
// types instead of Go types.
func Misfit(prefix string, err error) error {
	if err == nil {
		return nil
	}
	problem := FieldError{Path: prefix, Message: "does not have the declared type"}
	if sem, ok := errors.AsType[*json.SemanticError](err); ok {
		problem.Path += string(sem.JSONPointer)
		switch {
		case sem.GoType != nil && sem.JSONKind != 0:
			problem.Message = "is a JSON " + kindName(byte(sem.JSONKind)) + "; should be " +
				typeName(sem.GoType.Kind().String())
		case sem.Err != nil:
			problem.Message = sem.Err.Error()
		}
	}
	if problem.Path == "" {
		problem.Path = "/"
	}
	return Violation(problem)
}

// kindName returns the English name of a Value's kind.
func kindName(kind byte) string {
	switch kind {
	case 'n':
		return "null"
	case 't', 'f':
		return "boolean"
	case '"':
		return "string"
	case '0':
		return "number"
	case '[', ']':
		return "array"
	}
	return "object"
}

// typeName returns the JSON name of a Go kind.
func typeName(goKind string) string {
	switch {
	case goKind == "string", goKind == "bool":
		return strings.Replace(goKind, "bool", "boolean", 1)
	case strings.HasPrefix(goKind, "int"), strings.HasPrefix(goKind, "uint"):
		return "an integer in range"
	case strings.HasPrefix(goKind, "float"):
		return "number"
	case goKind == "slice", goKind == "array":
		return "array"
	}
	return "object"
}

// fieldReader reads the members of a request without reflection and collects the
// problems. A null counts as absent.
type fieldReader struct{ problems []FieldError }

func (f *fieldReader) wrong(key string, val Value, want string) {
	f.problems = append(f.problems, FieldError{
		Path: "/" + key, Message: "is a JSON " + kindName(val.Kind()) + "; should be " + want,
	})
}

func (f *fieldReader) text(key string, val Value, dst *string) {
	if text, ok := val.Str(); ok {
		*dst = text
	} else if val.Kind() != 'n' {
		f.wrong(key, val, "string")
	}
}

func (f *fieldReader) boolean(key string, val Value, dst *bool) {
	switch val.Kind() {
	case 't', 'f':
		*dst = val.Kind() == 't'
	case 'n':
	default:
		f.wrong(key, val, "boolean")
	}
}

func (f *fieldReader) integer(key string, val Value, dst *int) {
	if n, ok := val.Int(); ok {
		*dst = n
	} else if val.Kind() != 'n' {
		f.wrong(key, val, "an integer in range")
	}
}

// object reads member i of obj.
func (f *fieldReader) object(key string, obj Object, i int, dst *Object) {
	if child, ok := obj.child(i); ok {
		*dst = child
	} else if val := Value(obj.members[i].val.of(obj.text)); val.Kind() != 'n' {
		f.wrong(key, val, "object")
	}
}

func (f *fieldReader) err() error {
	if f.problems == nil {
		return nil
	}
	return Violation(f.problems...)
}

// AppendHeader appends the envelope of a message, without its closing brace. id
// must need no escapes; reqID is raw JSON or nil.
func AppendHeader(dst []byte, t Type, id []byte, ts time.Time, reqID Value) []byte {
	dst = append(dst, `{"a2e":"1.0","version":"1.0","type":"`...)
	dst = append(dst, t...)
	dst = append(dst, `","id":"`...)
	dst = append(dst, id...)
	dst = append(dst, `","ts":`...)
	dst = AppendSeconds(dst, ts)
	if reqID != nil {
		dst = append(dst, `,"req_id":`...)
		dst = append(dst, reqID...)
	}
	return dst
}

// AppendSeconds appends a time as seconds since 1970 with six decimals.
func AppendSeconds(dst []byte, ts time.Time) []byte {
	us := ts.UnixMicro()
	if us < 0 { // a clock that was never set
		dst, us = append(dst, '-'), -us
	}
	dst = strconv.AppendInt(dst, us/1e6, 10)
	dst = append(dst, ".000000"...)
	frac := us % 1e6
	for i := len(dst) - 1; frac > 0; i-- {
		dst[i] += byte(frac % 10)
		frac /= 10
	}
	return dst
}

// AppendBody appends the members of body, which must encode as an object, to a
// header, and the closing brace. On an error it returns dst unchanged.
func AppendBody(dst []byte, body any) ([]byte, error) {
	start := len(dst)
	out, err := AppendJSON(dst, body)
	if err != nil {
		return dst[:start], err
	}
	switch rest := out[start:]; {
	case len(rest) < 2 || rest[0] != '{' || rest[len(rest)-1] != '}':
		return dst[:start], errors.New("protocol: a message body must encode as an object")
	case len(rest) == 2:
		return append(out[:start], '}'), nil
	}
	out[start] = ','
	return out, nil
}

// AppendJSON appends any value as compact JSON. An Appender encodes itself, and
// json/v2 encodes all other values; nil lists and maps become [] and {}.
func AppendJSON(dst []byte, v any) ([]byte, error) {
	switch v := v.(type) {
	case Appender:
		return v.AppendJSON(dst)
	case Object:
		return appendCompact(dst, v.Raw())
	case jsontext.Value:
		return appendCompact(dst, v)
	}
	b, err := json.Marshal(v, exactOptions)
	if err != nil {
		b, err = json.Marshal(v, encodeOptions)
	}
	return append(dst, b...), err
}

// appendCompact appends raw JSON without its white space; empty raw becomes null.
func appendCompact(dst, raw []byte) ([]byte, error) {
	if len(raw) == 0 {
		return append(dst, "null"...), nil
	}
	if raw[0] == '"' { // a string has no white space to remove
		return append(dst, raw...), nil
	}
	return jsontext.AppendFormat(dst, raw, jsontext.AllowDuplicateNames(true), jsontext.PreserveRawStrings(true))
}

// AppendString appends a string as JSON with its quotes. Invalid UTF-8 becomes U+FFFD.
// It copies whole runs of plain text: the output of programs is lines, each with an escape at its end.
func AppendString[S ~string | ~[]byte](dst []byte, s S) []byte {
	dst = append(dst, '"')
	for rest := []byte(s); ; {
		n := plain(rest)
		dst = append(dst, rest[:n]...)
		if rest = rest[n:]; len(rest) == 0 {
			return append(dst, '"')
		}
		switch c := rest[0]; c {
		case '\n':
			dst, n = append(dst, `\n`...), 1
		case '"', '\\':
			dst, n = append(dst, '\\', c), 1
		case '\t':
			dst, n = append(dst, `\t`...), 1
		default:
			dst, n = appendOdd(dst, rest)
		}
		rest = rest[n:]
	}
}

// appendOdd appends the control character, or the characters beyond ASCII, at the beginning of s,
// and returns how many bytes of s they are.
func appendOdd(dst, s []byte) ([]byte, int) {
	n := 0
	for n < len(s) && s[n] >= utf8.RuneSelf {
		_, size := utf8.DecodeRune(s[n:])
		n += size
	}
	if n > 0 && utf8.Valid(s[:n]) {
		return append(dst, s[:n]...), n
	}
	n = max(n, 1)
	from := len(dst)
	dst, _ = jsontext.AppendQuote(dst, s[:n]) // the error only tells that U+FFFD was inserted
	copy(dst[from:], dst[from+1:len(dst)-1])  // without the quotes
	return dst[:len(dst)-2], n
}

// AppendBase64 appends bytes as a base64 JSON string.
func AppendBase64(dst, b []byte) []byte {
	dst = append(dst, '"')
	return append(base64.StdEncoding.AppendEncode(dst, b), '"')
}

// NullableList is a list whose schema allows null: nil encodes as `null`, while a plain
// nil slice encodes as `[]`.
type NullableList[T any] []T

// MarshalJSONTo implements json.MarshalerTo.
func (l NullableList[T]) MarshalJSONTo(enc *jsontext.Encoder) error {
	if l == nil {
		return enc.WriteToken(jsontext.Null)
	}
	return json.MarshalEncode(enc, []T(l))
}

// NullableMap is an object whose schema allows null: nil encodes as `null`, while a plain
// nil map encodes as `{}`.
type NullableMap[T any] map[string]T

// MarshalJSONTo implements json.MarshalerTo.
func (m NullableMap[T]) MarshalJSONTo(enc *jsontext.Encoder) error {
	if m == nil {
		return enc.WriteToken(jsontext.Null)
	}
	return json.MarshalEncode(enc, map[string]T(m))
}
