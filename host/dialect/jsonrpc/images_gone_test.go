package jsonrpc_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	front "a2e/host/dialect/jsonrpc"
)

// TestImagesGoWithTheirSession: the images that came as data are taken away when their
// session goes, as the oldest of too many.
func TestImagesGoWithTheirSession(t *testing.T) {
	dir := t.TempDir()
	p := open(t, front.Options{Workspace: dir, MaxKept: 2}, newKit())
	var ids []string
	for i := range 3 {
		ids = append(ids, p.session(""))
		p.call("session.send", `{"session_id":"`+ids[i]+`","text":"look","images":["`+dataURL(png)+`"]}`)
		p.event("session.status", `"idle"`, i) // it has ended altogether
	}
	there, err := os.ReadDir(filepath.Join(dir, ".a2e-images"))
	var got []string
	for _, e := range there {
		if e.IsDir() {
			got = append(got, e.Name())
		}
	}
	if want := slices.Sorted(slices.Values(ids[1:])); err != nil || !slices.Equal(got, want) {
		t.Errorf("images of %q are there, should be %q (%v)", got, want, err)
	}
}
