package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// What is kept of homes that nobody uses.
const (
	KeepHomesFor = 30 * 24 * time.Hour // since the last start
	MaxHomes     = 32                  // in one folder; the longest unused go first
)

// KeptHome is a home that stays between the starts of one program, for Policy.HomeDir. It
// lies in a folder of its own, beside what the host notes of it:
//
//	DIR/NAME/home   the child's        DIR/NAME/ready   a start in it went well
type KeptHome struct {
	dir  string // DIR/NAME
	lock *os.File
}

// KeepHome opens the home called name in a folder, and makes it where there is none. It may
// be open several times at once, and is not removed meanwhile. What an installer left half
// done there goes, so that it begins anew; what it has downloaded stays.
func KeepHome(dir, name string) (*KeptHome, error) {
	if !filepath.IsLocal(name) || filepath.Base(name) != name {
		return nil, fmt.Errorf("sandbox: %q is no name of a home", name)
	}
	k := &KeptHome{dir: filepath.Join(dir, name)}
	if err := os.MkdirAll(k.Dir(), 0o700); err != nil {
		return nil, fmt.Errorf("sandbox: home: %w", err)
	}
	if !k.Ready() {
		if lock, err := lockDir(k.dir); err == nil { // else another host is at it
			k.tidy()
			lock.Close()
		}
	}
	var err error
	for range homeTries {
		if k.lock, err = k.share(); err == nil {
			now := time.Now()
			_ = os.Chtimes(k.dir, now, now) // it is used; at worst it goes earlier
			return k, nil
		}
		time.Sleep(homePause)
	}
	return nil, fmt.Errorf("sandbox: home: another host is removing it: %w", err)
}

// How long a home is waited for that another host tidies or removes.
const (
	homeTries = 100
	homePause = 20 * time.Millisecond
)

// share takes the folder, which may be gone by then.
func (k *KeptHome) share() (*os.File, error) {
	if err := os.MkdirAll(k.Dir(), 0o700); err != nil {
		return nil, err
	}
	lock, err := shareDir(k.dir)
	if err != nil {
		return nil, err
	}
	mine, err := lock.Stat()
	there, gone := os.Lstat(k.Dir())
	now, failed := os.Lstat(k.dir)
	if err := errors.Join(err, gone, failed); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	if !os.SameFile(mine, now) || !there.IsDir() {
		return nil, errors.Join(fs.ErrNotExist, lock.Close())
	}
	return lock, nil
}

// tidy removes the trees that npm unpacks in place, which it takes for whole.
func (k *KeptHome) tidy() {
	if root, err := os.OpenRoot(k.Dir()); err == nil {
		_ = root.RemoveAll(filepath.Join(".npm", "_npx")) // npm says what is wrong with what stays
		root.Close()
	}
}

// Dir is the home itself.
func (k *KeptHome) Dir() string { return filepath.Join(k.dir, "home") }

// Ready reports whether a start in it went well, and none has failed since.
func (k *KeptHome) Ready() bool {
	_, err := os.Lstat(filepath.Join(k.dir, "ready"))
	return err == nil
}

// SetReady notes how a start in it went.
func (k *KeptHome) SetReady(ready bool) error {
	path := filepath.Join(k.dir, "ready")
	if ready {
		return os.WriteFile(path, nil, 0o600)
	}
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Size is how many bytes it holds, as far as that can be seen.
func (k *KeptHome) Size() int64 { return usage(k.Dir(), DefaultDiskBytes) }

// Close says that it is not used any more. It may be called again.
func (k *KeptHome) Close() { k.lock.Close() }

// HomeState tells how a home is that may be there: whether a start in it went well, and
// whether a host has it open.
func HomeState(dir, name string) (ready, used bool) {
	k := &KeptHome{dir: filepath.Join(dir, name)}
	if lock, err := lockDir(k.dir); err == nil {
		lock.Close()
	} else {
		used = !errors.Is(err, fs.ErrNotExist)
	}
	return k.Ready(), used
}

// RemoveHomes removes the homes in a folder that were not used for KeepHomesFor, and those
// beyond MaxHomes, unless a host has them open. What ctx leaves no time for goes later.
func RemoveHomes(ctx context.Context, dir string, now time.Time) {
	entries, _ := os.ReadDir(dir) // none where there is none
	var homes []fs.FileInfo
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.IsDir() && ownedByUs(info) {
			homes = append(homes, info)
		}
	}
	slices.SortFunc(homes, func(a, b fs.FileInfo) int {
		return cmp.Or(b.ModTime().Compare(a.ModTime()), cmp.Compare(a.Name(), b.Name()))
	})
	for i, info := range homes {
		if i < MaxHomes && now.Sub(info.ModTime()) < KeepHomesFor {
			continue
		}
		path := filepath.Join(dir, info.Name())
		if lock, err := lockDir(path); err == nil {
			_ = RemoveTree(ctx, path) // the next host tries again
			lock.Close()
		}
	}
}
