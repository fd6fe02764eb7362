//go:build !linux

package private

// PlaceNew gives a file another name, which must be free: fs.ErrExist otherwise.
func (d *Dir) PlaceNew(from, to string) error { return d.placeByLink(from, to) }
