//go:build !unix

package tools

import (
	"io/fs"
	"os"
)

func deviceOf(fs.FileInfo) (uint64, bool) { return 0, false }

func keepOwner(*os.File, fs.FileInfo) {}
