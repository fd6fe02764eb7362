package env

import (
	"archive/tar"
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"a2e/host"
	"a2e/host/guard/wall"
	"a2e/host/sandbox"
	"a2e/protocol"
)

// add answers env/data/add/req. A part that cannot be staged leaves nothing behind, and the others are
// staged all the same.
func (d *dataPlane) add(ctx context.Context, req *protocol.EnvDataAddRequest,
	_ host.Emitter,
) (*protocol.EnvDataAddResponse, error) {
	if len(req.Parts) > maxDataParts {
		return nil, protocol.Wrong("/parts", "has %d entries; send at most %d at once", len(req.Parts), maxDataParts)
	}
	root, err := d.open(ctx, req.DataRoot, true)
	if err != nil {
		return nil, err
	}
	defer d.close(root)
	left := bounds{d.opts.MaxFiles, d.opts.MaxBytes}
	resp := &protocol.EnvDataAddResponse{}
	for i := range req.Parts {
		part := &req.Parts[i]
		staged, err := d.stage(ctx, root, part, &left)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err != nil {
			name := cmp.Or(part.Dest, part.Src)
			resp.Errors = append(resp.Errors, fmt.Sprintf("part %d, %.200q: %v", i, name, wall.Cause(err)))
			continue
		}
		resp.Added++
		resp.Staged = append(resp.Staged, staged)
	}
	resp.OK = len(resp.Errors) == 0
	return resp, nil
}

// stage stages one part. It is put into a temporary folder of the data root and moved to its place once it
// is complete and checked.
func (d *dataPlane) stage(ctx context.Context, root dataRoot, part *protocol.EnvDataPart, left *bounds) (map[string]any,
	error,
) {
	dest, into, err := destOf(part)
	if err != nil {
		return nil, err
	}
	from, base, err := d.source(part.Src)
	if err != nil {
		return nil, err
	}
	defer from.Close()
	s := stager{copier: copier{left: *left, option: "data.", strict: true, from: from, wall: d.env.Wall}}
	err = s.beside(ctx, root, func() error {
		if err := s.part(ctx, base, into); err != nil {
			return err
		}
		if s.single && into {
			dest = path.Join(dest, path.Base(base))
		}
		return s.check(part)
	}, &dest)
	if err != nil {
		return nil, err
	}
	*left = s.left
	return map[string]any{"uri": part.URI, "dest": dest, "size_bytes": s.size, "checksum": s.sum, "mime": part.Mime},
		nil
}

var errOwnName = errors.New("names that begin with " + dataOwn + " are the host's own")

// destOf returns where a part goes, with slashes. into is true if the name ends with a slash and so means
// a folder that the part is put into.
func destOf(part *protocol.EnvDataPart) (dest string, into bool, err error) {
	if part.Src == "" {
		return "", false, errors.New("src is missing")
	}
	dest = filepath.ToSlash(part.Dest)
	if into = strings.HasSuffix(dest, "/") || dest == "."; dest == "" {
		dest = path.Base(filepath.ToSlash(part.Src))
	}
	dest = path.Clean(dest)
	if !filepath.IsLocal(filepath.FromSlash(dest)) || !into && dest == "." {
		return "", false, errors.New("dest leads out of the data root; it should be a path below it")
	}
	if strings.HasPrefix(dest, dataOwn) {
		return "", false, errOwnName
	}
	return dest, into, nil
}

// source opens the folder that contains src, and returns the name of src in it.
func (d *dataPlane) source(src string) (dir *os.Root, base string, err error) {
	local := filepath.FromSlash(src)
	for _, source := range d.sources {
		rel := local
		if filepath.IsAbs(local) {
			if rel, err = filepath.Rel(source, filepath.Clean(local)); err != nil {
				continue
			}
		}
		if !filepath.IsLocal(rel) {
			continue
		}
		if dir, base, err = d.sourceIn(source, rel); !errors.Is(err, fs.ErrNotExist) {
			return dir, base, err
		}
	}
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		err = errors.New("src lies outside of the folders of data.sources in the config, by default the workspace")
	}
	return nil, "", err
}

func (d *dataPlane) sourceIn(source, rel string) (dir *os.Root, base string, err error) {
	if wall.Within(wall.Real(filepath.Join(source, rel)), wall.Real(d.root)) {
		return nil, "", errors.New("src holds the data root")
	}
	outer, err := os.OpenRoot(source)
	if err != nil {
		return nil, "", err
	}
	if guard := d.env.Wall.In(outer); guard != nil {
		defer outer.Close()
		dir, base, _, err = guard.Resolve(filepath.ToSlash(rel))
		return dir, base, err
	}
	if _, err := outer.Stat(rel); err != nil {
		return nil, "", errors.Join(err, outer.Close())
	}
	return outer, filepath.ToSlash(rel), nil
}

// restore stages the baseline.
func (d *dataPlane) restore(ctx context.Context, root dataRoot) (files int, err error) {
	from, err := os.OpenRoot(d.opts.Baseline)
	if err != nil {
		return 0, wall.Cause(err)
	}
	defer from.Close()
	s := stager{copier: copier{
		left: bounds{d.opts.MaxFiles, d.opts.MaxBytes}, option: "data.", strict: true,
		from: from, wall: d.env.Wall,
	}}
	dest := "."
	err = s.beside(ctx, root, func() error { return s.content(ctx) }, &dest)
	return s.files, err
}

// stager stages one part, or the baseline.
type stager struct {
	copier
	single bool // it is one file, which has the name dataOwn until it is in its place
	files  int
	size   int64
	sum    string // checksum of the file in src; "" = src is a folder
}

// beside makes a temporary folder in the data root, lets fill put something into it, and moves that to its
// place.
func (s *stager) beside(ctx context.Context, root dataRoot, fill func() error, dest *string) error {
	name := dataOwn + "-" + rand.Text()
	if err := root.Mkdir(name, 0o700); err != nil {
		return err
	}
	defer func() { _ = sandbox.RemoveIn(context.WithoutCancel(ctx), root.Root, name) }()
	to, err := root.OpenRoot(name)
	if err != nil {
		return err
	}
	defer to.Close()
	s.to = to
	if err := fill(); err != nil {
		return err
	}
	return s.place(root, name, *dest)
}

// part stages the file or folder called name in from, or the content of an archive.
func (s *stager) part(ctx context.Context, name string, into bool) error {
	local := filepath.FromSlash(name)
	info, err := s.from.Stat(local)
	if err != nil {
		return err
	}
	if info.IsDir() {
		outer := s.from
		if s.from, err = outer.OpenRoot(local); err != nil {
			return err
		}
		defer s.from.Close()
		before := s.left.bytes
		err = s.content(ctx)
		s.size = before - s.left.bytes
		return err
	}
	file, size, err := openRegular(s.from, local)
	if err != nil {
		return err
	}
	defer file.Close()
	if s.size = size; size > s.left.bytes {
		return s.tooMany("bytes")
	}
	sum := sha256.New()
	in := io.TeeReader(stoppable{ctx, file}, sum)
	if into && isArchive(name) {
		err = s.extract(ctx, in)
		_, rest := io.Copy(io.Discard, in) // the checksum covers the whole file
		err = errors.Join(err, rest)
	} else {
		s.single = true
		err = s.write(dataOwn, in, info.Mode())
	}
	s.sum = "sha256:" + hex.EncodeToString(sum.Sum(nil))
	return err
}

func isArchive(name string) bool {
	name = strings.ToLower(name)
	return strings.HasSuffix(name, ".tar") || strings.HasSuffix(name, ".tar.gz") || strings.HasSuffix(name, ".tgz")
}

// maxEntryName bounds the paths in an archive, and so the depth of the folders in it.
const maxEntryName = 4096

// extract unpacks the files and folders of an archive; any other entry is an error.
func (s *stager) extract(ctx context.Context, in io.Reader) error {
	made := map[string]bool{".": true}
	buffered := bufio.NewReader(in)
	in = buffered
	if head, _ := buffered.Peek(2); bytes.Equal(head, []byte{0x1f, 0x8b}) {
		zip, err := gzip.NewReader(buffered)
		if err != nil {
			return fmt.Errorf("the archive cannot be read: %w", err)
		}
		in = zip
	}
	for archive := tar.NewReader(in); ; {
		h, err := archive.Next()
		if err == io.EOF {
			return nil
		} else if err != nil {
			return fmt.Errorf("the archive cannot be read: %w", err)
		}
		name := path.Clean(h.Name)
		switch local := filepath.FromSlash(name); {
		case h.Typeflag == tar.TypeXGlobalHeader:
		case !filepath.IsLocal(local):
			return fmt.Errorf("the archive has the entry %.200q, which leads out of the data root", h.Name)
		case len(name) > maxEntryName:
			return fmt.Errorf("the archive has the entry %.200q…, whose name is longer than %d bytes", h.Name,
				maxEntryName)
		case h.Typeflag == tar.TypeDir:
			err = s.folder(local, made)
		case h.Typeflag == tar.TypeReg:
			if err = errors.Join(s.folder(filepath.Dir(local), made), s.count()); err == nil {
				err = s.write(local, stoppable{ctx, archive}, fs.FileMode(h.Mode))
			}
		default:
			return fmt.Errorf("the archive has the entry %.200q, which is not a file or folder", h.Name)
		}
		if err != nil {
			return aboutFile(name, err)
		}
	}
}

// folder makes a folder and its parents.
func (s *stager) folder(local string, made map[string]bool) error {
	if made[local] {
		return nil
	}
	made[local] = true
	if err := errors.Join(s.folder(filepath.Dir(local), made), s.count()); err != nil {
		return err
	}
	return s.to.Mkdir(local, 0o755)
}

// check compares what was staged with the size and checksum in the part.
func (s *stager) check(part *protocol.EnvDataPart) error {
	switch want := strings.ToLower(part.Checksum); {
	case part.SizeBytes != nil && *part.SizeBytes != s.size:
		return fmt.Errorf("size mismatch: it has %d bytes, size_bytes is %d", s.size, *part.SizeBytes)
	case want == "":
		return nil
	case s.sum == "":
		return errors.New("checksum is of one file, and src is a folder")
	case !strings.HasPrefix(want, "sha256:") || len(want) != len(s.sum):
		return errors.New("checksum should be sha256: and 64 hexadecimal digits")
	case want != s.sum:
		return fmt.Errorf("checksum mismatch: it is %s", s.sum)
	}
	return nil
}

// place moves the content of a temporary folder of the data root to its place: all of it, or
// nothing if a folder would replace a file, or a file a folder. Files with the same names are
// replaced. A folder that did not exist before is moved as a whole.
func (s *stager) place(root dataRoot, beside, dest string) error {
	local := filepath.FromSlash(dest)
	if s.single {
		err := fits(root, local, false)
		if err == nil {
			err = root.MkdirAll(filepath.Dir(local), 0o755)
		}
		if err == nil {
			err = root.Rename(filepath.Join(beside, dataOwn), local)
		}
		return aboutFile(dest, err)
	}
	if _, err := root.Lstat(local); errors.Is(err, fs.ErrNotExist) {
		err := errors.Join(root.MkdirAll(filepath.Dir(local), 0o755), root.Chmod(beside, 0o755))
		if err == nil {
			err = root.Rename(beside, local)
		}
		return aboutFile(dest, err)
	}
	each := func(do func(name, target string, folder bool) error) error {
		return fs.WalkDir(root.FS(), beside, func(name string, e fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			name = filepath.FromSlash(name)
			target := filepath.Join(local, strings.TrimPrefix(name, beside))
			return aboutFile(filepath.ToSlash(target), do(name, target, e.IsDir()))
		})
	}
	if err := each(func(_, target string, folder bool) error { return fits(root, target, folder) }); err != nil {
		return err
	}
	return each(func(name, target string, folder bool) error {
		if folder {
			return root.MkdirAll(target, 0o755)
		}
		s.files++
		return root.Rename(name, target)
	})
}

// fits returns an error if something is in the way of a file or a folder.
func fits(root dataRoot, target string, folder bool) error {
	if strings.HasPrefix(target, dataOwn) {
		return errOwnName
	}
	info, err := root.Lstat(target)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && folder {
		info, err = root.Stat(target) // a link to a folder counts as a folder
	}
	switch {
	case err != nil:
		return err
	case folder && !info.IsDir():
		return errors.New("no folder can be made of what is there")
	case !folder && info.IsDir():
		return errors.New("a folder is there, which no file replaces")
	}
	return nil
}

// openRegular opens a regular file. It never blocks, as opening a pipe could.
func openRegular(root *os.Root, local string) (*os.File, int64, error) {
	file, err := root.OpenFile(local, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("it is not a file or folder")
	}
	if err != nil {
		return nil, 0, errors.Join(err, file.Close())
	}
	return file, info.Size(), nil
}
