package cli

import (
	"os"

	"golang.org/x/sys/unix"
)

// pipeSize is the buffer size to ask for on each side, so that messages of a megabyte pass at once.
const pipeSize = 1 << 20

// peerClosed is the event of a socket whose other end has stopped writing.
const peerClosed = unix.POLLRDHUP

func dup2(from, to int) error { return unix.Dup3(from, to, 0) }

// enlargePipes asks for larger buffers if the streams are pipes. This only makes them faster, so
// errors are ignored.
func enlargePipes(files ...*os.File) {
	for _, f := range files {
		_, _ = unix.FcntlInt(f.Fd(), unix.F_SETPIPE_SZ, pipeSize)
	}
}
