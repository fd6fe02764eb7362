package cli

import (
	"os"

	"golang.org/x/sys/unix"
)

// pipeSize is the buffer asked for on each side: messages of a megabyte then
// pass in one go.
const pipeSize = 1 << 20

// peerClosed is the event of a socket whose other end writes no more.
const peerClosed = unix.POLLRDHUP

func dup2(from, to int) error { return unix.Dup3(from, to, 0) }

// enlargePipes asks for larger buffers where the streams are pipes. It is only
// for speed: a refusal changes nothing.
func enlargePipes(files ...*os.File) {
	for _, f := range files {
		_, _ = unix.FcntlInt(f.Fd(), unix.F_SETPIPE_SZ, pipeSize)
	}
}
