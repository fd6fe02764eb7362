//go:build !unix && !windows

package hardlink

import (
	"io/fs"
	"os"
)

// Count takes every file to have one name: these systems do not tell.
func Count(*os.File, fs.FileInfo) (uint64, error) { return 1, nil }
