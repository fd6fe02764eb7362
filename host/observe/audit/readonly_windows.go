package audit

// isReadOnly reports false: on Windows a read-only file system is an fs.ErrPermission.
func isReadOnly(error) bool { return false }
