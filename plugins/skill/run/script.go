package run

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"a2e/host"
	"a2e/host/child"
	"a2e/host/guard/wall"
	"a2e/host/sandbox"
	"a2e/protocol"
)

// openNamed opens the file of a job. It must be a regular file inside the skill's folder, also after
// following links.
func openNamed(j *Job) (*os.File, error) {
	root, err := os.OpenRoot(wall.AsDir(j.Dir))
	if err != nil {
		return nil, errorf("the folder of the skill cannot be opened: %w", wall.Cause(err))
	}
	defer root.Close()
	f, err := root.OpenFile(filepath.FromSlash(j.File), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, errorf("%s cannot be opened: %w; name a file in the skill's folder", j.File, wall.Cause(err))
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("it is not a regular file")
	}
	if err != nil {
		f.Close()
		return nil, errorf("%s cannot be run: %w", j.File, wall.Cause(err))
	}
	return f, nil
}

// interpreters maps the extension of a file to the program that runs it.
func interpreters() map[string]string {
	return map[string]string{
		".sh": "sh", ".bash": "bash", ".py": "python3", ".js": "node", ".mjs": "node", ".cjs": "node", ".rb": "ruby",
		".pl": "perl",
	}
}

// program returns the program that runs a script: its path, outside of the workspace for an interpreter,
// and its arguments, beginning with its name.
func program(l *sandbox.Launcher, j *Job) (file string, argv []string, err error) {
	script := filepath.Join(j.Dir, filepath.FromSlash(j.File))
	words, err := interpreter(j)
	switch {
	case err != nil:
		return "", nil, err
	case words == nil:
		return script, []string{filepath.Base(script)}, nil
	}
	if file, err = lookUp(l.Path(), words[0], j.Workspace); err != nil {
		return "", nil, errorf("%s cannot be run: the program %q that runs it is not on this machine", j.File, words[0])
	}
	return file, append(words, script), nil
}

// Look returns the path of the program that runs the script of a job. It looks for interpreters in dirs.
func Look(j Job, dirs []string) (string, error) {
	words, err := interpreter(&j)
	if err != nil || words == nil {
		return filepath.Join(j.Dir, filepath.FromSlash(j.File)), err
	}
	return lookUp(dirs, words[0], j.Workspace)
}

// interpreter returns the bare name of the program that runs a script, with its first arguments, or nil
// if the file is itself a program.
func interpreter(j *Job) ([]string, error) {
	f, err := openNamed(j)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	begin := make([]byte, child.MaxShebang)
	n, err := io.ReadFull(f, begin)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return nil, errorf("%s cannot be read: %w", j.File, wall.Cause(err))
	}
	begin = begin[:n]
	words, err := child.Shebang(begin)
	name, known := interpreters()[strings.ToLower(path.Ext(filepath.ToSlash(j.File)))]
	switch {
	case err != nil:
		return nil, errorf("%s: %w", j.File, err)
	case words != nil:
		words[0] = path.Base(words[0])
		return words, nil
	case known:
		return []string{name}, nil
	case native(begin):
		return nil, nil
	}
	return nil, errorf("%s does not say what runs it: begin it with a line such as #!/usr/bin/env python3, or give "+
		"it one of the endings %s",
		j.File, strings.Join(slices.Sorted(maps.Keys(interpreters())), ", "))
}

// native reports whether a file begins like a program that needs no interpreter.
func native(begin []byte) bool {
	for _, magic := range []string{"\x7fELF", "\xcf\xfa\xed\xfe", "\xca\xfe\xba\xbe", "MZ"} {
		if bytes.HasPrefix(begin, []byte(magic)) {
			return true
		}
	}
	return false
}

// lookUp finds an interpreter in dirs; python3 replaces a missing python.
func lookUp(dirs []string, name, workspace string) (string, error) {
	file, err := sandbox.LookPath(name, dirs, workspace)
	if err != nil && name == "python" {
		file, err = sandbox.LookPath("python3", dirs, workspace)
	}
	return file, err
}

// Script runs a script in the sandbox until it ends or ctx does; no process that it started
// is left then. Its first line names the interpreter, otherwise its extension does; otherwise
// the file is itself a program. Its working directory is the workspace, so that paths in
// its arguments mean the same as for file tools, or the skill's folder without a
// workspace. A2E_SKILL_DIR has the skill's folder, A2E_WORKSPACE the workspace. Its home and
// temporary folder are empty and deleted afterwards.
//
// A script that ran and failed is not an error. The error is a *protocol.Error, or the cause
// of ctx.
func Script(ctx context.Context, l *sandbox.Launcher, j Job, emit host.Emitter, event EventFunc) (*Result, error) {
	file, argv, err := program(l, &j)
	if err != nil {
		return nil, err
	}
	scratch, err := l.MakeScratch()
	if err != nil {
		return nil, errorf("the script cannot be started: %w", wall.Cause(err))
	}
	defer l.Discard(scratch)
	env := map[string]string{"A2E_SKILL_DIR": j.Dir, "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
	policy := j.policy(scratch)
	if policy.Dir = j.Dir; j.Workspace != "" {
		policy.Dir, env["A2E_WORKSPACE"] = j.Workspace, j.Workspace
	}
	policy.Path, policy.Args, policy.HostEnv = file, argv, env
	if j.Network {
		policy.Network = sandbox.NetworkHost
	}
	state, out, err := launch(ctx, l, policy, &j, emit, event)
	if err != nil {
		return nil, err
	}
	return out.finish(ended(state)), nil
}

// policy returns the sandbox policy with what a job may read and change.
func (j *Job) policy(scratch string) sandbox.Policy {
	p := sandbox.Policy{
		ReadOnly: []string{j.Dir}, Scratch: scratch,
		Stdin: bytes.NewReader(append(bytes.Clone(j.Args), '\n')), Limits: sandbox.Limits{MemoryBytes: j.MemoryBytes},
	}
	if j.Hidden || !j.inWorkspace() {
		p.Read = []string{j.Dir}
	}
	switch {
	case j.Workspace == "":
	case j.Write:
		p.Write = []string{j.Workspace}
	default:
		p.Read, p.ReadOnly = append(p.Read, j.Workspace), append(p.ReadOnly, j.Workspace)
	}
	return p
}

// inWorkspace reports whether the skill is in the workspace, so that access to the workspace includes it. Then
// its folder must not be granted by itself: an agent could replace it by a link after the check, and
// access to the target of the link would be granted.
func (j *Job) inWorkspace() bool {
	return j.Workspace != "" && (wall.Within(j.Workspace, j.Dir) || wall.Within(wall.Real(j.Workspace), j.Dir))
}

// launch runs a program to its end, and returns its output. The error says why the program did not end by
// itself.
func launch(ctx context.Context, l *sandbox.Launcher, policy sandbox.Policy, j *Job, emit host.Emitter,
	event EventFunc,
) (sandbox.State, *output, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	out := newOutput(ctx, j, emit, event, stop)
	stdout, stderr := out.streams()
	policy.Stdout, policy.Stderr = stdout, stderr
	host.HandOff(ctx)
	proc, err := l.Command(ctx, policy)
	if err != nil && ctx.Err() == nil {
		return sandbox.State{}, nil, errorf("%w", err)
	}
	if err != nil {
		return sandbox.State{}, nil, stopError(ctx, err, out) // there is no output yet
	}
	state, err := proc.Wait()
	stdout.cutter.End()
	stderr.cutter.End()
	if cause := context.Cause(ctx); err == nil && cause != nil {
		err = cause // it printed too much, but ended before it was stopped
	}
	if err != nil {
		out.all.Drop()
		return state, nil, stopError(ctx, err, out)
	}
	return state, out, nil
}

// stopError returns the error for a program that did not end by itself, with the end of its stderr.
func stopError(ctx context.Context, err error, out *output) error {
	var refused *protocol.Error
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, context.DeadlineExceeded):
		refused = protocol.Errorf(protocol.CodeTimeout, "it was stopped before it ended: %w; a longer timeout gives "+
			"it more time", cause)
	case cause != nil && !errors.As(cause, &refused): // a cancel or a shutdown, which the host answers
		return cause
	case cause != nil: // a copy, as others may use the same error
		again := *refused
		again.Detail = maps.Clone(refused.Detail)
		refused = &again
	case errors.Is(err, sandbox.ErrMemory):
		refused = protocol.Errorf(protocol.CodeOutOfMemory, "it was stopped: it and what it started took more "+
			"memory than allowed")
	case errors.Is(err, sandbox.ErrDisk):
		refused = protocol.Errorf(protocol.CodeToolError, "it was stopped: %w", err)
	case errors.Is(err, sandbox.ErrProcesses):
		refused = protocol.Errorf(protocol.CodeOutOfMemory, "it was stopped: it and what it started were more "+
			"processes than allowed")
	default:
		why, _, _ := strings.Cut(err.Error(), "\n\n") // a stack of the launcher may follow
		refused = protocol.Errorf(protocol.CodeSandboxCrash, "it was lost: %s",
			protocol.Head(strings.Join(strings.Fields(why), " "), maxLost))
	}
	if words := out.words(keptStderr); words != "" {
		refused = refused.With("stderr", words)
	}
	return refused
}

// maxLost is the length of the longest text about a lost launcher, in bytes.
const maxLost = 300

// signalBase is added to the number of a signal for the exit status, as shells do.
const signalBase = 128

// ended returns a program's exit status, and a text how it ended unless the status is 0.
func ended(state sandbox.State) (code int, how string) {
	switch {
	case state.Signal != 0:
		return signalBase + int(state.Signal), fmt.Sprintf("it was ended by a signal: %v", state.Signal)
	case state.Code != 0:
		return state.Code, fmt.Sprintf("it ended with exit status %d", state.Code)
	}
	return 0, ""
}
