package skill

import "os"

// makePipe makes what is no regular file either.
func makePipe(path string) error { return os.Mkdir(path, 0o755) }
