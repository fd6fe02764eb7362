package tools

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"

	"a2e/host/wall"
	"a2e/protocol"
)

// What the file tools find wrong with a path. explain puts each into words.
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

// explain makes err the answer to a call about the path name: what is wrong with
// it, and what would be right. Errors that are answers already, and those of a
// context, pass through.
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
		{errIsLink, protocol.CodeToolDenied, "is a link or goes through one; files are written under their real path only"},
		{errHardLink, protocol.CodeToolDenied, "has more than one name (a hard link), and another may lie outside of " + f.place + "; copy it to a new file and use that"},
		{errSpecial, protocol.CodeToolDenied, "is no regular file but a pipe, a socket or a device; the file tools take regular files only"},
		{errKernel, protocol.CodeToolDenied, "lies on a file system of the kernel (such as /proc or /sys); the file tools stay out of those"},
		{errSwapped, protocol.CodeToolDenied, "was replaced while it was being opened; look at it again"},
		{errIsDir, protocol.CodeToolError, "is a folder; this tool takes a file, list_dir shows what is in a folder"},
		{errNotDir, protocol.CodeToolError, "goes through something that is no folder; list_dir shows what is there"},
		{fs.ErrNotExist, protocol.CodeToolError, "does not exist; list_dir and glob show what is there"},
	} {
		if errors.Is(err, r.is) {
			return protocol.Errorf(r.code, "%s %s", f.quote(name), r.text)
		}
	}
	return protocol.Errorf(protocol.CodeToolError, "%s: %s", f.quote(name), reason(err))
}

// reason is the operating system's word for err, without the paths around it.
func reason(err error) string {
	var inPath *fs.PathError
	var inLink *os.LinkError
	switch {
	case errors.As(err, &inPath):
		return reason(inPath.Err)
	case errors.As(err, &inLink):
		return reason(inLink.Err)
	}
	return err.Error()
}

// quote quotes a path below f for an error message, as the agent gives it.
func (f *files) quote(name string) string {
	if f.prefix != "" && name == "." {
		return quotePath(strings.TrimSuffix(f.prefix, "/"))
	}
	return quotePath(f.prefix + name)
}

// quotePath quotes a path for an error message, cut to a bearable length.
func quotePath(name string) string {
	if len(name) > maxShownBytes {
		name = string(runePrefix([]byte(name), maxShownBytes)) + "…"
	}
	return strconv.Quote(name)
}
