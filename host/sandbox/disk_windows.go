package sandbox

import "io/fs"

// fileID tells files apart.
type fileID struct{}

// diskUsage gives the bytes that a file takes on disk.
func diskUsage(info fs.FileInfo) (bytes int64, id fileID, several bool) {
	return info.Size(), fileID{}, false
}
