package tools

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"unicode/utf8"

	"a2e/host/wall"
	"a2e/protocol"
)

// maxEditBytes bounds the files that edit_file holds in memory, before the edit and after it.
const maxEditBytes = 64 << 20

type editArgs struct {
	Path string `json:"path"`
	Old  string `json:"old"`
	New  string `json:"new"`
	All  bool   `json:"all"`
}

type editData struct {
	Path         string `json:"path"`
	Replacements int    `json:"replacements"`
	Size         int    `json:"size"` // of the file afterwards, in bytes
}

func (f *files) editTool() Tool {
	return fileTool(protocol.ToolDefinition{
		Name: "edit_file",
		Description: "Replace a piece of text in a file of the workspace. old must be in the file exactly once, spaces and line breaks included: " +
			"give enough of the lines around it, or set all to replace every occurrence. In a file with CRLF line ends, line breaks in old and new count as CRLF.",
		InputParameters: []protocol.ToolParameter{
			{Name: "path", Type: "string", Required: true, Description: "File to edit, relative to the workspace, under its real path: links are not followed."},
			{Name: "old", Type: "string", Required: true, Description: "The text to be replaced, exactly as it is in the file; not empty."},
			{Name: "new", Type: "string", Required: true, Description: "The text to put in its place; empty to delete."},
			{Name: "all", Type: "boolean", Description: "Replace every occurrence instead of exactly one (default false)."},
		},
		OutputParameters: []protocol.ToolParameter{
			{Name: "path", Type: "string", Required: true, Description: "The file edited, relative to the workspace."},
			{Name: "replacements", Type: "integer", Required: true, Description: "How many occurrences were replaced."},
			{Name: "size", Type: "integer", Required: true, Description: "Size of the file afterwards, in bytes."},
		},
		Tags: []string{"file", "write"},
	}, false, f.editFile)
}

func (f *files) editFile(ctx context.Context, a *editArgs) (*Outcome, error) {
	if err := a.check(); err != nil {
		return nil, err
	}
	short, err := f.cleanWritten(a.Path)
	if err != nil {
		return nil, err
	}
	release, err := f.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	dir, base, err := f.parent(short, false)
	if err != nil {
		return nil, f.explain(a.Path, err)
	}
	defer dir.Close()
	file, info, err := f.openExact(dir, base, os.O_RDWR)
	if err != nil {
		return nil, f.explain(a.Path, err)
	}
	if f.guard.Keeps(short, info) {
		file.Close()
		return nil, f.explain(a.Path, wall.ErrOwn)
	}
	text, err := readText(file, a.Path)
	if err != nil {
		return nil, f.explain(a.Path, err)
	}
	text, n, err := edited(text, a)
	if err != nil {
		return nil, err
	}
	ready := func() error { return errors.Join(ctx.Err(), unchanged(dir, base, info)) }
	if err := replace(dir, base, info, text, ready); err != nil {
		return nil, f.explain(a.Path, err)
	}
	return &Outcome{
		Data:    editData{Path: short, Replacements: n, Size: len(text)},
		Summary: fmt.Sprintf("replaced %d in %s", n, short),
	}, nil
}

// check refuses an edit that says nothing.
func (a *editArgs) check() error {
	switch {
	case a.Old == "":
		return protocol.Errorf(protocol.CodeToolError, "old is empty; give the text to be replaced, or use write_file for a whole new file")
	case a.Old == a.New:
		return protocol.Errorf(protocol.CodeToolError, "old and new are the same; there is nothing to change")
	}
	return nil
}

// readText reads the file to be edited and closes it.
func readText(file *os.File, name string) (string, error) {
	defer file.Close()
	var text strings.Builder
	n, err := io.Copy(&text, io.LimitReader(file, maxEditBytes+1))
	switch {
	case err != nil:
		return "", err
	case n > maxEditBytes:
		return "", protocol.Errorf(protocol.CodeToolError, "%s is larger than %d MiB, which is what edit_file takes; use a command such as sed", quotePath(name), maxEditBytes>>20)
	case !utf8.ValidString(text.String()):
		return "", protocol.Errorf(protocol.CodeToolError, "%s is not UTF-8 text, so edit_file leaves it alone; use a command that knows its format", quotePath(name))
	}
	return text.String(), nil
}

// edited gives the text after the edit and how many pieces were replaced.
func edited(text string, a *editArgs) (string, int, error) {
	before, after := a.Old, a.New
	if breaks := strings.Count(text, "\n"); breaks > 0 && breaks == strings.Count(text, "\r\n") {
		before, after = withCRLF(before), withCRLF(after)
	}
	n := strings.Count(text, before)
	first := strings.Index(text, before)
	switch {
	case n == 0:
		return "", 0, protocol.Errorf(protocol.CodeToolError,
			"old was not found in %s; it has to match exactly, spaces and line breaks included: read the file again", quotePath(a.Path))
	case before == after:
		return "", 0, protocol.Errorf(protocol.CodeToolError, "old and new are the same but for line breaks, which %s has as CRLF; there is nothing to change", quotePath(a.Path))
	case !a.All && strings.LastIndex(text, before) != first:
		return "", 0, protocol.Errorf(protocol.CodeToolError,
			"old occurs %d times in %s and has to occur once: add lines around it, or set all to replace every occurrence", max(n, 2), quotePath(a.Path))
	}
	if size := int64(len(text)) + int64(n)*int64(len(after)-len(before)); size > maxEditBytes {
		return "", 0, protocol.Errorf(protocol.CodeToolError, "%s would have %d bytes after the edit, and edit_file makes files of %d MiB at most; nothing was written: replace less, or use a command such as sed",
			quotePath(a.Path), size, maxEditBytes>>20)
	}
	if a.All {
		return strings.ReplaceAll(text, before, after), n, nil
	}
	return text[:first] + after + text[first+len(before):], 1, nil
}

// withCRLF makes every line break a CRLF.
func withCRLF(s string) string {
	return strings.ReplaceAll(strings.ReplaceAll(s, "\r\n", "\n"), "\n", "\r\n")
}

// unchanged sees that the file is still the one that was read, so that what
// another process wrote in the meantime is not lost.
func unchanged(dir *os.Root, base string, old fs.FileInfo) error {
	now, err := dir.Lstat(base)
	if err != nil {
		return err
	}
	if !os.SameFile(old, now) || !now.ModTime().Equal(old.ModTime()) || now.Size() != old.Size() {
		return protocol.Errorf(protocol.CodeToolError, "another process changed %s meanwhile and nothing was written; read it again", quotePath(base))
	}
	return nil
}
