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
	"sync"
	"time"
)

// Home says which home and temporary folder a child has. Files that one child leaves there may be run by another one:
// .bashrc, .npmrc, usercustomize.py. So a child never finds files that a child with fewer rights left.
type Home string

// The values of Home.
const (
	// HomeByRights is HomeShared for a child with only the rights that all children have: without network,
	// HostEnv, Read and Write. For other children it is HomeOwn.
	HomeByRights Home = ""
	// HomeShared is one folder for all children without network, and another one for all children with
	// network. It is for programs that an agent starts freely, and holds no secrets.
	HomeShared Home = "shared"
	// HomeOwn is empty when the child starts, is visible to no other child, and is removed after the child.
	HomeOwn Home = "own"
)

// ownsHome reports whether this child's home is shared with no other child.
func (p *Policy) ownsHome() bool {
	more := p.Network != NetworkNone || len(p.HostEnv)+len(p.Read)+len(p.Write) > 0
	return p.Scratch == "" && (p.HomeDir != "" || p.Home == HomeOwn || p.Home == HomeByRights && more)
}

// checkHome returns an error if the settings of the policy's home contradict each other.
func (p *Policy) checkHome() error {
	switch {
	case p.Scratch != "" && p.Home == HomeShared:
		return errors.New("sandbox: a child with a scratch folder has no shared home")
	case p.HomeDir != "" && (p.Scratch != "" || p.Home == HomeShared):
		return errors.New("sandbox: a child with a home that is kept has no other one")
	case p.Home == HomeShared && p.Network != NetworkNone && len(p.HostEnv) > 0:
		return errors.New("sandbox: a child with network and variables of the host shares no home")
	case p.Home != HomeByRights && p.Home != HomeShared && p.Home != HomeOwn:
		return fmt.Errorf("sandbox: unknown home %q", p.Home)
	}
	return nil
}

// ownHome makes a scratch folder for a child that has its own home, and sets policy.Scratch. The
// folder is its home and temporary folder, or only its temporary folder if it has a HomeDir. The
// caller calls done once, after the child's end.
func (l *Launcher) ownHome(policy *Policy) (done func(), err error) {
	if !policy.ownsHome() {
		return func() {}, nil
	}
	dir, err := l.MakeScratch()
	if err != nil {
		return nil, err
	}
	policy.Scratch = dir
	return func() { l.Discard(dir) }, nil
}

// netFolder is the folder in the private folder that children with network share.
const netFolder = "net"

// of returns HOME and TMPDIR of the children that share their home.
func (h *homeDir) of(network Network) (home, tmp string, err error) {
	home, tmp, err = h.get()
	if err != nil || network == NetworkNone {
		return home, tmp, err
	}
	dir := filepath.Join(filepath.Dir(tmp), netFolder)
	home, tmp = filepath.Join(dir, "home"), filepath.Join(dir, "tmp")
	if err := errors.Join(os.MkdirAll(home, 0o700), os.MkdirAll(tmp, 0o700)); err != nil {
		return "", "", fmt.Errorf("sandbox: private folder: %w", err)
	}
	return home, tmp, nil
}

// homeDir is a private folder that is made at its first use. It holds the children's temporary files,
// and their HOME unless that is given.
type homeDir struct {
	fixed string // the given HOME

	mu   sync.Mutex // guards the fields below
	made string
	lock *os.File // tells other hosts that the folder is in use
	lost int      // how often the folder, or a part of it, was found missing

	clean Cleaner // removes scratch folders
	sweep Cleaner // removes folders that other hosts left
}

// get returns the children's HOME and TMPDIR.
func (h *homeDir) get() (home, tmp string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.made == "" {
		err = h.makeLocked()
	} else if h.goneLocked() {
		err = h.mendLocked()
	}
	if err != nil {
		return "", "", fmt.Errorf("sandbox: private folder: %w; TMPDIR should name a folder on a disk with space "+
			"that the host may write to", err)
	}
	home = h.fixed
	if home == "" {
		home = filepath.Join(h.made, "home")
	}
	return home, filepath.Join(h.made, "tmp"), nil
}

// folder returns the private folder, or "" if there is none.
func (h *homeDir) folder() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.made
}

// privatePrefix is the prefix of the name of each private folder.
const privatePrefix = "a2e-home-"

// losses returns how often the folder, or a part of it, was found missing.
func (h *homeDir) losses() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lost
}

func (h *homeDir) makeLocked() error {
	h.sweep.Do(func(ctx context.Context) { removeStale(ctx, os.TempDir()) })
	dir, err := os.MkdirTemp("", privatePrefix)
	if err != nil {
		return err
	}
	if err = errors.Join(os.Mkdir(filepath.Join(dir, "home"), 0o700), os.Mkdir(filepath.Join(dir, "tmp"),
		0o700)); err == nil {
		h.lock, err = LockDir(dir)
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	h.made = dir
	return nil
}

// goneLocked reports whether the folder, or a part of it, was removed, for example by a cleaner of
// temporary files or by a program without a sandbox.
func (h *homeDir) goneLocked() bool {
	for _, name := range []string{".", "home", "tmp"} {
		if info, err := os.Lstat(filepath.Join(h.made, name)); err != nil || !info.IsDir() || !OwnedByUs(info) {
			return true
		}
	}
	return false
}

// mendLocked makes the missing folders again, under the path that children know.
func (h *homeDir) mendLocked() error {
	h.lost++
	err := os.Mkdir(h.made, 0o700)
	if err == nil {
		h.lock.Close()
		h.lock, err = LockDir(h.made)
	}
	for _, name := range []string{"home", "tmp"} {
		err = cmp.Or(err, os.Mkdir(filepath.Join(h.made, name), 0o700))
		if errors.Is(err, fs.ErrExist) {
			err = nil
		}
	}
	if err == nil && h.goneLocked() {
		err = fmt.Errorf("%s was replaced; remove what is there", h.made)
	}
	return err
}

// staleAfter is the age from which an unlocked private folder counts as abandoned: its owner locks it
// shortly after making it.
const staleAfter = time.Minute

// removeStale removes the private folders of hosts that were killed, or that ended before their folder was empty.
func removeStale(ctx context.Context, temp string) {
	dirs, _ := filepath.Glob(filepath.Join(temp, privatePrefix+"*")) // the only possible error is a bad pattern
	for _, dir := range dirs {
		info, err := os.Lstat(dir)
		if err != nil || !info.IsDir() || !OwnedByUs(info) || time.Since(info.ModTime()) < staleAfter {
			continue
		}
		if lock, err := LockDir(dir); err == nil {
			_ = RemoveTree(ctx, dir) // the next host tries again
			lock.Close()
		}
	}
}

// close removes the folder. The next host removes what remains when the time is up.
func (h *homeDir) close() error {
	h.clean.End(0)
	h.sweep.End(0)
	h.mu.Lock()
	made, lock := h.made, h.lock
	h.made, h.lock = "", nil
	h.mu.Unlock()
	if made == "" {
		return nil
	}
	err := RemoveSoon(made)
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, lock.Close())
}

// MakeScratch makes an empty folder for Policy.Scratch. The caller passes it to Discard; otherwise
// Close, or the next host, removes it.
func (l *Launcher) MakeScratch() (string, error) {
	_, tmp, err := l.env.home.get()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(filepath.Dir(tmp), "scratch-")
	if err != nil {
		return "", fmt.Errorf("sandbox: scratch folder: %w", err)
	}
	return dir, nil
}

// Discard removes a folder of MakeScratch in the background.
func (l *Launcher) Discard(scratch string) {
	l.env.home.clean.Do(func(ctx context.Context) { _ = RemoveTree(ctx, scratch) }) // Close removes the rest
}

// How long unused homes are kept, and how many.
const (
	KeepHomesFor = 30 * 24 * time.Hour // since the last start
	MaxHomes     = 32                  // in one folder; the longest unused go first
)

// KeptHome is a home that is kept between the starts of one program, for Policy.HomeDir. It lies in
// its own folder, next to the host's notes about it:
//
//	DIR/NAME/home   the child's        DIR/NAME/ready   a start in it went well
type KeptHome struct {
	dir  string // DIR/NAME
	lock *os.File
}

// KeepHome opens the home called name in the folder dir, and makes it if it is missing. A home may be
// open several times at once, and is not removed while it is open. Unless the last start in it
// succeeded, half finished installations are removed, so that they start again; downloaded files stay.
func KeepHome(dir, name string) (*KeptHome, error) {
	if !filepath.IsLocal(name) || filepath.Base(name) != name {
		return nil, fmt.Errorf("sandbox: %q is not a name of a home", name)
	}
	k := &KeptHome{dir: filepath.Join(dir, name)}
	if err := os.MkdirAll(k.Dir(), 0o700); err != nil {
		return nil, fmt.Errorf("sandbox: home: %w", err)
	}
	if !k.Ready() {
		if lock, err := LockDir(k.dir); err == nil { // otherwise another host uses it
			k.tidy()
			lock.Close()
		}
	}
	var err error
	for range homeTries {
		if k.lock, err = k.share(); err == nil {
			now := time.Now()
			_ = os.Chtimes(k.dir, now, now) // marks the home as used; if this fails, it is removed earlier
			return k, nil
		}
		time.Sleep(homePause)
	}
	return nil, fmt.Errorf("sandbox: home: another host is removing it: %w", err)
}

// How often, and at which interval, opening a home is tried again while another host tidies or removes it.
const (
	homeTries = 100
	homePause = 20 * time.Millisecond
)

// share takes a shared lock on the home's folder. The error is fs.ErrNotExist if the folder was removed meanwhile.
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

// tidy removes the folders into which npx unpacks packages: npm would take a half unpacked one for complete.
func (k *KeptHome) tidy() {
	if root, err := os.OpenRoot(k.Dir()); err == nil {
		_ = root.RemoveAll(filepath.Join(".npm", "_npx")) // npm reports problems with the rest
		root.Close()
	}
}

// Dir is the path of the home itself.
func (k *KeptHome) Dir() string { return filepath.Join(k.dir, "home") }

// Ready reports whether the last start in this home succeeded.
func (k *KeptHome) Ready() bool {
	_, err := os.Lstat(filepath.Join(k.dir, "ready"))
	return err == nil
}

// SetReady records whether a start in this home succeeded.
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

// Size returns the size of the home in bytes, as far as it can be seen; it counts no further than DefaultDiskBytes.
func (k *KeptHome) Size() int64 { return usage(k.Dir(), DefaultDiskBytes) }

// Close says that the caller does not use the home any more. It may be called again.
func (k *KeptHome) Close() { k.lock.Close() }

// HomeState describes a home that may exist: whether the last start in it succeeded, and whether a host has it open.
func HomeState(dir, name string) (ready, used bool) {
	k := &KeptHome{dir: filepath.Join(dir, name)}
	if lock, err := LockDir(k.dir); err == nil {
		lock.Close()
	} else {
		used = !errors.Is(err, fs.ErrNotExist)
	}
	return k.Ready(), used
}

// RemoveHomes removes the homes in a folder that were not used for KeepHomesFor, and the longest unused ones beyond
// MaxHomes, unless a host has them open. Homes that are left when ctx ends are removed at a later call.
func RemoveHomes(ctx context.Context, dir string, now time.Time) {
	entries, _ := os.ReadDir(dir) // nil if the folder does not exist
	var homes []fs.FileInfo
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.IsDir() && OwnedByUs(info) {
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
		if lock, err := LockDir(path); err == nil {
			_ = RemoveTree(ctx, path) // the next host tries again
			lock.Close()
		}
	}
}
