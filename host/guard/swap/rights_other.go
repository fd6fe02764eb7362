//go:build !linux

package swap

import "os"

// keepAttributes does nothing: attributes are only handled on Linux.
func keepAttributes(_, _ *os.File) error { return nil }

// HasACL reports false: ACLs are only handled on Linux.
func HasACL(*os.File) bool { return false }

// Bare does nothing: ACLs are only handled on Linux.
func Bare(*os.File) error { return nil }

func reserve(*os.File, int64) error { return nil }
