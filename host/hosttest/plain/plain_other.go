//go:build !linux

// Package plain starts programs as a plain container does; only Linux has such.
package plain

import "errors"

// Exec fails: nothing here has namespaces.
func Exec(string, []string, []string, ...uint32) error { return errors.ErrUnsupported }
