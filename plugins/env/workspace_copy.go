package env

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"a2e/host/wall"
)

// bounds is what a copy may still take.
type bounds struct {
	files int
	bytes int64
}

// errTooLarge says that a copy did not fit its bounds.
var errTooLarge = errors.New("too large")

// copier copies the content of folders. Every open stays within its folder.
type copier struct {
	left bounds
	// strict refuses links that lead out and what is neither file, folder nor link;
	// otherwise such links are copied as they are and the others left out.
	strict bool
	inside bool                   // leaves out links that lead out
	skip   func(path string) bool // what is left out, a folder with all in it
	wall   *wall.Wall             // around the host's own files, which are left out
	guard  *wall.Guard            // of what lies in from

	from, to *os.Root
}

// tree copies what is in the folder from into the folder to, which exists.
func (c *copier) tree(ctx context.Context, from, to string) error {
	var err error
	if c.from, err = os.OpenRoot(from); err != nil {
		return err
	}
	defer c.from.Close()
	if c.to, err = os.OpenRoot(to); err != nil {
		return err
	}
	defer c.to.Close()
	c.guard = c.wall.In(c.from)
	return c.folder(ctx, ".")
}

// folder copies what is in one folder, given with slashes.
func (c *copier) folder(ctx context.Context, dir string) error {
	f, err := c.from.Open(filepath.FromSlash(dir))
	if err != nil {
		return aboutFile(dir, err)
	}
	entries, err := f.ReadDir(-1)
	f.Close()
	if err != nil {
		return aboutFile(dir, err)
	}
	for _, e := range entries {
		name := path.Join(dir, e.Name())
		if err := ctx.Err(); err != nil {
			return err
		}
		if c.skip != nil && c.skip(name) || c.guard.Hides(name, nil) {
			continue
		}
		if err := c.entry(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

func (c *copier) entry(ctx context.Context, name string) error {
	local := filepath.FromSlash(name)
	info, err := c.from.Lstat(local)
	if err != nil {
		return aboutFile(name, err)
	}
	if c.left.files--; c.left.files < 0 {
		return fmt.Errorf("%w: it holds more files than the limit allows", errTooLarge)
	}
	switch mode := info.Mode(); {
	case mode.IsDir():
		return c.subfolder(ctx, name, mode)
	case mode.IsRegular():
		return aboutFile(name, c.file(local, info))
	case mode&fs.ModeSymlink != 0:
		return c.link(name)
	case c.strict:
		return fmt.Errorf("%q is no file, folder or link; only those can be copied", name)
	}
	return nil
}

// subfolder copies a folder, which gets its rights when it is full: they may forbid
// to write in it.
func (c *copier) subfolder(ctx context.Context, name string, mode fs.FileMode) error {
	local := filepath.FromSlash(name)
	err := c.to.Mkdir(local, 0o700)
	if err != nil {
		return aboutFile(name, err)
	}
	if err := c.folder(ctx, name); err != nil {
		return err
	}
	return aboutFile(name, c.to.Chmod(local, mode.Perm()|0o700))
}

// file copies a file with its rights and its time, which tools such as make look at.
func (c *copier) file(local string, info fs.FileInfo) error {
	in, err := c.from.Open(local)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := c.to.OpenFile(local, os.O_WRONLY|os.O_CREATE|os.O_EXCL, info.Mode().Perm()|0o600)
	if err != nil {
		return err
	}
	n, err := io.Copy(out, io.LimitReader(in, c.left.bytes+1))
	if c.left.bytes -= n; err == nil && c.left.bytes < 0 {
		err = fmt.Errorf("%w: it holds more bytes than the limit allows", errTooLarge)
	}
	if err = errors.Join(err, out.Close()); err != nil {
		return err
	}
	return c.to.Chtimes(local, info.ModTime(), info.ModTime())
}

// link copies a symbolic link.
func (c *copier) link(name string) error {
	local := filepath.FromSlash(name)
	text, err := c.from.Readlink(local)
	if err != nil {
		return aboutFile(name, err)
	}
	if c.strict || c.inside {
		switch err := c.checkLink(name, text); {
		case err != nil && c.inside:
			return nil
		case err != nil:
			return err
		}
	}
	return aboutFile(name, c.to.Symlink(text, local))
}

// checkLink refuses a link that leads out, by its text or by the links on its way.
func (c *copier) checkLink(name, text string) error {
	out := fmt.Errorf("%q is a link that leads out of the folder; put in what it leads to", name)
	if !filepath.IsLocal(filepath.FromSlash(path.Join(path.Dir(name), filepath.ToSlash(text)))) {
		return out
	}
	// What the system finds decides for the rest, absolute links among it.
	if _, err := c.from.Stat(filepath.FromSlash(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return out
	}
	return nil
}

// aboutFile says which file an error is about, without the paths around it.
func aboutFile(name string, err error) error {
	if err == nil || errors.Is(err, errTooLarge) {
		return err
	}
	return fmt.Errorf("%q: %w", name, bareCause(err))
}
