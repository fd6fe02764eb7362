//go:build !linux

package private

// PlaceNew returns a file another name, which must be free: fs.ErrExist otherwise.
func (d *Dir) PlaceNew(from, to string) error { return d.placeByLink(from, to) }
