package sandbox

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"slices"
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
var ErrDisk = errors.New("sandbox: the children's home and temporary folders hold more than children.disk_bytes of the config allows, or folders nested too deep; the fullest of them is emptied")

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
	var kept []string
	l.mu.Lock()
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
