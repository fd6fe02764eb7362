package skill

import "os"

// makePipe makes a folder in place of a pipe: neither is a regular file.
func makePipe(path string) error { return os.Mkdir(path, 0o755) }
