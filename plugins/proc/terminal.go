package proc

import (
	"errors"
	"io"
	"os"
	"time"

	"a2e/protocol"
)

// The size of a terminal whose spawn does not say.
const (
	defaultCols = 80
	defaultRows = 24
)

const (
	// drainTime bounds how long the last output of a terminal is awaited, where
	// something out of reach may hold it open.
	drainTime = time.Second
	// lateTime is for a read of what is there by then, lateBytes how much that may be:
	// more than a terminal holds.
	lateTime  = 100 * time.Millisecond
	lateBytes = 256 << 10
)

// terminal is the host's side of a pty.
type terminal struct {
	master *os.File
	copied chan struct{} // closed when all output was passed on
}

// newTerminal opens a pty. The slave is for the child, and the caller's to close.
func newTerminal(size protocol.ProcTerminal) (t *terminal, slave *os.File, err error) {
	master, slave, err := openTerminal()
	if err != nil {
		return nil, nil, err
	}
	t = &terminal{master: master, copied: make(chan struct{})}
	if size.Cols == 0 {
		size.Cols = defaultCols
	}
	if size.Rows == 0 {
		size.Rows = defaultRows
	}
	if err := t.resize(size); err != nil {
		return nil, nil, errors.Join(err, master.Close(), slave.Close())
	}
	return t, slave, nil
}

// copy passes output on until the last process has closed the terminal, or finish has
// waited long enough.
func (t *terminal) copy(to io.Writer) {
	defer close(t.copied)
	buf := make([]byte, blockSize)
	late := false
	for left := lateBytes; left > 0; {
		if late {
			_ = t.master.SetReadDeadline(time.Now().Add(lateTime)) // it is open
		}
		n, err := t.master.Read(buf)
		_, _ = to.Write(buf[:n]) // a backlog takes all, if slowly
		switch {
		case late && err == nil:
			left -= n
		case !late && errors.Is(err, os.ErrDeadlineExceeded):
			late = true
		case err != nil:
			return
		}
	}
}

// finish is called when the process is over: it waits for the last output.
func (t *terminal) finish() {
	// Neither fails on a terminal that is open.
	_ = t.master.SetWriteDeadline(time.Unix(1, 0))
	_ = t.master.SetReadDeadline(time.Now().Add(drainTime))
	<-t.copied
	t.master.Close()
}

// resize changes the size; what is 0 stays as it is.
func (t *terminal) resize(size protocol.ProcTerminal) error {
	conn, err := t.master.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = conn.Control(func(fd uintptr) { failed = setSize(fd, uint16(size.Cols), uint16(size.Rows)) })
	return errors.Join(err, failed)
}

// checkSize returns what is wrong with the size of a terminal.
func checkSize(size protocol.ProcTerminal) (problems []protocol.FieldError) {
	for _, f := range []struct {
		name  string
		value int
	}{{"cols", size.Cols}, {"rows", size.Rows}} {
		if f.value < 0 || f.value > 1<<16-1 {
			problems = append(problems, protocol.FieldError{Path: "/metadata/" + f.name, Message: "should be from 1 to 65535"})
		}
	}
	return problems
}
