//go:build !linux

package swap

import "os"

// keepAttributes knows of none here.
func keepAttributes(_, _ *os.File) error { return nil }

// HasACL reports whether a file has an ACL, beyond the rights of its mode: this is told on Linux.
func HasACL(*os.File) bool { return false }

// Bare takes away the ACL that a new file has of its folder.
func Bare(*os.File) error { return nil }

func reserve(*os.File, int64) error { return nil }
