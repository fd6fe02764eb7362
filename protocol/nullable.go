package protocol

import (
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// NullableList is a list whose schema allows null: nil is `null`, while a plain
// nil slice is `[]`.
type NullableList[T any] []T

// MarshalJSONTo implements json.MarshalerTo.
func (l NullableList[T]) MarshalJSONTo(enc *jsontext.Encoder) error {
	if l == nil {
		return enc.WriteToken(jsontext.Null)
	}
	return json.MarshalEncode(enc, []T(l))
}

// NullableMap is an object whose schema allows null: nil is `null`, while a plain
// nil map is `{}`.
type NullableMap[T any] map[string]T

// MarshalJSONTo implements json.MarshalerTo.
func (m NullableMap[T]) MarshalJSONTo(enc *jsontext.Encoder) error {
	if m == nil {
		return enc.WriteToken(jsontext.Null)
	}
	return json.MarshalEncode(enc, map[string]T(m))
}
