package schema

import (
	"bytes"

	"a2e/protocol"
)

// WithDefaults returns an object with the defaults of its JSON Schema for missing members. Nested
// objects are not changed.
func WithDefaults(schema, obj protocol.Object) protocol.Object {
	props, _ := schema.Child("properties")
	raw := bytes.Clone(obj.Raw())
	added := obj.Len()
	for key := range props.All() {
		prop, _ := props.Child(string(key))
		val, has := prop.Get("default")
		if _, there := obj.Get(string(key)); there || !has {
			continue
		}
		raw = raw[:len(raw)-1]
		if added++; added > 1 {
			raw = append(raw, ',')
		}
		raw = append(append(append(protocol.AppendString(raw, key), ':'), val...), '}')
	}
	if added == obj.Len() {
		return obj
	}
	out, err := protocol.ParseObject(raw)
	if err != nil {
		return obj // cannot happen: both are JSON
	}
	return out
}
