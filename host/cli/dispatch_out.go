package cli

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/go-json-experiment/json"
	"github.com/mattn/go-isatty"

	"a2e/host/cli/record"
	"a2e/host/sandbox"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// kept is a result as it is stored in a file. The digest of the brief shows a later run whether the
// task is still the same.
type kept struct {
	*fleet.Result
	Brief string `json:"brief_sha256,omitzero"`
}

// briefDigest returns a digest that identifies a brief.
func briefDigest(brief string) string {
	sum := sha256.Sum256([]byte(brief))
	return hex.EncodeToString(sum[:16])
}

// results stores the results of a dispatch. It appends to a file and never overwrites it.
type results struct {
	io.Writer
	file *os.File // nil = stdout
	lock *os.File
	name string
	had  map[string]kept // results of an earlier run in the file, by task id
	line int
	cut  bool // the last line of the file was incomplete and was removed
}

// openResults opens the output for the results, and reads the results of an earlier run from it.
func (d *dispatchCmd) openResults(sys *System) (*results, error) {
	switch {
	case d.Out == "-" && isatty.IsTerminal(sys.Out.Fd()):
		return &results{Writer: &seenWriter{w: sys.Out}}, nil
	case d.Out == "-":
		return &results{Writer: sys.Out}, nil
	}
	file, err := os.OpenFile(d.Out, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o666)
	if err != nil {
		return nil, err
	}
	r := &results{Writer: file, file: file, name: oneLine(d.Out), had: make(map[string]kept)}
	if err := r.take(d.Resume); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

// take locks the file for this run. It reads the results in it if the run is resumed; otherwise the
// file must be empty.
func (r *results) take(resume bool) error {
	info, err := r.file.Stat()
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular() && resume:
		return fmt.Errorf("--resume needs a file of results, and %s is not a regular file", r.name)
	case !info.Mode().IsRegular():
		return nil
	case info.Size() > 0 && !resume:
		return fmt.Errorf("%s already exists; --resume does the tasks that have no result in it, or give another file",
			r.name)
	}
	if r.lock, err = sandbox.LockDir(r.file.Name()); err != nil { // LockDir also locks a file
		return fmt.Errorf("%s is in use by a running dispatch: %w", r.name, err)
	}
	return r.read()
}

// read reads the results of an earlier run. An incomplete last line is removed, so that its task is done again.
func (r *results) read() error {
	in := record.NewLines(r.file, record.MaxEntry)
	for whole := int64(0); ; {
		line, size, err := in.Next()
		if r.line++; err == nil {
			if err := r.add(line); err != nil {
				return err
			}
			whole += size + 1
			continue
		}
		switch line, _ = in.Rest(); {
		case !errors.Is(err, io.EOF):
			return err
		case len(line) == 0:
			return nil
		case r.add(line) == nil:
			_, err = r.file.WriteString("\n")
			return err
		case !begunResult(line):
			return fmt.Errorf("%s:%d: is not a TASK_RESULT; give another file", r.name, r.line)
		}
		r.cut = true
		return r.file.Truncate(whole)
	}
}

// begunResult reports whether a line may be the beginning of a result.
func begunResult(line []byte) bool {
	begin := []byte(`{"type":"` + fleet.TypeResult + `"`)
	return bytes.HasPrefix(line, begin) || bytes.HasPrefix(begin, line)
}

// add adds the result of a line.
func (r *results) add(line []byte) error {
	if len(bytes.TrimSpace(line)) == 0 {
		return nil
	}
	var k kept
	if err := json.Unmarshal(line, &k); err != nil || k.Result == nil || k.Type != fleet.TypeResult {
		return fmt.Errorf("%s:%d: is not a TASK_RESULT; --resume needs a file of results only", r.name, r.line)
	}
	if _, twice := r.had[k.TaskID]; !twice {
		r.had[k.TaskID] = k
	}
	return nil
}

// left returns the tasks without a result, and how the others ended. It returns an error if the
// brief of a task has changed since its result.
func (r *results) left(tasks []*dispatchTask) (todo []*dispatchTask, ended tally, err error) {
	for _, t := range tasks {
		k, had := r.had[t.id]
		switch {
		case !had:
			todo = append(todo, t)
			continue
		case k.Brief != "" && k.Brief != briefDigest(t.Brief):
			err = errors.Join(err, fmt.Errorf("line %d: %s has a result for another brief of %q; give the task "+
				"another task_id, or remove that line", t.line, r.name, t.id))
		}
		ended.add(k.Result)
	}
	return todo, ended, err
}

// write writes the result of a task as one line.
func (r *results) write(t *dispatchTask, res *fleet.Result) error {
	k := kept{Result: res}
	if r.file != nil {
		k.Brief = briefDigest(t.Brief)
	}
	line, err := protocol.AppendJSON(nil, k)
	if err != nil {
		return err
	}
	_, err = r.Write(append(line, '\n'))
	return err
}

// close unlocks and closes the file, if there is one.
func (r *results) close() error {
	if r.file == nil {
		return nil
	}
	if r.lock != nil {
		_ = r.lock.Close() // it was only read
	}
	return r.file.Close()
}
