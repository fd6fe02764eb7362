package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// target is one host to measure.
type target struct {
	name     string
	command  []string // the file's full path, then its arguments
	dialect  *dialect
	dir      string        // where it runs
	home     bool          // dir is its home as well
	logs     string        // folder for what it says on stderr
	pipe     int           // bytes of each pipe's buffer; <= 0 leaves the system's own
	patience time.Duration // see usualPatience
}

// child is one running process of a target.
type child struct {
	*target
	cmd     *exec.Cmd
	in      *os.File
	answers *lines
	logs    *os.File // its stderr
	ended   func() bool
	slow    atomic.Bool // it was killed because a time limit passed
	reaped  bool
}

// usualPatience bounds what is outside of the timed part of a case: each single
// exchange, and the end of the process.
const usualPatience = 20 * time.Second

// lookUp finds a command as a shell would, and makes its path independent of
// the folder the host will run in.
func lookUp(name string) (string, error) {
	file, err := exec.LookPath(name)
	if err != nil {
		return "", err
	}
	return filepath.Abs(file)
}

// start spawns the target. The child is killed when ctx ends.
func (t *target) start(ctx context.Context) (c *child, err error) {
	var pipes [4]*os.File // stdin of the child, our end; our end, stdout of the child
	defer func() {
		if err != nil {
			closeAll(pipes[:])
		}
	}()
	if pipes[0], pipes[1], err = os.Pipe(); err != nil {
		return nil, err
	}
	if pipes[2], pipes[3], err = os.Pipe(); err != nil {
		return nil, err
	}
	setPipe(pipes[1], t.pipe)
	setPipe(pipes[2], t.pipe)
	logs, err := os.CreateTemp(t.logs, "stderr-")
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(t.command[0], t.command[1:]...)
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = t.dir, pipes[0], pipes[3], logs
	if t.home {
		cmd.Env = t.strange(os.Environ())
	}
	ownGroup(cmd)
	if err = cmd.Start(); err != nil {
		logs.Close()
		return nil, err
	}
	closeAll([]*os.File{pipes[0], pipes[3]})
	c = &child{target: t, cmd: cmd, in: pipes[1], answers: newLines(pipes[2]), logs: logs}
	c.ended = context.AfterFunc(ctx, func() { killGroup(cmd) })
	return c, nil
}

// strange is the environment of somebody who never used the host before: no
// config, and nothing of the user's is read or written.
func (t *target) strange(env []string) []string {
	env = slices.DeleteFunc(env, func(entry string) bool { return strings.HasPrefix(entry, "A2E_") })
	for _, name := range []string{"HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"} {
		env = append(env, name+"="+t.dir)
	}
	return env
}

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}

// within kills the child if the function it returns is not called in time.
func (c *child) within(limit time.Duration) (stop func()) {
	timer := time.AfterFunc(limit, func() {
		c.slow.Store(true)
		killGroup(c.cmd)
	})
	return func() { timer.Stop() }
}

// exchange sends one request and waits for the next line, which stays valid
// until more is read.
func (c *child) exchange(request []byte) ([]byte, error) {
	if _, err := c.in.Write(request); err != nil {
		return nil, c.explain(err)
	}
	for {
		if line := c.answers.next(); line != nil {
			return line, nil
		}
		if err := c.answers.fill(); err != nil {
			return nil, c.explain(err)
		}
	}
}

// greet opens the session.
func (c *child) greet(d *dialect) error {
	defer c.within(c.patience)()
	answer, err := c.exchange([]byte(d.hello))
	if err != nil {
		return err
	}
	if err := d.ready(answer); err != nil {
		return err
	}
	_, err = io.WriteString(c.in, d.after)
	return err
}

// close ends the session as a parent does, by closing stdin, and waits for the
// end. A line that comes now is an answer too many.
func (c *child) close() error {
	defer c.kill()
	defer c.within(c.patience)()
	if err := c.in.Close(); err != nil {
		return err
	}
	extra := 0
	for {
		for c.answers.next() != nil {
			extra++
		}
		err := c.answers.fill()
		switch {
		case c.slow.Load():
			return fmt.Errorf("it did not end within %v of the end of its input", c.patience)
		case err == io.EOF && extra > 0:
			return fmt.Errorf("%d lines more than requests", extra)
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
	}
}

// kill ends the child at once and frees what it held. It may be called twice.
func (c *child) kill() {
	if c.reaped {
		return
	}
	c.reaped = true
	c.ended()
	killGroup(c.cmd)
	_ = c.cmd.Wait() // how it ended is told by its streams
	closeAll([]*os.File{c.in, c.answers.file, c.logs})
	os.Remove(c.logs.Name())
}

// explain says why a stream of the child ended.
func (c *child) explain(err error) error {
	if c.slow.Load() {
		return errors.New("no answer in time")
	}
	said, _ := os.ReadFile(c.logs.Name())
	if said = bytes.TrimSpace(said); len(said) > 0 {
		return fmt.Errorf("it ended: %w; its last words: %s", err, said[max(0, len(said)-300):])
	}
	return fmt.Errorf("it ended: %w", err)
}
