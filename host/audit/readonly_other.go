//go:build !unix

package audit

// isReadOnly tells whether the file system takes no files; elsewhere that is fs.ErrPermission.
func isReadOnly(error) bool { return false }
