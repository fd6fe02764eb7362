package checkpoint

import (
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// watcher tells which names changed since it was asked last, so that only they are looked at. The
// kernel notes a change before the call that makes it returns. What it cannot tell (an overflow, a
// file system that others change too) has the whole workspace looked at.
type watcher struct {
	dir string // the workspace
	fd  int

	mu    sync.Mutex // guards the fields below
	paths map[int32]string
	ids   map[string]int32 // the other way round
}

const (
	watched = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_MODIFY | unix.IN_CLOSE_WRITE | unix.IN_ATTRIB |
		unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR | unix.IN_DONT_FOLLOW | unix.IN_EXCL_UNLINK
	maxWatches = 100_000
)

var errWatches = errors.New("there are more folders than are watched")

// newWatcher watches nothing yet; nil = the file system of the workspace is none whose changes
// the kernel always knows of.
func newWatcher(dir string) *watcher {
	var st unix.Statfs_t
	known := []int64{unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.TMPFS_MAGIC, unix.OVERLAYFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC}
	if unix.Statfs(dir, &st) != nil || !slices.Contains(known, int64(st.Type)) {
		return nil
	}
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		return nil
	}
	return &watcher{dir: dir, fd: fd, paths: make(map[int32]string), ids: make(map[string]int32)}
}

func (w *watcher) close() { _ = unix.Close(w.fd) }

// add watches a folder, before it is read; it may be watched already. The error says that not all
// folders can be.
func (w *watcher) add(path string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.ids[path]; ok {
		return nil
	}
	if len(w.ids) >= maxWatches {
		return errWatches
	}
	id, err := unix.InotifyAddWatch(w.fd, w.dir+"/"+path, watched)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil // it has gone; its own folder tells
	} else if err != nil {
		return os.NewSyscallError("inotify_add_watch", err)
	}
	if before, ok := w.paths[int32(id)]; ok { // a folder that was moved keeps its id
		delete(w.ids, before)
	}
	w.paths[int32(id)], w.ids[path] = path, int32(id)
	return nil
}

// has reports whether a folder is watched.
func (w *watcher) has(path string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, ok := w.ids[path]
	return ok
}

// remove watches a folder no more that has gone from its path.
func (w *watcher) remove(path string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if id, ok := w.ids[path]; ok {
		delete(w.ids, path)
		if w.paths[id] == path {
			delete(w.paths, id)
			_, _ = unix.InotifyRmWatch(w.fd, uint32(id))
		}
	}
}

// changed returns the names that changed, by folder; those of a folder are nil where all in it
// may have. ok is false where that is not known.
func (w *watcher) changed() (names map[string][]string, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	names = make(map[string][]string)
	buf := make([]byte, 64<<10)
	for {
		n, err := unix.Read(w.fd, buf)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return names, true
		case err != nil || n <= 0:
			return nil, false
		}
		for rest := buf[:n]; len(rest) >= unix.SizeofInotifyEvent; {
			event := (*unix.InotifyEvent)(unsafe.Pointer(&rest[0]))
			name := rest[unix.SizeofInotifyEvent : unix.SizeofInotifyEvent+event.Len]
			rest = rest[unix.SizeofInotifyEvent+event.Len:]
			if !w.noteLocked(event, strings.TrimRight(string(name), "\x00"), names) {
				return nil, false
			}
		}
	}
}

func (w *watcher) noteLocked(event *unix.InotifyEvent, name string, names map[string][]string) (ok bool) {
	const lost = unix.IN_Q_OVERFLOW | unix.IN_UNMOUNT
	path, known := w.paths[event.Wd]
	switch {
	case event.Mask&lost != 0, known && path == "" && event.Mask&(unix.IN_MOVE_SELF|unix.IN_DELETE_SELF) != 0:
		return false
	case !known:
	case event.Mask&unix.IN_IGNORED != 0: // the folder has gone; another may have its path
		delete(w.paths, event.Wd)
		if w.ids[path] == event.Wd {
			delete(w.ids, path)
		}
		names[path] = nil
		dir, base := split(path)
		note(names, dir, base)
	case event.Mask&unix.IN_MOVE_SELF != 0:
		for below, id := range w.ids { // whatever gets these paths is watched anew
			if below == path || strings.HasPrefix(below, path+"/") {
				delete(w.ids, below)
				delete(w.paths, id)
				_, _ = unix.InotifyRmWatch(w.fd, uint32(id))
			}
		}
		dir, base := split(path)
		note(names, dir, base)
	case name != "":
		note(names, path, name)
	}
	return true
}

func note(names map[string][]string, dir, name string) {
	if all, there := names[dir]; !there || all != nil {
		names[dir] = append(all, name)
	}
}
