package snapshot

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"a2e/host/private"
)

const fileSuffix = ".ndjson.gz"

// fileStore keeps each snapshot in a file of a folder. zcat shows what is in one.
type fileStore struct{ dir string }

func (s *fileStore) path(name string) string { return filepath.Join(s.dir, name+fileSuffix) }

// Save implements Store.
func (s *fileStore) Save(_ context.Context, info Info, replace bool, write func(io.Writer) (Holds, error)) (Info, error) {
	if err := CheckName(info.Name); err != nil {
		return Info{}, err
	}
	path := s.path(info.Name)
	if !replace && present(path) {
		return Info{}, exists(info.Name)
	}
	file, err := newTemp(path)
	if err != nil {
		return Info{}, err
	}
	err = writeFile(file, &info, write)
	if err = errors.Join(err, file.Close()); err != nil {
		return Info{}, errors.Join(err, os.Remove(file.Name()))
	}
	if replace {
		err = place(file.Name(), path)
	} else if err = placeNew(file.Name(), path); errors.Is(err, fs.ErrExist) {
		err = exists(info.Name)
	}
	removeTemps(s.dir)
	return info, err
}

// writeFile writes a snapshot to a new file, and fills in what is known of it
// then.
func writeFile(file *os.File, info *Info, write func(io.Writer) (Holds, error)) error {
	buf := bufio.NewWriter(file)
	zip := gzip.NewWriter(buf)
	zip.ModTime, zip.Extra = info.Made, newExtra()
	var err error
	if info.Holds, err = write(zip); err != nil {
		return err
	}
	if err := errors.Join(zip.Close(), buf.Flush()); err != nil {
		return err
	}
	if text, err := json.Marshal(info.Holds, json.Deterministic(true)); err == nil && len(text) <= extraText {
		if _, err := file.WriteAt(text, extraAt); err != nil {
			return err
		}
	}
	stat, err := file.Stat()
	if err != nil {
		return err
	}
	info.Bytes = stat.Size()
	return file.Sync()
}

// What a snapshot holds stands in an extra field of the gzip header, so that List
// need not read all of it. It is known last, so its place is kept: spaces, which
// JSON allows.
const (
	extraHead = 4   // the field's two letters, and its length
	extraText = 996 // bytes of the JSON at most
	extraAt   = 10 + 2 + extraHead
)

func newExtra() []byte {
	extra := append([]byte("a2"), 0, 0)
	binary.LittleEndian.PutUint16(extra[2:], extraText)
	return append(extra, bytes.Repeat([]byte(" "), extraText)...)
}

// parseExtra returns nothing for a header that was not written here.
func parseExtra(extra []byte) (h Holds) {
	if len(extra) == extraHead+extraText && bytes.HasPrefix(extra, []byte("a2")) {
		_ = json.Unmarshal(extra[extraHead:], &h)
	}
	return h
}

// zipped is an open file and what it unzips to.
type zipped struct {
	*gzip.Reader
	file io.Closer
}

// Close implements io.Closer.
func (z zipped) Close() error { return z.file.Close() }

func openZip(path string) (zipped, error) {
	file, err := private.Open(path, os.O_RDONLY)
	if err != nil {
		return zipped{}, err
	}
	return unzip(file)
}

func unzip(file io.ReadCloser) (zipped, error) {
	zip, err := gzip.NewReader(bufio.NewReader(file))
	if err != nil {
		return zipped{}, errors.Join(damage(err), file.Close())
	}
	return zipped{zip, file}, nil
}

// Load implements Store.
func (s *fileStore) Load(ctx context.Context, name string) (io.ReadCloser, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	zip, err := openZip(s.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, unknown(ctx, s, name)
	}
	if err != nil {
		return nil, err
	}
	return zip, nil
}

// List implements Store.
func (s *fileStore) List(context.Context) ([]Info, error) {
	all := []Info{}
	entries, err := os.ReadDir(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil
	}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), fileSuffix)
		if ok && CheckName(name) == nil {
			all = append(all, s.describe(name))
		}
	}
	slices.SortStableFunc(all, func(a, b Info) int { return cmp.Or(a.Made.Compare(b.Made), cmp.Compare(a.Name, b.Name)) })
	return all, err
}

func (s *fileStore) describe(name string) Info {
	info := Info{Name: name}
	if stat, err := os.Stat(s.path(name)); err == nil {
		info.Bytes, info.Made = stat.Size(), stat.ModTime().UTC()
	}
	zip, err := openZip(s.path(name))
	if err != nil {
		info.Problem = err.Error()
		return info
	}
	defer zip.Close()
	info.Holds = parseExtra(zip.Extra)
	if !zip.ModTime.IsZero() {
		info.Made = zip.ModTime.UTC()
	}
	return info
}

// Delete implements Store.
func (s *fileStore) Delete(ctx context.Context, name string) error {
	if err := CheckName(name); err != nil {
		return err
	}
	err := os.Remove(s.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return unknown(ctx, s, name)
	}
	return err
}

// Close implements Store.
func (s *fileStore) Close() error { return nil }

// tempAge is how old a file must be that was left half written, by a process
// that was killed, to be removed.
const tempAge = 24 * time.Hour

// newTemp makes a file, for this user only, that will take the place of path. Its
// name is none that is ever read.
func newTemp(path string) (*os.File, error) {
	dir, err := private.MakeDir(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	file, err := dir.Temp(filepath.Base(path))
	return file, errors.Join(err, dir.Close())
}

// place returns a file its name, in the place of what has it.
func place(temp, path string) error {
	err := os.Rename(temp, path)
	if err != nil {
		_ = os.Remove(temp)
	}
	return err
}

// placeNew is place for a name that must be free; the error is fs.ErrExist
// otherwise.
func placeNew(temp, path string) error {
	dir, err := private.OpenDir(filepath.Dir(path))
	if err == nil {
		err = errors.Join(dir.PlaceNew(filepath.Base(temp), filepath.Base(path)), dir.Close())
	}
	if err != nil {
		_ = os.Remove(temp)
	}
	return err
}

func present(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// removeTemps removes what was left half written long ago.
func removeTemps(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		name := e.Name()
		info, err := e.Info()
		if err == nil && strings.HasPrefix(name, ".") && strings.HasSuffix(name, private.TempSuffix) && time.Since(info.ModTime()) > tempAge {
			_ = os.Remove(filepath.Join(dir, name))
		}
	}
}
