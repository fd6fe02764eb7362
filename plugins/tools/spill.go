package tools

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"a2e/host/private"
	"a2e/protocol"
)

// limited returns a result's data as the answer holds it. Data longer than max
// bytes goes whole into a spill file; the answer gets what fits of it, under
// the same names, and the file's path:
//
//	{"matches":[first ones…],"spilled":"/state/spill/….spill"}
//
// Data that is no object is under "head". Without a spill folder, or when the
// disk fails, there is no "spilled", and the summary says why.
func (s *spiller) limited(tool string, out *Outcome, data []byte, limit int) []byte {
	if limit <= 0 || len(data) <= limit {
		return data
	}
	out.Truncated = true
	path, err := s.keep(tool, data)
	note := fmt.Sprintf("cut: the whole result of %d bytes is in the file that data.spilled names", len(data))
	if err != nil {
		note = fmt.Sprintf("cut: the result had %d bytes and could not be kept whole", len(data))
	}
	if out.Summary != "" {
		note = out.Summary + " (" + note + ")"
	}
	out.Summary = note
	return cutData(data, path, limit)
}

// keep writes data to a new spill file and gives its path.
func (s *spiller) keep(tool string, data []byte) (string, error) {
	w, path, err := s.Create(tool)
	if err != nil {
		return "", err
	}
	_, err = io.Copy(w, bytes.NewReader(data))
	if closing := w.Close(); err == nil {
		err = closing
	}
	if err != nil {
		return "", fmt.Errorf("spill file: %w", err)
	}
	return path, nil
}

// maxCutDepth is how far down cutting looks for the member that is too long.
const maxCutDepth = 4

// piece is one member of an object that is cut.
type piece struct {
	key []byte
	val []byte
}

// cutData shortens data, valid JSON, to about limit bytes, and adds the path of
// the file that has the whole.
func cutData(data []byte, spilled string, limit int) []byte {
	var pieces []piece
	o, err := protocol.ParseObject(data)
	if err != nil {
		pieces = append(pieces, piece{[]byte("head"), data})
	}
	for key, val := range o.All() {
		if string(key) != "spilled" {
			pieces = append(pieces, piece{key, val})
		}
	}
	dst := cutMembers(pieces, limit-len(`,"spilled":""`)-len(spilled), maxCutDepth)
	if spilled == "" {
		return dst
	}
	dst = dst[:len(dst)-1]
	if len(dst) > 1 {
		dst = append(dst, ',')
	}
	return append(protocol.AppendString(append(dst, `"spilled":`...), spilled), '}')
}

// cutMembers makes an object of about limit bytes: the smallest members stay
// whole, the others share the rest. Of very many only the first are kept.
func cutMembers(pieces []piece, limit, depth int) []byte {
	left := limit - len("{}") + len(",") // the last member has none
	for i := range pieces {
		if left -= len(protocol.AppendString(nil, pieces[i].key)) + len(`:,`); left < limit/3 && (i > 0 || left < 0) {
			pieces = pieces[:i]
			break
		}
	}
	bySize := make([]int, len(pieces))
	for i := range bySize {
		bySize[i] = i
	}
	slices.SortStableFunc(bySize, func(a, b int) int { return cmp.Compare(len(pieces[a].val), len(pieces[b].val)) })
	for n, i := range bySize {
		pieces[i].val = cutValue(pieces[i].val, left/(len(bySize)-n), depth)
		left -= len(pieces[i].val)
	}
	dst := []byte{'{'}
	for i, p := range pieces {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(protocol.AppendString(dst, p.key), ':')
		dst = append(dst, p.val...)
	}
	return append(dst, '}')
}

// cutValue returns v, or what fits of it in about limit bytes: the start of a
// string, the first elements of an array, the members of an object each cut in
// its turn, else null.
func cutValue(v []byte, limit, depth int) []byte {
	switch {
	case len(v) <= limit:
		return v
	case v[0] == '"':
		text, _ := protocol.Value(v).Str()
		fitting, _ := textFits([]byte(text[:min(len(text), max(limit, 0))]), limit-len(`""`))
		return protocol.AppendString(nil, text[:fitting])
	case v[0] == '[' && depth > 0:
		return cutArray(v, limit, depth-1)
	case v[0] == '{' && depth > 0:
		var pieces []piece
		if o, err := protocol.ParseObject(v); err == nil {
			for key, val := range o.All() {
				pieces = append(pieces, piece{key, val})
			}
		}
		return cutMembers(pieces, limit, depth-1)
	}
	return []byte("null")
}

// cutArray keeps the elements that fit, or a part of the first.
func cutArray(v []byte, limit, depth int) []byte {
	dec := jsontext.NewDecoder(bytes.NewReader(v), jsontext.AllowDuplicateNames(true))
	if _, err := dec.ReadToken(); err != nil {
		return []byte("[]")
	}
	end := int64(1)
	for first := true; ; first = false {
		element, err := dec.ReadValue()
		if err != nil {
			break
		}
		if dec.InputOffset() >= int64(limit) {
			if first {
				return append(append([]byte{'['}, cutValue(element, limit-len("[]"), depth)...), ']')
			}
			break
		}
		end = dec.InputOffset()
	}
	return append(slices.Clip(v[:end]), ']')
}

// The bounds of what spilled output may take on disk.
const (
	maxSpillBytes = 256 << 20
	maxSpillFiles = 1000
	spillSuffix   = ".spill"
	uuidLength    = 36
)

// spiller keeps the output that is too long for an answer, each in a file of its
// own under state_dir/spill, outside the workspace: the agent, which runs on the
// same machine under the same user, opens it by the path in `data.spilled`. When
// there is too much of it, the oldest goes first. Several hosts may share one
// folder. The zero dir means that nothing is kept.
type spiller struct {
	dir      string // absolute
	maxBytes int64  // of all files together; one may take a quarter
	maxFiles int

	mu   sync.Mutex
	open map[string]bool // names being written: never removed
	held int64           // bytes that these have taken of the whole
}

func newSpiller(stateDir string) *spiller {
	s := &spiller{maxBytes: maxSpillBytes, maxFiles: maxSpillFiles, open: make(map[string]bool)}
	if stateDir != "" {
		s.dir = filepath.Join(stateDir, "spill")
	}
	return s
}

// Create opens a new file for the output of a tool and gives its absolute path.
// The writer takes any amount: past a quarter of the total it keeps no more, and
// says at the end of the file how much is missing. It must be closed.
func (s *spiller) Create(tool string) (io.WriteCloser, string, error) {
	if s.dir == "" {
		return nil, "", errors.New("no state_dir is set to keep long output in")
	}
	dir, err := filepath.Abs(s.dir)
	if err != nil {
		return nil, "", fmt.Errorf("spill folder: %w", err)
	}
	folder, err := private.MakeSub(filepath.Dir(dir), filepath.Base(dir))
	if err != nil {
		return nil, "", fmt.Errorf("spill folder: %w", err)
	}
	defer folder.Close()
	id, err := uuid.NewV7() // sorts by time
	if err != nil {
		return nil, "", fmt.Errorf("spill name: %w", err)
	}
	name := id.String() + "-" + fileWord(tool) + spillSuffix
	s.hold(name)
	f, err := folder.Open(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL)
	if err != nil {
		s.release(name, 0)
		return nil, "", fmt.Errorf("spill file: %w", err)
	}
	return &spillFile{owner: s, name: name, file: f, left: s.maxBytes / 4}, f.Name(), nil
}

// fileWord makes a tool's name fit for a file name.
func fileWord(tool string) string {
	word := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' {
			return r
		}
		return '_'
	}, tool)
	return word[:min(len(word), maxQuoted)]
}

func (s *spiller) hold(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[name] = true
}

func (s *spiller) release(name string, took int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held -= took
	delete(s.open, name)
}

// prune removes the oldest files until the bounds are kept. Only names that
// Create makes are touched. A file that cannot be removed now is left for the
// next time.
func (s *spiller) prune() {
	s.mu.Lock()
	defer s.mu.Unlock()
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return
	}
	type kept struct {
		name string
		size int64
	}
	var files []kept
	for _, e := range entries {
		info, err := e.Info()
		if err == nil && info.Mode().IsRegular() && isSpillName(e.Name()) {
			files = append(files, kept{e.Name(), info.Size()})
		}
	}
	slices.SortFunc(files, func(a, b kept) int { return cmp.Compare(b.name, a.name) })
	var total int64
	for i, f := range files {
		total += f.size
		if (total > s.maxBytes || i >= s.maxFiles) && !s.open[f.name] {
			_ = os.Remove(filepath.Join(s.dir, f.name)) // tried again after the next spill
		}
	}
}

func isSpillName(name string) bool {
	if len(name) <= uuidLength || name[uuidLength] != '-' || !strings.HasSuffix(name, spillSuffix) {
		return false
	}
	id, err := uuid.Parse(name[:uuidLength])
	return err == nil && id.Version() == 7
}

// spillFile is one file being written.
type spillFile struct {
	owner *spiller
	name  string
	file  *os.File
	took  int64 // of the whole
	left  int64 // bytes it may still take
	lost  int64 // bytes it did not keep
}

// take gives a file room for n more bytes, or for fewer: files that are being written
// together never take more than all may have.
func (s *spiller) take(n int64) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	n = max(min(n, s.maxBytes-s.held), 0)
	s.held += n
	return n
}

// Write implements io.Writer. It counts all of p as written even where the file
// keeps only a part, so that a child's pipe is drained to its end.
func (f *spillFile) Write(p []byte) (int, error) {
	keep := f.owner.take(min(int64(len(p)), f.left))
	f.left -= keep
	f.took += keep
	f.lost += int64(len(p)) - keep
	if n, err := f.file.Write(p[:keep]); err != nil {
		return n, err
	}
	return len(p), nil
}

// Close finishes the file and makes room for it.
func (f *spillFile) Close() error {
	var err error
	if f.lost > 0 {
		_, err = fmt.Fprintf(f.file, "\n[%d more bytes were not kept]\n", f.lost)
	}
	err = errors.Join(err, f.file.Close())
	f.owner.release(f.name, f.took)
	f.owner.prune()
	return err
}
