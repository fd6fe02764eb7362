//go:build !linux

package tools

import "os"

// exchange makes two names change places. It takes several steps, between which a does not exist.
func exchange(a, b string) error {
	aside := a + ".aside"
	if err := os.Rename(a, aside); err != nil {
		return err
	}
	if err := os.Rename(b, a); err != nil {
		return err
	}
	return os.Rename(aside, b)
}
