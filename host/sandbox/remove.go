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
	"sync"
	"time"
)

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
