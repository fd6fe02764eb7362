package checkpoint

import (
	"io/fs"
	"os"
)

// giveTo does nothing: new files belong to this user.
func giveTo(*os.File, fs.FileInfo) {}
