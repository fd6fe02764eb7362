package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// fleetCase measures how soon a task of the fleet protocol is refused, and how soon its
// worker is at work: from the line TASK_DISPATCH to the first thing that the worker does,
// which is to write to a named pipe. Beside them stand a ping of the same host, and the
// start of the same command without it. A host that does not speak the protocol is left
// out, and so is a system without named pipes.
const fleetCase = "fleet"

const (
	fleetTasks  = 200 // of each way, one after the other
	quickFleet  = 20
	fleetBegins = "begins" // the named pipe, in the workspace
	fleetLimit  = 10 * time.Second
)

// fleetBench is the host under measurement, and the pipe that its worker writes to.
type fleetBench struct {
	dir    string
	in     io.WriteCloser
	out    *bufio.Reader
	begins *os.File
}

// fleetWorker is the command of the worker: it tells that it is at work.
func fleetWorker() []string { return []string{"sh", "-c", "echo >" + fleetBegins} }

// benchFleet runs fleetCase.
func benchFleet(ctx context.Context, r *runner, rep *report) (err error) {
	t := r.targets[0]
	if t.dialect.name != a2eDialect().name {
		return nil
	}
	n := fleetTasks
	if r.opts.Quick {
		n = quickFleet
	}
	rep.Fleet, err = measureFleet(ctx, t, filepath.Join(r.dir, "fleet"), n)
	return err
}

// measureFleet starts the host and times each way n times. The report is nil where the host
// does not speak the fleet protocol.
func measureFleet(ctx context.Context, t *target, dir string, n int) (report *ways, err error) {
	config := filepath.Join(dir, "host.yaml")
	if err := os.MkdirAll(filepath.Join(dir, "work"), 0o700); err != nil {
		return nil, err
	}
	b := &fleetBench{dir: filepath.Join(dir, "work")}
	if b.begins, err = namedPipe(filepath.Join(b.dir, fleetBegins)); b.begins == nil {
		return nil, err
	}
	defer b.begins.Close()
	text := fmt.Sprintf("workspace: %q\nstate_dir: %q\nplugins:\n  - {name: agents, type: multi_agent, metadata: {workers: [{name: w, command: [%q, %q, %q]}]}}\n",
		b.dir, filepath.Join(dir, "state"), fleetWorker()[0], fleetWorker()[1], fleetWorker()[2])
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(n)*time.Second+fleetLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, t.command[0], t.command[1:]...)
	cmd.Dir, cmd.Env, cmd.WaitDelay = dir, append(t.strange(os.Environ()), "A2E_CONFIG="+config), fleetLimit
	if b.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	b.out = bufio.NewReaderSize(out, 64<<10)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	there := b.speaks(cmd)
	defer func() {
		b.in.Close()
		if ended := cmd.Wait(); there {
			err = errors.Join(err, ended)
		}
	}()
	if !there {
		return nil, nil
	}
	report = &ways{Ways: []*way{
		{What: "ping to pong", once: b.ping},
		{What: "TASK_DISPATCH to blocked", once: b.refused},
		{What: "the worker's command by os/exec, to its first action", base: 2, once: b.direct},
		{What: "TASK_DISPATCH to the worker's first action", base: 2, once: b.started},
	}}
	return report, report.measure(ctx, n)
}

// speaks tells whether the host takes tasks. One that is silent over it is ended.
func (b *fleetBench) speaks(cmd *exec.Cmd) bool {
	late := time.AfterFunc(fleetLimit, func() { _ = cmd.Process.Kill() }) // it may have ended
	defer late.Stop()
	line, err := b.exchange(dispatchLine("probe", `"required_capabilities":["none such"]`), `"`)
	if err == nil && bytes.Contains(line, []byte(`"SESSION_ANNOUNCE"`)) {
		line, err = b.await(`"`)
	}
	return err == nil && bytes.Contains(line, []byte(`"TASK_RESULT"`))
}

// dispatchLine makes the line of a task.
func dispatchLine(id, requirements string) string {
	return fmt.Sprintf(`{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"task_id":%q},"requirements":{%s},"brief":"begin"}`, id, requirements) + "\n"
}

// exchange sends a line and reads up to one with a mark in it.
func (b *fleetBench) exchange(line, mark string) ([]byte, error) {
	if _, err := io.WriteString(b.in, line); err != nil {
		return nil, err
	}
	return b.await(mark)
}

// await reads up to a line with a mark in it.
func (b *fleetBench) await(mark string) ([]byte, error) {
	for {
		line, err := b.out.ReadBytes('\n')
		if err != nil || bytes.Contains(line, []byte(mark)) {
			return line, err
		}
	}
}

func (b *fleetBench) ping(context.Context, int) (time.Duration, error) {
	begin := time.Now()
	_, err := b.exchange(`{"type":"ping","id":"p"}`+"\n", `"pong"`)
	return time.Since(begin), err
}

func (b *fleetBench) refused(_ context.Context, n int) (time.Duration, error) {
	begin := time.Now()
	line, err := b.exchange(dispatchLine(fmt.Sprint("refused-", n), `"required_capabilities":["none such"]`), `"TASK_RESULT"`)
	took := time.Since(begin)
	if err == nil && !bytes.Contains(line, []byte(`"blocked"`)) {
		err = fmt.Errorf("the task should be blocked: %s", clip(line))
	}
	return took, err
}

func (b *fleetBench) direct(ctx context.Context, _ int) (time.Duration, error) {
	words := fleetWorker()
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Dir = b.dir
	begin := time.Now()
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	err := b.begun()
	took := time.Since(begin)
	return took, errors.Join(err, cmd.Wait())
}

func (b *fleetBench) started(_ context.Context, n int) (time.Duration, error) {
	begin := time.Now()
	if _, err := io.WriteString(b.in, dispatchLine(fmt.Sprint("task-", n), "")); err != nil {
		return 0, err
	}
	if err := b.begun(); err != nil {
		return 0, err
	}
	took := time.Since(begin)
	line, err := b.await(`"TASK_RESULT"`)
	if err == nil && !bytes.Contains(line, []byte(`"done"`)) {
		err = fmt.Errorf("the task should be done: %s", clip(line))
	}
	return took, err
}

// begun waits until the worker does something.
func (b *fleetBench) begun() error {
	if err := b.begins.SetReadDeadline(time.Now().Add(fleetLimit)); err != nil {
		return err
	}
	_, err := io.ReadFull(b.begins, make([]byte, 1))
	if err != nil {
		return fmt.Errorf("the worker does not begin: %w", err)
	}
	return nil
}
