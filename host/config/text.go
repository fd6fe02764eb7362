package config

import (
	"errors"
	"reflect"
)

// DecodeText fills dst, a pointer to a struct with yaml tags, from YAML text by the
// rules of Options.Decode, but puts no variables in: ${…} stays as it is. file is
// the name for messages. The error is an *Error with every problem.
func DecodeText(file string, text []byte, dst any) error {
	v := reflect.ValueOf(dst)
	if v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct {
		return errors.New("config: DecodeText needs a pointer to a struct")
	}
	root, problems := parse(file, text)
	if root == nil {
		return problemsError(problems)
	}
	d := decoder{file: file, problems: problems}
	d.value(root, v.Elem(), top, "")
	return problemsError(d.problems)
}
