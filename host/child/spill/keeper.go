// Package spill keeps output that is too long for an answer: the answer has its beginning and its end, and a file
// of the session has all of it.
//
//	keeper.go    the files           ends.go   the beginning and the end of a text
//	capture.go   the output of a program: both of these, of two streams
package spill

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"a2e/host"
	"a2e/host/guard/private"
	"a2e/host/guard/redact"
	"a2e/protocol"
)

// The bounds of what the files of all sessions may take on disk.
const (
	maxBytes   = 256 << 20
	maxFiles   = 1000
	maxAge     = 7 * 24 * time.Hour
	suffix     = ".spill"
	uuidLength = 36
	maxWord    = 64 // bytes of a file's name that say what wrote it
)

// Scheme is the scheme of the URIs of spilled output, without "://".
const Scheme = "spill"

// Keeper keeps the output that is too long for an answer, each in a file of its own, in a folder for each session
// under state_dir/spill: outside the workspace, and out of the reach of other sessions. If there are too many files
// or bytes, the oldest files are removed first; files older than a week are removed in any case. Several hosts, and
// keepers of one host, may share one state_dir. It is safe for concurrent use.
type Keeper struct {
	dir      string // absolute; "" = nothing is kept
	secrets  *redact.Set
	maxBytes int64 // of all files together; one file may take a quarter
	maxFiles int

	mu   sync.Mutex
	open map[string]bool // paths being written: never removed
	held int64           // bytes of maxBytes that the files in open have taken
}

// New makes the keeper of a state_dir; "" = nothing is kept. Secrets are masked in the files; nil = none.
func New(stateDir string, secrets *redact.Set) *Keeper {
	k := &Keeper{secrets: secrets, maxBytes: maxBytes, maxFiles: maxFiles, open: make(map[string]bool)}
	if stateDir != "" {
		k.dir = filepath.Join(stateDir, "spill")
	}
	return k
}

// folderOf returns the name of the folder of the session that a context belongs to. It is a hash, because an id may
// have any form.
func folderOf(ctx context.Context) string {
	sess := host.SessionFrom(ctx)
	if sess == nil {
		return "none"
	}
	sum := sha256.Sum256([]byte(sess.ID))
	return hex.EncodeToString(sum[:16])
}

// folder opens the folder of a session, and makes it if there is none.
func (k *Keeper) folder(ctx context.Context) (*private.Dir, error) {
	if k.dir == "" {
		return nil, errors.New("no state_dir is set to keep long output in")
	}
	dir, err := filepath.Abs(k.dir)
	if err != nil {
		return nil, err
	}
	all, err := private.MakeSub(filepath.Dir(dir), filepath.Base(dir))
	if err != nil {
		return nil, err
	}
	own, err := all.Sub(folderOf(ctx))
	return own, errors.Join(err, all.Close())
}

// Create opens a new file for the output of what (such as a tool) in the session of ctx. The file takes any amount:
// it keeps at most a quarter of maxBytes, and says at its end how much is missing. It must be closed.
func (k *Keeper) Create(ctx context.Context, what string) (*File, error) {
	return k.create(ctx, what, suffix)
}

func (k *Keeper) create(ctx context.Context, what, extension string) (*File, error) {
	folder, err := k.folder(ctx)
	if err != nil {
		return nil, fmt.Errorf("spill folder: %w", err)
	}
	defer folder.Close()
	id, err := uuid.NewV7() // sorts by time
	if err != nil {
		return nil, fmt.Errorf("spill name: %w", err)
	}
	name := id.String() + "-" + word(what) + extension
	path := filepath.Join(folder.Path(), name)
	k.hold(path)
	f, err := folder.Open(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL)
	if err != nil {
		k.release(path, 0)
		return nil, fmt.Errorf("spill file: %w", err)
	}
	to := &File{owner: k, file: f, left: k.maxBytes / 4}
	to.masked = k.secrets.Writer(raw{to})
	return to, nil
}

// Keep writes a whole content to a new file.
func (k *Keeper) Keep(ctx context.Context, what string, content []byte) (*File, error) {
	return k.keep(ctx, what, suffix, content)
}

// KeepAs is Keep for content of another form, such as a picture. extension is that of the file, without a dot.
func (k *Keeper) KeepAs(ctx context.Context, what, extension string, content []byte) (*File, error) {
	return k.keep(ctx, what, "."+word(extension), content)
}

func (k *Keeper) keep(ctx context.Context, what, extension string, content []byte) (*File, error) {
	f, err := k.create(ctx, what, extension)
	if err != nil {
		return nil, err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("spill file: %w", err)
	}
	return f, nil
}

// OpenFiles opens the folder of the session of ctx, as host.FileSource wants it: spill:///NAME is a file in it.
func (k *Keeper) OpenFiles(ctx context.Context, authority string) (*os.Root, error) {
	if authority != "" {
		return nil, protocol.Errorf(protocol.CodeToolError,
			"%s://%.64s has no file's name; write %s:///NAME, with three slashes", Scheme, authority, Scheme)
	}
	folder, err := k.folder(ctx)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeToolError, "there is no spilled output: %w", err)
	}
	root, err := os.OpenRoot(folder.Path())
	if err = errors.Join(err, folder.Close()); err != nil {
		return nil, protocol.Errorf(protocol.CodeToolError, "there is no spilled output: %w", err)
	}
	return root, nil
}

// word returns a name in a form that fits into a file name.
func word(name string) string {
	fit := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' {
			return r
		}
		return '_'
	}, name)
	return fit[:min(len(fit), maxWord)]
}

func (k *Keeper) hold(path string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.open[path] = true
}

func (k *Keeper) release(path string, took int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.held -= took
	delete(k.open, path)
}

// kept is one existing file.
type kept struct {
	path, name string
	size       int64
	old        bool
}

// prune removes the oldest files until the bounds are kept, and empty folders. It touches only names that Create
// makes. A file that cannot be removed now is left for the next time.
func (k *Keeper) prune() {
	k.mu.Lock()
	defer k.mu.Unlock()
	dir, err := filepath.Abs(k.dir)
	if err != nil {
		return
	}
	files, folders := list(dir)
	slices.SortFunc(files, func(a, b kept) int { return cmp.Compare(b.name, a.name) })
	var total int64
	for i, f := range files {
		total += f.size
		if (total > k.maxBytes || i >= k.maxFiles || f.old) && !k.open[f.path] {
			_ = os.Remove(f.path) // tried again after the next spill
		}
	}
	for _, folder := range folders {
		_ = os.Remove(folder) // one that is not empty stays
	}
}

// list returns the files and folders of all sessions, and the files that older hosts left in the folder itself.
func list(dir string) (files []kept, folders []string) {
	_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return nil // it has gone, or is not ours
		case entry.IsDir():
			if path == dir {
				return nil
			}
			if folders = append(folders, path); filepath.Dir(path) != dir {
				return fs.SkipDir
			}
			return nil
		}
		info, err := entry.Info()
		if err == nil && info.Mode().IsRegular() && isName(entry.Name()) {
			files = append(files, kept{path, entry.Name(), info.Size(), time.Since(info.ModTime()) > maxAge})
		}
		return nil
	})
	return files, folders
}

func isName(name string) bool {
	if len(name) <= uuidLength || name[uuidLength] != '-' || filepath.Ext(name) == "" {
		return false
	}
	id, err := uuid.Parse(name[:uuidLength])
	return err == nil && id.Version() == 7
}

// File is one file of a Keeper.
type File struct {
	owner  *Keeper
	file   *os.File
	masked *redact.Writer // to the file
	took   int64          // bytes of the owner's maxBytes that it has taken
	left   int64          // bytes it may still take
	lost   int64          // bytes it did not keep
}

// raw writes masked text to a file.
type raw struct{ *File }

// Path returns the absolute path of the file.
func (f *File) Path() string { return f.file.Name() }

// URI returns the name that read_file and grep take for the file, in its session.
func (f *File) URI() string { return Scheme + ":///" + filepath.Base(f.file.Name()) }

// take reserves room for n more bytes, or for fewer, and returns for how many. Files that are written at the same
// time never take more than maxBytes together.
func (k *Keeper) take(n int64) int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	n = max(min(n, k.maxBytes-k.held), 0)
	k.held += n
	return n
}

// Write implements io.Writer. It counts all of p as written even if the file keeps only a part, so that a child's
// pipe is drained to its end.
func (f *File) Write(p []byte) (int, error) { return f.masked.Write(p) }

// Write implements io.Writer.
func (f raw) Write(p []byte) (int, error) {
	keep := f.owner.take(min(int64(len(p)), f.left))
	f.left -= keep
	f.took += keep
	f.lost += int64(len(p)) - keep
	if n, err := f.file.Write(p[:keep]); err != nil {
		return n, err
	}
	return len(p), nil
}

// Close finishes the file, and removes old files to make room for it.
func (f *File) Close() error {
	err := f.masked.Close()
	if f.lost > 0 {
		_, more := fmt.Fprintf(f.file, "\n[%d more bytes were not kept]\n", f.lost)
		err = errors.Join(err, more)
	}
	err = errors.Join(err, f.file.Close())
	f.owner.release(f.Path(), f.took)
	f.owner.prune()
	return err
}

var _ io.WriteCloser = (*File)(nil)
