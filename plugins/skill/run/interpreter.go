package run

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"a2e/host/sandbox"
)

// openNamed opens the file of a job: a regular one, which no link leads out of the
// skill's folder to.
func openNamed(j *Job) (*os.File, error) {
	root, err := os.OpenRoot(j.Dir + "/.") // which never waits, as the bare name of a pipe would
	if err != nil {
		return nil, errorf("the folder of the skill cannot be opened: %w", withoutPath(err))
	}
	defer root.Close()
	f, err := root.OpenFile(filepath.FromSlash(j.File), os.O_RDONLY|openNonblock, 0)
	if err != nil {
		return nil, errorf("%s cannot be opened: %w; name a file in the skill's folder", j.File, withoutPath(err))
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("it is no regular file")
	}
	if err != nil {
		f.Close()
		return nil, errorf("%s cannot be run: %w", j.File, withoutPath(err))
	}
	return f, nil
}

// withoutPath drops the path of this machine from an error.
func withoutPath(err error) error {
	if e := (*os.PathError)(nil); errors.As(err, &e) {
		return e.Err
	}
	return err
}

// interpreters tells which program runs a file, by the end of its name.
func interpreters() map[string]string {
	return map[string]string{
		".sh": "sh", ".bash": "bash", ".py": "python3", ".js": "node", ".mjs": "node", ".cjs": "node", ".rb": "ruby", ".pl": "perl",
	}
}

// maxShebang is the longest first line that names an interpreter, as in the kernel.
const maxShebang = 256

// program gives what runs a script: a real path outside of the workspace, and the
// arguments, its name first.
func program(l *sandbox.Launcher, j *Job) (file string, argv []string, err error) {
	f, err := openNamed(j)
	if err != nil {
		return "", nil, err
	}
	defer f.Close()
	begin := make([]byte, maxShebang)
	n, err := io.ReadFull(f, begin)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return "", nil, errorf("%s cannot be read: %w", j.File, withoutPath(err))
	}
	begin = begin[:n]
	script := filepath.Join(j.Dir, filepath.FromSlash(j.File))
	words, err := shebang(begin)
	if err != nil {
		return "", nil, errorf("%s: %w", j.File, err)
	}
	if words == nil {
		name, known := interpreters()[strings.ToLower(path.Ext(filepath.ToSlash(j.File)))]
		switch {
		case known:
			words = []string{name}
		case native(begin):
			return script, []string{filepath.Base(script)}, nil
		default:
			return "", nil, errorf("%s does not say what runs it: begin it with a line such as #!/usr/bin/env python3, or give it one of the endings %s",
				j.File, strings.Join(endings(), ", "))
		}
	}
	if file, err = lookUp(l, words[0], j.Workspace); err != nil {
		return "", nil, errorf("%s cannot be run: %w", j.File, err)
	}
	return file, append(words, script), nil
}

// shebang reads the line that names an interpreter and maybe its arguments; nil is none.
func shebang(begin []byte) ([]string, error) {
	rest, ok := bytes.CutPrefix(begin, []byte("#!"))
	if !ok {
		return nil, nil
	}
	line, _, ended := bytes.Cut(rest, []byte("\n"))
	if !ended && len(begin) == maxShebang {
		return nil, fmt.Errorf("its first line is longer than %d bytes", maxShebang)
	}
	words := strings.Fields(string(line))
	if len(words) > 0 && path.Base(words[0]) == "env" {
		if words = words[1:]; len(words) > 0 && words[0] == "-S" {
			words = words[1:]
		}
	}
	if len(words) == 0 || strings.HasPrefix(words[0], "-") || strings.Contains(words[0], "=") {
		return nil, errors.New("its first line names no interpreter; it should be such as #!/usr/bin/env python3")
	}
	words[0] = path.Base(words[0])
	return words, nil
}

// native tells whether a file begins as a program does that needs no interpreter.
func native(begin []byte) bool {
	for _, magic := range []string{"\x7fELF", "\xcf\xfa\xed\xfe", "\xca\xfe\xba\xbe", "MZ"} {
		if bytes.HasPrefix(begin, []byte(magic)) {
			return true
		}
	}
	return false
}

func endings() []string {
	var all []string
	for end := range interpreters() {
		all = append(all, end)
	}
	slices.Sort(all)
	return all
}

// lookUp finds an interpreter among the programs that children may be.
func lookUp(l *sandbox.Launcher, name, workspace string) (string, error) {
	dirs := l.Path()
	file, err := sandbox.LookPath(name, dirs, workspace)
	if err != nil && name == "python" {
		file, err = sandbox.LookPath("python3", dirs, workspace)
	}
	if err != nil {
		return "", fmt.Errorf("the program %q that runs it is not on this machine", name)
	}
	return file, nil
}
