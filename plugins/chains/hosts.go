package chains

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"a2e/host/private"
	"a2e/host/store"
)

const (
	hostsFolder = "chains"
	hostsSuffix = ".lock"
	strayLock   = time.Minute // age from which the file of a dead host is removed

	// usualLease is how long a host on another machine has its journals after it was last heard of, by the
	// clock of the store, in seconds.
	usualLease = 30
)

// hosts tells which hosts live: each holds the lock of a file of its own beside the store,
// which the system gives back when the process ends, however it does. Where the store is a server, hosts
// on other machines are known by the leases of their journals alone.
type hosts struct {
	mu      sync.Mutex // guards the fields below
	own     string     // "" until it is needed
	lock    *os.File   // nil where the store is in memory
	left    int        // journals that say that this host runs them still
	running map[int64]bool
	ended   bool // the lock goes with the last chain that runs

	late  sync.WaitGroup  // writes of ends that the store did not take at once
	open  context.Context // until the plugin closes
	close context.CancelFunc
	lease int           // see usualLease; never changed
	again time.Duration // between those writes; never changed
}

// name returns this plugin's own name; "" = it has none yet.
func (o *hosts) name() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.own
}

// begin makes this plugin's name and takes its lock, unless the store is in memory.
func (o *hosts) begin(tx *store.Tx) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.own != "" {
		return nil
	}
	name := uuid.NewString()
	if dir := tx.Dir(); dir != "" {
		d, err := private.MakeSub(dir, hostsFolder)
		if err != nil {
			return err
		}
		defer d.Close()
		if err := sweep(tx, d); err != nil {
			return err
		}
		file, err := d.Open(name+hostsSuffix, os.O_RDWR|os.O_CREATE|os.O_EXCL)
		if err != nil {
			return err
		}
		if ok, err := private.TryLock(file); err != nil || !ok {
			return errors.Join(errors.New("the lock of the host cannot be taken"), err, file.Close())
		}
		o.lock = file
	}
	o.own = name
	return nil
}

// sweep removes the files of hosts that are dead, and ends their leases.
func sweep(tx *store.Tx, d *private.Dir) error {
	names, _ := d.Names()
	for _, name := range names {
		info, err := d.Lstat(name)
		if err != nil || !strings.HasSuffix(name, hostsSuffix) || time.Since(info.ModTime()) < strayLock {
			continue
		}
		if used, err := held(d, name); err != nil || used {
			continue
		}
		if _, err := tx.Exec("UPDATE chains_journals SET leased_until = 0 WHERE owner = $1", strings.TrimSuffix(name,
			hostsSuffix)); err != nil {
			return err
		}
		_ = d.Remove(name) // another host may have been faster
	}
	return nil
}

// held reports whether a host holds the lock of a file.
func held(d *private.Dir, name string) (bool, error) {
	file, err := d.Open(name, os.O_RDWR)
	if err != nil {
		return false, err
	}
	defer file.Close()
	free, err := private.TryShare(file)
	return !free, err
}

// lives reports whether the owner of a journal lives: by its lock, where it has one beside the store, or
// else by its lease.
func (h *head) lives(dir string) (bool, error) {
	if h.owner == "" || dir == "" {
		return h.owner != "" && h.leased, nil
	}
	d, err := private.OpenDir(filepath.Join(dir, hostsFolder))
	if err == nil {
		defer d.Close()
		used, err := held(d, h.owner+hostsSuffix)
		if !errors.Is(err, fs.ErrNotExist) {
			return used, err
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	return h.leased, nil
}

// runs reports whether somebody runs a journal that says it is run.
func (o *hosts) runs(dir string, h *head) (bool, error) {
	o.mu.Lock()
	own, running := h.owner != "" && h.owner == o.own, o.running[h.number]
	o.mu.Unlock()
	if own {
		return running, nil
	}
	return h.lives(dir)
}

// mark notes whether this plugin runs a journal.
func (o *hosts) mark(number int64, running bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.running == nil {
		o.running = map[int64]bool{}
	}
	if o.running[number] = true; !running {
		delete(o.running, number)
	}
	_ = o.unlockLocked() // a file that stays tells that this host is dead
}

// later writes the end of a journal until the store takes it, or the plugin closes: so long it says that this
// host runs it.
func (o *hosts) later(write func(context.Context) error) {
	left := func(n int) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.left += n
	}
	left(1)
	if o.open.Err() != nil {
		return // nobody waits for it any more
	}
	o.late.Go(func() {
		for {
			select {
			case <-time.After(o.again):
			case <-o.open.Done():
				return
			}
			if write(o.open) == nil {
				left(-1)
				return
			}
		}
	})
}

// end gives the lock back once no chain runs any more, at the latest when the process ends.
func (o *hosts) end() error {
	o.close()
	o.late.Wait()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = true
	return o.unlockLocked()
}

// unlockLocked gives the lock back where it is time, and takes the file away, unless it is to tell that
// this host is dead: without it a journal would be that of another machine, for as long as its lease.
func (o *hosts) unlockLocked() error {
	if !o.ended || o.lock == nil || len(o.running) > 0 {
		return nil
	}
	var err error
	if o.left == 0 {
		err = os.Remove(o.lock.Name())
	}
	err = errors.Join(err, o.lock.Close())
	o.lock = nil
	return err
}
