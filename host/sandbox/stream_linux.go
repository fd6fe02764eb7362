package sandbox

import (
	"time"

	"golang.org/x/sys/unix"
)

// stop ends run after what is in the pipe now.
func (p *pump) stop() {
	// The one error is a pipe that run has closed already.
	_ = p.r.SetReadDeadline(time.Unix(1, 0))
}

// rest passes on what is in the pipe now, without waiting for more.
func (p *pump) rest(buf []byte) {
	if p.r.SetReadDeadline(time.Time{}) != nil {
		return
	}
	conn, err := p.r.SyscallConn()
	if err != nil {
		return
	}
	left := -1
	for left != 0 {
		n := 0
		readErr := conn.Read(func(fd uintptr) bool {
			if left < 0 {
				left, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ)
			}
			if err == nil && left > 0 {
				n, err = unix.Read(int(fd), buf[:min(len(buf), left)])
			}
			return true
		})
		if readErr != nil || err != nil || n <= 0 || !p.pass(buf[:n]) {
			return
		}
		left -= n
	}
}
