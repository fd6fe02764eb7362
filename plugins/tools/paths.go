package tools

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"a2e/host"
	"a2e/host/guard/swap"
	"a2e/host/guard/wall"
	"a2e/protocol"
)

// The reasons why the file tools refuse a path. explain puts each into words.
var (
	errOutside  = errors.New("outside the workspace")
	errIsLink   = errors.New("a link")
	errIsDir    = errors.New("a folder")
	errNotDir   = errors.New("not a folder")
	errSpecial  = errors.New("no regular file")
	errHardLink = errors.New("a hard link")
	errKernel   = errors.New("a kernel file system")
	errSwapped  = errors.New("changed while it was opened")
)

// explain turns err into the answer to a call about the path name: what is wrong with
// the path, and how to correct it. It returns a *protocol.Error and an error of a
// context as they are.
func (f *files) explain(name string, err error) error {
	switch {
	case err != nil && f.escapes != nil && errors.Is(err, f.escapes):
		err = errOutside
	case errors.Is(err, wall.ErrOutside):
		err = errOutside
	case errors.Is(err, wall.ErrSwapped):
		err = errSwapped
	case errors.Is(err, syscall.ENOTDIR):
		err = errNotDir
	}
	var answer *protocol.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &answer):
		return answer
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	}
	for _, r := range []struct {
		is   error
		code protocol.ErrorCode
		text string
	}{
		{wall.ErrOwn, protocol.CodeToolDenied, wall.ErrOwn.Error()},
		{errOutside, protocol.CodeToolDenied, "leads out of " + f.place + "; give a path inside it"},
		{errIsLink, protocol.CodeToolDenied, "is a link or goes through one; files are written under their real " +
			"path only"},
		{errHardLink, protocol.CodeToolDenied, "has more than one name (a hard link), and another may lie outside of " +
			f.place + "; copy it to a new file and use that"},
		{errSpecial, protocol.CodeToolDenied, "is not a regular file but a pipe, a socket or a device; the file " +
			"tools take regular files only"},
		{errKernel, protocol.CodeToolDenied, "lies on a file system of the kernel (such as /proc or /sys); the file " +
			"tools stay out of those"},
		{errSwapped, protocol.CodeToolDenied, "was replaced while it was being opened; look at it again"},
		{swap.ErrLocked, protocol.CodeToolError, "cannot be changed: " + swap.ErrLocked.Error() + "; try again"},
		{errIsDir, protocol.CodeToolError, "is a folder; this tool takes a file, list_dir shows what is in a folder"},
		{errNotDir, protocol.CodeToolError, "goes through something that is not a folder; list_dir shows what is " +
			"there"},
		{fs.ErrNotExist, protocol.CodeToolError, "does not exist; list_dir and glob show what is there"},
	} {
		if errors.Is(err, r.is) {
			return protocol.Errorf(r.code, "%s %s", f.quote(name), r.text)
		}
	}
	return protocol.Errorf(protocol.CodeToolError, "%s: %w", f.quote(name), reason(err))
}

// now returns the files of the current folder, which may have been removed and made again.
func (f *files) now() *files {
	if f.folder == nil {
		return f
	}
	root := f.folder.Root()
	if root == f.root {
		return f
	}
	in := newFiles(root, f.room+answerFrame, f.wall, f.services)
	in.folder, in.editing, in.secrets = f.folder, f.editing, f.secrets
	return in
}

// spelled returns a path with its names spelled as on the disk, which may use another Unicode form
// (NFC, NFD) of the same text.
func (f *files) spelled(short string) string {
	if !strings.ContainsFunc(short, func(r rune) bool { return r >= utf8.RuneSelf }) {
		return short
	}
	if _, err := f.root.Lstat(short); !errors.Is(err, fs.ErrNotExist) {
		return short
	}
	done := "."
	for step := range strings.SplitSeq(short, "/") {
		if _, err := f.root.Lstat(path.Join(done, step)); errors.Is(err, fs.ErrNotExist) {
			step = f.sameName(done, step)
		}
		done = path.Join(done, step)
	}
	return done
}

// sameName returns the name in a folder that is the same text in NFC, or the name itself.
func (f *files) sameName(dir, name string) string {
	file, err := f.root.OpenFile(dir, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return name
	}
	defer file.Close()
	names, _ := file.Readdirnames(maxWalkEntries) // after an error, the names read so far count
	same := func(n string) bool { return norm.NFC.String(n) == norm.NFC.String(name) }
	if i := slices.IndexFunc(names, same); i >= 0 {
		return names[i]
	}
	return name
}

// reason returns the operating system's error in err, without the paths around it.
func reason(err error) error {
	var inPath *fs.PathError
	var inLink *os.LinkError
	switch {
	case errors.As(err, &inPath):
		return reason(inPath.Err)
	case errors.As(err, &inLink):
		return reason(inLink.Err)
	}
	return err
}

// quote quotes a path below f for an error message, as the agent writes it.
func (f *files) quote(name string) string {
	if f.prefix != "" && name == "." {
		return quotePath(strings.TrimSuffix(f.prefix, "/"))
	}
	return quotePath(f.prefix + name)
}

// quotePath quotes a path for an error message, cut to maxShownBytes.
func quotePath(name string) string { return strconv.Quote(protocol.Clip(name, maxShownBytes)) }

// wireText makes text of a file valid for JSON: it replaces bytes that are not UTF-8 by
// the replacement character.
func wireText(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// jsonSize returns the number of bytes that text takes in JSON, without its quotes.
func jsonSize(text string) int {
	size := len(text)
	for i := range len(text) {
		size += escapeSize(text[i])
	}
	return size
}

// escapeSize returns how many extra bytes a byte takes in JSON.
func escapeSize(c byte) int {
	switch {
	case c == '"', c == '\\', c == '\n', c == '\r', c == '\t', c == '\b', c == '\f':
		return 1
	case c < ' ':
		return len(`\u0000`) - 1
	}
	return 0
}

// textFits returns how many bytes of text fit into room bytes of JSON, whole
// characters only, and their size in JSON.
func textFits(text []byte, room int) (fitting, size int) {
	for i, c := range text {
		next := size + 1 + escapeSize(c)
		if next > room {
			whole := protocol.Head(text, i)
			return len(whole), size - (i - len(whole))
		}
		size = next
	}
	return len(text), size
}

// uri is a path such as skill://NAME/FILE to a file of another plugin. It is not
// percent-decoded: its text is the path that is opened.
type uri struct {
	scheme, authority, rest string
}

// splitURI splits a path that begins with a scheme. A single letter is not a scheme: it may
// be a drive.
func splitURI(name string) (uri, bool) {
	scheme, rest, ok := strings.Cut(name, "://")
	if !ok || len(scheme) < 2 || len(name) > maxPathBytes || strings.ContainsRune(name, 0) ||
		strings.ContainsFunc(scheme, noScheme) {
		return uri{}, false
	}
	authority, rest, _ := strings.Cut(rest, "/")
	return uri{scheme, authority, rest}, true
}

func noScheme(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("+-.", r)
}

// reading runs one call of a tool that reads: on the files of the workspace, or on those that a
// URI names. call gets these files and the path within them.
func (f *files) reading(ctx context.Context, name string, call func(in *files, name string) (*Outcome, error),
) (*Outcome, error) {
	u, ok := splitURI(name)
	if !ok {
		in := f.now()
		out, err := call(in, name)
		return out, in.explain(name, err)
	}
	root, err := u.open(ctx, f.services())
	if err != nil {
		return nil, f.explain(name, err)
	}
	defer root.Close()
	in := newFiles(root, f.room+answerFrame, f.wall, f.services)
	in.secrets = f.secrets
	in.prefix = name[:len(name)-len(u.rest)]
	in.place = strconv.Quote(strings.TrimSuffix(in.prefix, "/"))
	if in.prefix[len(in.prefix)-1] != '/' {
		in.prefix += "/"
	}
	rest := cmp.Or(u.rest, ".")
	out, err := call(in, rest)
	return out, in.explain(rest, err)
}

// open opens the folder of the URI with the first plugin of its scheme that can.
func (u uri) open(ctx context.Context, s *host.Services) (*os.Root, error) {
	var schemes []string
	var refused error
	for _, source := range s.Files() {
		scheme := source.Scheme()
		if !strings.EqualFold(scheme, u.scheme) {
			schemes = append(schemes, scheme+"://")
			continue
		}
		root, err := source.OpenFiles(ctx, u.authority)
		if err == nil {
			return root, nil
		}
		if refused == nil {
			refused = err
		}
	}
	switch {
	case refused != nil:
		return nil, refused
	case len(schemes) == 0:
		return nil, protocol.Errorf(protocol.CodeToolError, "nothing here has files under %.64s://; give a path "+
			"relative to the workspace", u.scheme)
	}
	slices.Sort(schemes)
	return nil, protocol.Errorf(protocol.CodeToolError, "nothing here has files under %.64s://; the schemes are %s; "+
		"without one a path is relative to the workspace",
		u.scheme, strings.Join(slices.Compact(schemes), ", "))
}
