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
	// DefaultDiskBytes is what the folders of children may hold where nothing else is said.
	DefaultDiskBytes = 8 << 30

	diskEvery    = time.Second
	endWithin    = 5 * time.Second // for the end of trees that were killed
	gonePrefix   = "gone-"
	diskPace     = 10      // a look takes at most one part in so many of the time
	leastFile    = 4 << 10 // bytes that a file or folder counts for at least
	maxDiskDepth = 128     // folders in folders; what is deeper is not looked at and counts as full
)

// ErrDisk is Wait's error for a tree that was ended because the folders of children were
// too full.
var ErrDisk = errors.New("sandbox: the children's home and temporary folders hold more than children.disk_bytes of " +
	"the config allows, or folders nested too deep; the fullest of them is emptied")

// Disk bounds what the children of some launchers leave in their homes, temporary and
// scratch folders, and in the folders of Options.Counted, all together. While children run
// each launcher looks every second, more seldom where a look takes long, and once more
// after the last one has ended; children can write for so long before they are stopped.
// Files without a name, which are gone with the process, are not seen, nor is what lies in
// the workspace.
type Disk struct {
	limit int64

	mu   sync.Mutex
	used map[*Launcher][]place // guarded by mu
}

// NewDisk makes a bound in bytes; 0 is DefaultDiskBytes, a negative one bounds nothing.
func NewDisk(limit int64) *Disk {
	return &Disk{limit: cmp.Or(limit, DefaultDiskBytes), used: make(map[*Launcher][]place)}
}

// place is a folder that children fill.
type place struct {
	path  string
	bytes int64
	keep  bool // it is not emptied: it is not the sandbox's own
}

// set notes what a launcher's folders hold, and tells which folder of which launcher is
// the fullest of all if they hold too much.
func (d *Disk) set(l *Launcher, places []place) (of *Launcher, fullest place) {
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
		return nil, place{}
	}
	return of, fullest
}

// watchLocked looks after the disk as long as children run.
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
		last := len(l.running) == 0 // what begins later has a watch of its own
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

// measure looks at the folders: those in the private folder, the homes of running children
// that stay, and those to be counted.
func (l *Launcher) measure() []place {
	left := l.disk.limit
	var all []place
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
		all = append(all, place{path, size, keep})
	}
	if made := l.env.home.folder(); made != "" {
		entries, _ := os.ReadDir(made) // nobody but the host writes there
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

// stopFilling ends the trees that have a folder as theirs, and puts an empty one in its
// place. None begins meanwhile: it would have the old one.
func (l *Launcher) stopFilling(p place) {
	l.starts.Lock()
	defer l.starts.Unlock()
	late := time.After(endWithin)
	for _, proc := range l.endAllOf(p) {
		select {
		case <-proc.done:
		case <-late: // the next look tries again
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
		return // it was removed by itself
	}
	l.start.forget()
	_ = os.Mkdir(p.path, 0o700) // else the next child cannot start, and says so
	l.env.home.clean.Do(func(ctx context.Context) { _ = RemoveTree(ctx, gone) })
}

// endAllOf kills the trees that have a folder as theirs.
func (l *Launcher) endAllOf(p place) (ended []*Process) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for proc := range l.running {
		if p.keep || proc.kept == p.path || slices.Contains(proc.places, p.path) {
			proc.fail(ErrDisk)
			ended = append(ended, proc)
			if proc.kept == p.path && !slices.Contains(l.full, p.path) {
				l.full = append(l.full, p.path) // which is looked at also when nothing runs in it any more
			}
		}
	}
	return ended
}

// placesOf finds the folders under the private one that a child has as its home and for
// temporary files, by its environment.
func (l *Launcher) placesOf(env []string) (all []string) {
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

// usage adds up what is in a folder, until it is more than a limit. It holds a few
// descriptors for each level, follows no link and takes what changes meanwhile as it is.
func usage(dir string, limit int64) int64 {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return 0
	}
	c := diskCounter{left: limit, seen: make(map[fileID]bool)}
	c.folder(root, 0)
	return limit - c.left
}

// diskCounter counts down what files take.
type diskCounter struct {
	left int64
	seen map[fileID]bool // files with several names
}

// folder counts what is in one folder, and closes it.
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
	// RemoveFor is how long the end of an episode, a launcher or a job may take to remove
	// what children left; what stays goes with a later start.
	RemoveFor = time.Second

	removeBatch = 256 // names read at once
)

// RemoveTree removes a folder with all that children left in it, folders without any
// rights as well, until ctx ends; it can be called again for what is left. Folders in
// folders are moved up into dir one by one, so their depth costs neither descriptors nor
// long paths. No link is followed, and no mount point entered: the system moves none.
func RemoveTree(ctx context.Context, dir string) error {
	parent, err := os.OpenRoot(filepath.Dir(dir))
	if err != nil {
		return err
	}
	defer parent.Close()
	return RemoveIn(ctx, parent, filepath.Base(dir))
}

// RemoveIn is RemoveTree for a folder by its name in an open one.
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

// RemoveSoon is RemoveTree for at most RemoveFor.
func RemoveSoon(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), RemoveFor)
	defer cancel()
	return RemoveTree(ctx, dir)
}

// Cleaner removes what nobody waits for, one job after the other. The zero value works.
type Cleaner struct {
	turn sync.Mutex // held by the job that runs

	mu    sync.Mutex
	ctx   context.Context    // of the jobs, nil before the first one; guarded by mu
	stop  context.CancelFunc // guarded by mu
	ended bool               // guarded by mu
	jobs  sync.WaitGroup     // Add under mu
}

// Do runs a job in the background, with a context that ends with End. None begins after
// End.
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

// End lets the jobs go on for at most a time, stops those that are left and waits for
// them.
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

// openOwn opens a folder that is no link, and gives its owner rights to it: without them it
// would hide what is in it.
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
	mark   string // begins the names of folders that were moved up; no child can know it
	next   int
	done   int   // what was removed or moved; reports whether another look is worth it
	failed error // the first of the present look
}

// run empties root: it looks again as long as that brings something.
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

// each calls do for the names in a folder, until ctx ends.
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

// entry removes a name of root: of a folder first what is in it, the folders there by moving
// them up, where this look or the next one finds them.
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

// below removes what lies in a folder of root, or moves it up.
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

// did counts what went well.
func (r *remover) did(err error) error {
	if err == nil {
		r.done++
	}
	return err
}
