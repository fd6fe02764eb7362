package checkpoint

import (
	"errors"
	"os"
	"path"
	"strings"
)

// openWorkspace is an open workspace. All operations through it stay inside, even if there are links.
type openWorkspace struct{ root *os.Root }

var errSwapped = errors.New("it was replaced by another folder or a link")

// folder opens a folder without following links, not even links to another place in the workspace,
// where the host's own files may be.
func (p *openWorkspace) folder(dir string) (*os.Root, error) {
	at, err := p.root.OpenRoot(".")
	for name := range strings.SplitSeq(dir, "/") {
		if err != nil || name == "" {
			break
		}
		above := at
		at, err = openNoLink(above, name)
		_ = above.Close()
	}
	return at, err
}

// openNoLink opens a folder that is not a link.
func openNoLink(above *os.Root, name string) (*os.Root, error) {
	named, err := above.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !named.IsDir() {
		return nil, errSwapped
	}
	dir, err := above.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	info, err := dir.Stat(".")
	if err == nil && !os.SameFile(named, info) {
		err = errSwapped
	}
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return dir, nil
}

func split(name string) (dir, base string) {
	dir, base = path.Split(name)
	return strings.TrimSuffix(dir, "/"), base
}
