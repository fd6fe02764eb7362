package sandbox

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// DefaultDiskBytes is how much the folders of children may hold by default.
	DefaultDiskBytes = 8 << 30

	diskEvery    = time.Second
	endWithin    = 5 * time.Second // how long to wait for the end of killed trees
	gonePrefix   = "gone-"
	diskPace     = 10      // measuring takes at most one part in so many of the time
	leastFile    = 4 << 10 // each file or folder counts for at least so many bytes
	maxDiskDepth = 128     // nested folders; a deeper one is not read and counts as full
)

// ErrDisk is Wait's error for a tree that was ended because the folders of children were too full.
var ErrDisk = errors.New("sandbox: the children's home and temporary folders hold more than children.disk_bytes of " +
	"the config allows, or folders nested too deep; the fullest of them is emptied")

// Disk bounds what the children of some launchers leave in their homes, their temporary and scratch folders, and the
// folders of Options.Counted, all together. While children run, each launcher measures every second, less often if
// measuring takes long, and once more after the last child has ended. Until the next measurement children can exceed
// the bound. Files without a name, which vanish with their process, and the workspace are not measured.
type Disk struct {
	limit int64

	mu   sync.Mutex
	used map[*Launcher][]countedDir // guarded by mu
}

// NewDisk makes a bound in bytes; 0 is DefaultDiskBytes, a negative value is no bound.
func NewDisk(limit int64) *Disk {
	return &Disk{limit: cmp.Or(limit, DefaultDiskBytes), used: make(map[*Launcher][]countedDir)}
}

// countedDir is a folder that children fill.
type countedDir struct {
	path  string
	bytes int64
	keep  bool // never emptied, as it is not the sandbox's own folder
}

// set records what a launcher's folders hold. If all folders together hold too much, it returns the
// fullest folder and its launcher; of is nil otherwise.
func (d *Disk) set(l *Launcher, places []countedDir) (of *Launcher, fullest countedDir) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.used[l] = places; places == nil {
		delete(d.used, l)
	}
	var total int64
	for owner, all := range d.used {
		for _, p := range all {
			if total += p.bytes; of == nil || p.bytes > fullest.bytes {
				of, fullest = owner, p
			}
		}
	}
	if total <= d.limit {
		return nil, countedDir{}
	}
	return of, fullest
}

// watchLocked starts the measuring if it does not run; it runs as long as children do.
func (l *Launcher) watchLocked() {
	if l.disk == nil || l.disk.limit < 0 || l.watching {
		return
	}
	l.watching = true
	l.watch.Go(l.watchDisk)
}

func (l *Launcher) watchDisk() {
	pause := diskEvery
	for {
		select {
		case <-time.After(pause):
		case <-l.ending:
			return
		}
		l.mu.Lock()
		last := len(l.running) == 0 // a later child starts a new watchDisk
		if last {
			l.watching = false
		}
		l.mu.Unlock()
		start := time.Now()
		if of, fullest := l.disk.set(l, l.measure()); of != nil {
			of.stopFilling(fullest)
		}
		if last {
			return
		}
		pause = max(diskEvery, diskPace*time.Since(start))
	}
}

// measure returns the sizes of the folders in the private folder, of the kept homes of running
// children, and of the folders in Options.Counted.
func (l *Launcher) measure() []countedDir {
	left := l.disk.limit
	var all []countedDir
	l.mu.Lock()
	kept := slices.Clone(l.full)
	for proc := range l.running {
		if proc.kept != "" && !slices.Contains(kept, proc.kept) {
			kept = append(kept, proc.kept)
		}
	}
	l.mu.Unlock()
	look := func(path string, keep bool) {
		size := usage(path, left)
		left -= size
		all = append(all, countedDir{path, size, keep})
	}
	if made := l.env.home.folder(); made != "" {
		entries, _ := os.ReadDir(made) // only the host writes there
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), gonePrefix) {
				continue // it is being removed
			}
			look(filepath.Join(made, e.Name()), false)
		}
	}
	for _, path := range kept {
		look(path, false)
	}
	for _, path := range l.counted {
		look(path, true)
	}
	return all
}

// stopFilling ends the trees that use a folder, and replaces it by an empty one. No tree starts
// meanwhile, because it would get the old folder.
func (l *Launcher) stopFilling(p countedDir) {
	l.starts.Lock()
	defer l.starts.Unlock()
	late := time.After(endWithin)
	for _, proc := range l.endAllOf(p) {
		select {
		case <-proc.done:
		case <-late: // the next measurement tries again
			return
		case <-l.ending:
			return
		}
	}
	if p.keep {
		return
	}
	l.mu.Lock()
	l.full = slices.DeleteFunc(l.full, func(path string) bool { return path == p.path })
	l.mu.Unlock()
	gone := filepath.Join(filepath.Dir(p.path), gonePrefix+rand.Text())
	if os.Rename(p.path, gone) != nil {
		return // it was removed meanwhile
	}
	l.start.forget()
	_ = os.Mkdir(p.path, 0o700) // if this fails, the next child cannot start and reports it
	l.env.home.clean.Do(func(ctx context.Context) { _ = RemoveTree(ctx, gone) })
}

// endAllOf kills and returns the trees that use a folder; if p.keep is set, all trees.
func (l *Launcher) endAllOf(p countedDir) (ended []*Process) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for proc := range l.running {
		if p.keep || proc.kept == p.path || slices.Contains(proc.places, p.path) {
			proc.fail(ErrDisk)
			ended = append(ended, proc)
			if proc.kept == p.path && !slices.Contains(l.full, p.path) {
				l.full = append(l.full, p.path) // it is measured even when no child uses it any more
			}
		}
	}
	return ended
}

// countedDirsOf returns the folders directly under the private one that hold a child's home and temporary
// files, taken from its environment.
func (l *Launcher) countedDirsOf(env []string) (all []string) {
	made := l.env.home.folder()
	for _, name := range []string{"HOME", "TMPDIR"} {
		rel, err := filepath.Rel(made, lookup(env, name))
		if made == "" || err != nil || !filepath.IsLocal(rel) || rel == "." {
			continue
		}
		first, _, _ := strings.Cut(rel, string(filepath.Separator))
		all = append(all, filepath.Join(made, first))
	}
	return all
}

// usage returns how many bytes a folder holds; it stops when they exceed limit. It uses a few
// descriptors per level, follows no links, and accepts that files change meanwhile.
func usage(dir string, limit int64) int64 {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return 0
	}
	c := diskCounter{left: limit, seen: make(map[fileID]bool)}
	c.folder(root, 0)
	return limit - c.left
}

// diskCounter subtracts the sizes of files from what is left.
type diskCounter struct {
	left int64
	seen map[fileID]bool // files with several names that were counted
}

// folder counts the contents of one open folder, and closes it.
func (c *diskCounter) folder(root *os.Root, depth int) {
	defer root.Close()
	list, err := root.Open(".")
	if err != nil {
		return
	}
	defer list.Close()
	for c.left >= 0 {
		names, err := list.Readdirnames(removeBatch)
		for _, name := range names {
			c.entry(root, name, depth)
			if c.left < 0 {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (c *diskCounter) entry(root *os.Root, name string, depth int) {
	info, err := root.Lstat(name)
	if err != nil {
		return
	}
	bytes, id, several := diskUsage(info)
	if several && !info.IsDir() {
		if c.seen[id] {
			bytes = 0
		}
		c.seen[id] = true
	}
	c.left -= max(bytes, leastFile)
	switch {
	case !info.IsDir():
	case depth >= maxDiskDepth:
		c.left = -1
	default:
		if sub, err := openOwn(root, name, 0o500); err == nil {
			c.folder(sub, depth+1)
		}
	}
}

const (
	// RemoveFor is how long the end of an episode, a launcher or a job may take to remove what children
	// left; a later start removes the rest.
	RemoveFor = time.Second

	removeBatch = 256 // names read at once
)

// RemoveTree removes a folder with everything that children left in it, even folders without any
// permissions. It stops when ctx ends, and can be called again for the rest. Nested folders are moved
// up into dir one by one, so that deep nesting needs neither many descriptors nor long paths. No link
// is followed and no mount point is entered, because the system refuses to move mount points.
func RemoveTree(ctx context.Context, dir string) error {
	parent, err := os.OpenRoot(filepath.Dir(dir))
	if err != nil {
		return err
	}
	defer parent.Close()
	return RemoveIn(ctx, parent, filepath.Base(dir))
}

// RemoveIn is RemoveTree for the folder called name in the open folder parent.
func RemoveIn(ctx context.Context, parent *os.Root, name string) error {
	root, err := openOwn(parent, name, 0o700)
	if err != nil {
		return err
	}
	r := remover{ctx: ctx, root: root, mark: "a2e-gone-" + rand.Text() + "-"}
	if err := errors.Join(r.run(), root.Close()); err != nil {
		return err
	}
	return parent.Remove(name)
}

// RemoveSoon is RemoveTree with a time limit of RemoveFor.
func RemoveSoon(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), RemoveFor)
	defer cancel()
	return RemoveTree(ctx, dir)
}

// Cleaner runs removals for which nobody waits, one after the other. The zero value works.
type Cleaner struct {
	turn sync.Mutex // held by the job that runs

	mu    sync.Mutex
	ctx   context.Context    // context of the jobs; nil before the first job; guarded by mu
	stop  context.CancelFunc // guarded by mu
	ended bool               // guarded by mu
	jobs  sync.WaitGroup     // Add under mu
}

// Do runs a job in the background with a context that End cancels. After End, Do runs nothing.
func (c *Cleaner) Do(job func(context.Context)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return
	}
	if c.ctx == nil {
		c.ctx, c.stop = context.WithCancel(context.Background())
	}
	ctx := c.ctx
	c.jobs.Go(func() {
		c.turn.Lock()
		defer c.turn.Unlock()
		if ctx.Err() == nil {
			job(ctx)
		}
	})
}

// End gives the jobs at most grace to finish, cancels those that are left and waits for them.
func (c *Cleaner) End(grace time.Duration) {
	c.mu.Lock()
	c.ended = true
	stop := c.stop
	c.mu.Unlock()
	if stop == nil {
		return
	}
	late := time.AfterFunc(grace, stop)
	c.jobs.Wait()
	late.Stop()
	stop()
}

// openOwn opens a folder that is not a link, and adds the rights of its owner if they are missing:
// without them its contents could not be seen.
func openOwn(parent *os.Root, name string, rights fs.FileMode) (*os.Root, error) {
	before, err := parent.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !before.IsDir() {
		return nil, &fs.PathError{Op: "open", Path: name, Err: errors.New("it is not a folder")}
	}
	if mode := before.Mode().Perm(); mode&rights != rights {
		if err := parent.Chmod(name, mode|rights); err != nil {
			return nil, err
		}
	}
	root, err := parent.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	if now, err := root.Stat("."); err != nil || !os.SameFile(before, now) {
		return nil, errors.Join(fmt.Errorf("open %s: it was replaced", name), err, root.Close())
	}
	return root, nil
}

// remover empties one folder.
type remover struct {
	ctx    context.Context
	root   *os.Root
	mark   string // prefix of the names of folders that were moved up; no child can guess it
	next   int
	done   int   // removed and moved files; it shows whether another pass is useful
	failed error // the first error of the current pass
}

// run empties root; it makes further passes as long as a pass removes or moves something.
func (r *remover) run() error {
	for {
		before := r.done
		r.failed = nil
		err := r.each(r.root, r.entry)
		switch {
		case r.ctx.Err() != nil:
			return context.Cause(r.ctx)
		case err != nil:
			return err
		case r.done == before:
			return r.failed
		}
	}
}

// each calls do for every name in a folder, until ctx ends.
func (r *remover) each(dir *os.Root, do func(name string)) error {
	list, err := dir.Open(".")
	if err != nil {
		return err
	}
	defer list.Close()
	for {
		names, err := list.Readdirnames(removeBatch)
		for _, name := range names {
			if r.ctx.Err() != nil {
				return nil
			}
			do(name)
		}
		if err != nil {
			return errIfNot(err, io.EOF)
		}
	}
}

func errIfNot(err, expected error) error {
	if errors.Is(err, expected) {
		return nil
	}
	return err
}

// entry removes a name of root. If it is a folder, its contents are removed first; the folders in it
// are moved up to root, where this pass or the next one finds them.
func (r *remover) entry(name string) {
	if r.did(errIfNot(r.root.Remove(name), fs.ErrNotExist)) == nil {
		return
	}
	dir, err := openOwn(r.root, name, 0o700)
	if err == nil {
		err = r.each(dir, func(below string) { r.below(dir, name, below) })
		err = errors.Join(err, dir.Close())
	}
	if err == nil && r.ctx.Err() == nil {
		err = r.did(r.root.Remove(name))
	}
	r.failed = cmp.Or(r.failed, err)
}

// below removes a name in a folder of root, or moves it up to root.
func (r *remover) below(dir *os.Root, folder, name string) {
	err := r.did(errIfNot(dir.Remove(name), fs.ErrNotExist))
	if err == nil {
		return
	}
	r.next++
	from, up := filepath.Join(folder, name), r.mark+strconv.Itoa(r.next)
	moved := r.root.Rename(from, up)
	if errors.Is(moved, fs.ErrPermission) && r.root.Chmod(from, 0o700) == nil { // moving a folder writes to it
		moved = r.root.Rename(from, up)
	}
	if r.did(moved) != nil {
		r.failed = cmp.Or(r.failed, err)
	}
}

// did counts a success and returns the error.
func (r *remover) did(err error) error {
	if err == nil {
		r.done++
	}
	return err
}
