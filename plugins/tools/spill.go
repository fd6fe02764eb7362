package tools

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/google/uuid"

	"a2e/host/private"
)

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
