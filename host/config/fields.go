package config

import (
	"reflect"
	"strings"
)

// field is one key of a struct.
type field struct {
	name  string
	index []int
	typ   reflect.Type
	tag   reflect.StructTag
}

type fields []field

// fieldsOf lists the keys of a struct type in its order.
func fieldsOf(t reflect.Type) fields {
	var out fields
	for i := range t.NumField() {
		f := t.Field(i)
		name, option, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if name == "-" || (!f.IsExported() && !f.Anonymous) {
			continue
		}
		if (option == "inline" || (f.Anonymous && name == "")) && f.Type.Kind() == reflect.Struct {
			for _, inner := range fieldsOf(f.Type) {
				inner.index = append([]int{i}, inner.index...)
				out = append(out, inner)
			}
			continue
		}
		if !f.IsExported() {
			continue
		}
		if name == "" {
			name = strings.ToLower(f.Name)
		}
		out = append(out, field{name: name, index: []int{i}, typ: f.Type, tag: f.Tag})
	}
	return out
}

func (fs fields) find(name string) (field, bool) {
	for _, f := range fs {
		if f.name == name {
			return f, true
		}
	}
	return field{}, false
}

func (fs fields) names() []string {
	names := make([]string, len(fs))
	for i, f := range fs {
		names[i] = f.name
	}
	return names
}
