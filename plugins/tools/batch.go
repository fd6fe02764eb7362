package tools

import (
	"io/fs"
	"os"
	"slices"
	"sync/atomic"
)

const (
	batchFiles   = 32 // of one folder, at most
	batchesAhead = 4  // that are found or searched before earlier ones are done
)

// fileBatch is a number of files of one folder, in the order of the walk. done is closed when all are searched.
type fileBatch struct {
	folder  *sharedFolder
	entries []fs.DirEntry
	files   []*fileSearch
	done    chan struct{}
}

// sharedFolder is a folder in which the walk and the workers open files. The last user that releases it closes it.
type sharedFolder struct {
	dir   *os.Root
	users atomic.Int32
}

func (f *sharedFolder) release() error {
	if f.users.Add(-1) > 0 {
		return nil
	}
	return f.dir.Close()
}

// batchFeed gathers the files of a walk and sends them in batches to the workers and, in order, to searchTree.
type batchFeed struct {
	unsearched, ordered chan *fileBatch
	open                []*sharedFolder // the folders with files on the path of the walk, the innermost last
	next                *fileBatch      // the batch being filled; nil = none
}

func newBatchFeed() *batchFeed {
	return &batchFeed{unsearched: make(chan *fileBatch, batchesAhead), ordered: make(chan *fileBatch, batchesAhead)}
}

// add adds a file of a folder.
func (b *batchFeed) add(dir *os.Root, d fs.DirEntry, one *fileSearch) {
	if b.next != nil && (b.next.folder.dir != dir || len(b.next.files) == batchFiles) {
		b.pass()
	}
	if b.next == nil {
		b.next = &fileBatch{folder: b.folder(dir), done: make(chan struct{})}
		b.next.folder.users.Add(1)
	}
	b.next.entries, b.next.files = append(b.next.entries, d), append(b.next.files, one)
}

// folder returns the shared folder of dir, and makes it at the first file of dir.
func (b *batchFeed) folder(dir *os.Root) *sharedFolder {
	for _, f := range slices.Backward(b.open) {
		if f.dir == dir {
			return f
		}
	}
	f := &sharedFolder{dir: dir}
	f.users.Add(1) // the walk
	b.open = append(b.open, f)
	return f
}

// pass sends the batch. The send cannot block forever: the workers and searchTree receive until the feed is closed.
func (b *batchFeed) pass() {
	if b.next != nil {
		b.unsearched <- b.next
		b.ordered <- b.next
		b.next = nil
	}
}

// leave releases a folder when the walk is done with it.
func (b *batchFeed) leave(dir *os.Root) error {
	if n := len(b.open); n > 0 && b.open[n-1].dir == dir {
		b.pass()
		f := b.open[n-1]
		b.open = b.open[:n-1]
		return f.release()
	}
	return dir.Close()
}

// close ends the feed. The folder where the walk began stays open.
func (b *batchFeed) close() {
	b.pass()
	close(b.unsearched)
	close(b.ordered)
}
