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
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// RemoveFor is how long the end of an episode, a launcher or a job may take to remove
	// what children left; what stays goes with a later start.
	RemoveFor = time.Second

	removeBatch   = 256  // names read at once
	removePending = 4096 // folders that are remembered; more are found again
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
	root, err := openOwn(parent, filepath.Base(dir), 0o700)
	if err != nil {
		return err
	}
	r := remover{ctx: ctx, root: root, mark: "a2e-gone-" + rand.Text() + "-"}
	if err := errors.Join(r.run(), root.Close()); err != nil {
		return err
	}
	return parent.Remove(filepath.Base(dir))
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
		return nil, &fs.PathError{Op: "open", Path: name, Err: errors.New("it is no folder")}
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
	ctx     context.Context
	root    *os.Root
	mark    string // begins the names of folders that were moved up; no child can know it
	next    int
	pending []string // folders that were moved up
	done    int      // what was removed or moved; tells whether another look is worth it
	failed  error    // the first of the present look
}

// run empties root: it looks again as long as that brings something.
func (r *remover) run() error {
	for {
		before := r.done
		r.failed = nil
		err := r.look(r.root, "")
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

// look removes what is in one folder, or moves it up. at is its name in root, "" for
// root itself.
func (r *remover) look(dir *os.Root, at string) error {
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
			r.entry(dir, at, name)
			if at == "" {
				r.drain()
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// entry removes one name, or puts it in line if it is a folder with something in it.
func (r *remover) entry(dir *os.Root, at, name string) {
	err := dir.Remove(name)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		r.done++
		return
	}
	if at == "" && strings.HasPrefix(name, r.mark) {
		r.await(name)
		return
	}
	up := r.mark + strconv.Itoa(r.next)
	r.next++
	if r.moveUp(filepath.Join(at, name), up) != nil {
		r.failed = cmp.Or(r.failed, err)
		return
	}
	r.done++
	r.await(up)
}

// moveUp puts a folder of root, or one that lies in a folder of it, into root.
func (r *remover) moveUp(name, up string) error {
	err := r.root.Rename(name, up)
	if errors.Is(err, fs.ErrPermission) && r.root.Chmod(name, 0o700) == nil { // moving a folder writes to it
		err = r.root.Rename(name, up)
	}
	return err
}

// await puts a folder of root in line.
func (r *remover) await(name string) {
	if len(r.pending) < removePending {
		r.pending = append(r.pending, name)
	}
}

// drain removes the folders in line, and those that come up out of them.
func (r *remover) drain() {
	for len(r.pending) > 0 && r.ctx.Err() == nil {
		last := len(r.pending) - 1
		name := r.pending[last]
		r.pending = r.pending[:last]
		err := r.folder(name) // which may fail within as well
		r.failed = cmp.Or(r.failed, err)
	}
}

// folder removes one that was moved up. The next look at root finds what is left of it.
func (r *remover) folder(name string) error {
	dir, err := openOwn(r.root, name, 0o700)
	if err != nil {
		return err
	}
	if err := errors.Join(r.look(dir, name), dir.Close()); err != nil || r.ctx.Err() != nil {
		return err
	}
	err = r.root.Remove(name)
	if err == nil {
		r.done++
	}
	return err
}
