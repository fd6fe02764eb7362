//go:build unix

package jsonrpc_test

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	front "a2e/host/dialect/jsonrpc"
)

// TestImageTraps: a pipe in the place of an image is not waited for, and a link in the place
// of the folder for images does not lead out of the workspace.
func TestImageTraps(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe.png"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(dir, ".a2e-images")); err != nil {
		t.Fatal(err)
	}
	p := open(t, front.Options{Workspace: dir}, newKit())
	s := p.session("")
	for image, why := range map[string]string{"pipe.png": "is no file", dataURL(png): "cannot be put into the workspace"} {
		got := p.call("session.send", fmt.Sprintf(`{"session_id":%q,"text":"see","images":[%q]}`, s, image))
		check(t, got, "/error/data/field", "images/0", "~", why)
	}
	p.call("history.clear_session", `{"session_id":"`+s+`"}`)
	if there, err := os.ReadDir(outside); err != nil || len(there) > 0 {
		t.Errorf("outside is %v %v", there, err)
	}
}
