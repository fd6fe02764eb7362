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

// Home says whose home and temporary folder a child has. What one child leaves there
// another one runs: .bashrc, .npmrc, usercustomize.py. So nothing that a child left is
// found by one that may do more.
type Home string

// The values of Home.
const (
	// HomeByRights is HomeShared for a child without any right beyond those of all:
	// neither network, nor HostEnv, nor Read, nor Write. For others it is HomeOwn.
	HomeByRights Home = ""
	// HomeShared is one folder for all children without network, and another one for
	// those with it. It is for what an agent starts as it likes, and holds no secrets.
	HomeShared Home = "shared"
	// HomeOwn is empty at the start of the child, seen by no other, and goes with it.
	HomeOwn Home = "own"
)

// ownsHome reports whether no other child may have the home of this one.
func (p *Policy) ownsHome() bool {
	more := p.Network != NetworkNone || len(p.HostEnv)+len(p.Read)+len(p.Write) > 0
	return p.Scratch == "" && (p.HomeDir != "" || p.Home == HomeOwn || p.Home == HomeByRights && more)
}

// checkHome tells what is wrong with what the policy says of its home.
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

// ownHome makes the home of a child that has one to itself: its Scratch, which goes with
// the child, and is its temporary folder alone if it has a HomeDir. done is to be called once, after its end.
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

// netFolder holds, in the private folder, what children with network share.
const netFolder = "net"

// of returns HOME and TMPDIR of the children that share them.
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

// homeDir is a private folder that is made when it is first needed: it holds the
// children's HOME, unless that is given, and their temporary files.
type homeDir struct {
	fixed string // the given HOME

	mu   sync.Mutex // guards the fields below
	made string
	lock *os.File // tells other hosts that the folder is in use
	lost int      // how often it was found gone

	clean Cleaner // of scratch folders
	sweep Cleaner // of what other hosts left
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

// folder returns the private folder; "" = there is none.
func (h *homeDir) folder() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.made
}

// privatePrefix begins the name of each private folder.
const privatePrefix = "a2e-home-"

// losses returns how often something of the folder was found gone.
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

// goneLocked reports whether something of the folder was removed: by what cleans folders of
// temporary files, or by a program without a sandbox.
func (h *homeDir) goneLocked() bool {
	for _, name := range []string{".", "home", "tmp"} {
		if info, err := os.Lstat(filepath.Join(h.made, name)); err != nil || !info.IsDir() || !OwnedByUs(info) {
			return true
		}
	}
	return false
}

// mendLocked makes what is gone anew, under the name by which others know it.
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

// staleAfter is how old a private folder must be before it counts as left
// behind: its owner locks it a moment after it was made.
const staleAfter = time.Minute

// removeStale removes the private folders of hosts that were killed, or that ended
// before theirs was empty.
func removeStale(ctx context.Context, temp string) {
	dirs, _ := filepath.Glob(filepath.Join(temp, privatePrefix+"*")) // the one error is a bad pattern
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

// close removes the folder. What it has no time for is left to the next host.
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

// MakeScratch makes an empty folder for the Scratch of one Policy. The caller gives
// it back with Discard; what is left goes with Close, or with the next host.
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
	l.env.home.clean.Do(func(ctx context.Context) { _ = RemoveTree(ctx, scratch) }) // what stays goes with Close
}

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
		return nil, fmt.Errorf("sandbox: %q is not a name of a home", name)
	}
	k := &KeptHome{dir: filepath.Join(dir, name)}
	if err := os.MkdirAll(k.Dir(), 0o700); err != nil {
		return nil, fmt.Errorf("sandbox: home: %w", err)
	}
	if !k.Ready() {
		if lock, err := LockDir(k.dir); err == nil { // else another host is at it
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
	if lock, err := LockDir(k.dir); err == nil {
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
