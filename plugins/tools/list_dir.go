package tools

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"a2e/protocol"
)

const (
	maxListed      = 10_000 // entries of one list_dir
	entryOverhead  = 64     // bytes around the text of one entry in an answer, at most
	readDirAtATime = 1024
)

type listArgs struct {
	Path string `json:"path"`
}

type listData struct {
	Entries []listEntry `json:"entries"`
}

type listEntry struct {
	Name string    `json:"name"`
	Type entryType `json:"type"`
	Size int64     `json:"size"` // bytes of a file; 0 for anything else
}

// entryType is what list_dir calls the kinds of entries.
type entryType string

const (
	entryFile  entryType = "file"
	entryDir   entryType = "dir"
	entryLink  entryType = "link"
	entryOther entryType = "other"
)

func (f *files) listTool() Tool {
	return fileTool(protocol.ToolDefinition{
		Name: "list_dir",
		Description: "List what is in one folder of the workspace, sorted by name, hidden entries included. Links are listed, not followed. " +
			"Use glob to find files in the folders below.",
		InputParameters: []protocol.ToolParameter{
			{Name: "path", Type: "string", Description: "Folder to list, relative to the workspace (default: the workspace itself); skill://NAME is the folder of a skill."},
		},
		OutputParameters: []protocol.ToolParameter{
			{Name: "entries", Type: "array", Required: true, Description: "One {name, type, size} for each entry: type is file, dir, link or other (pipe, socket, device), size is in bytes and 0 for anything but a file."},
		},
		Idempotent: true,
		Tags:       []string{"file", "read"},
	}, true, f.listDir)
}

func (f *files) listDir(ctx context.Context, a *listArgs) (*Outcome, error) {
	in, name, err := f.at(ctx, cmp.Or(a.Path, "."))
	if err != nil {
		return nil, err
	}
	defer in.leave()
	short, err := in.clean(name)
	if err != nil {
		return nil, err
	}
	dir, real, err := in.openDir(short)
	if err != nil {
		return nil, in.explain(name, err)
	}
	defer dir.Close()
	found, cut, err := readDir(ctx, dir, maxListed)
	if err != nil {
		return nil, in.explain(name, err)
	}
	out := &Outcome{Truncated: cut}
	data := listData{Entries: make([]listEntry, 0, len(found))}
	room := in.room
	for _, d := range found {
		if in.guard.Holds() && in.guard.Hides(path.Join(real, d.Name()), nil) {
			continue
		}
		if room -= jsonSize(d.Name()) + entryOverhead; room < 0 {
			out.Truncated = true
			break
		}
		entry, err := describe(dir, d)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed since
		} else if err != nil {
			return nil, in.explain(name, err)
		}
		data.Entries = append(data.Entries, entry)
	}
	if out.Truncated {
		out.Summary = fmt.Sprintf("the folder has more than these %d entries; use glob with a pattern to see others", len(data.Entries))
	}
	out.Data = data
	return out, nil
}

func describe(dir *os.Root, d fs.DirEntry) (listEntry, error) {
	info, err := dir.Lstat(d.Name())
	if err != nil {
		return listEntry{}, err
	}
	entry := listEntry{Name: wireText(d.Name()), Type: entryOther}
	switch mode := info.Mode(); {
	case mode.IsRegular():
		entry.Type, entry.Size = entryFile, info.Size()
	case mode.IsDir():
		entry.Type = entryDir
	case mode&fs.ModeSymlink != 0:
		entry.Type = entryLink
	}
	return entry, nil
}

// readDir gives the entries of a folder sorted by name. Of more than most
// entries it gives those that come first on the disk, and cut is true.
func readDir(ctx context.Context, dir *os.Root, most int) (found []fs.DirEntry, cut bool, err error) {
	file, err := dir.OpenFile(".", os.O_RDONLY|openNonblock, 0)
	if err != nil {
		return nil, false, err
	}
	defer file.Close()
	for len(found) <= most {
		if err := ctx.Err(); err != nil {
			return nil, false, err
		}
		batch, err := file.ReadDir(readDirAtATime)
		found = append(found, batch...)
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, false, err
		}
	}
	if cut = len(found) > most; cut {
		found = found[:most]
	}
	slices.SortFunc(found, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return found, cut, nil
}
