//go:build !linux

package private

// PlaceNew renames a file to a name that must be free; otherwise the error is fs.ErrExist.
func (d *Dir) PlaceNew(from, to string) error { return d.placeByLink(from, to) }
