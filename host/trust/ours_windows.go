package trust

import "os"

// onlyOurs leaves the user's own folder to the access list that it has from its profile.
func onlyOurs(os.FileInfo) error { return nil }
