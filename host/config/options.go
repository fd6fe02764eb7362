package config

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"a2e/host/redact"
)

// Options is the part of a plugin's `metadata` that belongs to the plugin. The
// zero value has no options.
type Options struct {
	file    string
	path    string
	node    *node
	getenv  func(string) string
	secrets *redact.Set
}

// ParseOptions reads options from YAML text, as Load does from a file. file is
// the name for messages; a nil getenv is an empty environment.
func ParseOptions(file string, text []byte, getenv func(string) string) (Options, error) {
	root, problems := parse(file, text)
	if len(problems) > 0 {
		return Options{}, problemsError(problems)
	}
	d := decoder{file: file, getenv: envOr(getenv)}
	var o Options
	d.value(root, reflect.ValueOf(&o).Elem(), "metadata", "")
	return o, problemsError(d.problems)
}

// Decode fills dst, a pointer to a struct with yaml tags (see the package
// comment), with the options. Keys that the file does not name, or names
// without a value, leave their field as it is, so defaults go in before. The
// error is an *Error with every problem: unknown options, wrong types, values
// out of range, missing variables. dst is then partly filled.
//
// Fields may be strings, booleans, numbers, time.Duration (seconds, or a text
// such as 1m30s), Secret, any, structs, pointers, slices, and maps with string
// keys.
func (o Options) Decode(dst any) error {
	v := reflect.ValueOf(dst)
	if v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct {
		return errors.New("config: Decode needs a pointer to a struct")
	}
	if o.node == nil {
		return nil
	}
	d := decoder{file: o.file, getenv: o.getenv, secrets: o.secrets}
	d.value(o.node, v.Elem(), o.path, "")
	return problemsError(d.problems)
}

// Errorf makes an *Error at the place of an option, for checks that the
// struct's tags cannot express. key is the option's name, such as deny, workspace.deny or
// deny[2].
func (o Options) Errorf(key, format string, args ...any) error {
	p := Problem{File: o.file, Message: joined(o.path, key) + ": " + fmt.Sprintf(format, args...)}
	name, index, _ := strings.Cut(strings.TrimSuffix(key, "]"), "[")
	n := o.node.at(strings.Split(name, ".")...)
	if i, err := strconv.Atoi(index); err == nil && n != nil && i < len(n.items) {
		n = n.items[i]
	}
	if n != nil {
		p.Line, p.Column = n.line, n.column
	} else if o.node != nil {
		p.Line, p.Column = o.node.line, o.node.column
	}
	return &Error{Problems: []Problem{p}}
}

func envOr(getenv func(string) string) func(string) string {
	if getenv == nil {
		return func(string) string { return "" }
	}
	return getenv
}
