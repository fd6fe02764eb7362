package toolkits

import (
	"context"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"a2e/host"
	"a2e/plugins/tools"
	"a2e/protocol"
)

// changed is the data of git_add.
type changed struct {
	Staged []string `json:"staged"`
}

func (r *repo) add() tools.Tool {
	def := protocol.ToolDefinition{
		Name: "git_add", Description: "Stage files for the next commit, deleted ones included. Submodules are left out.", Tags: []string{"write"}, Idempotent: true,
		InputParameters: []protocol.ToolParameter{
			{Name: "paths", Type: "array", Required: true, Description: "Files and folders, relative to the repository's top folder; \".\" is all."},
		},
		OutputParameters: []protocol.ToolParameter{{Name: "staged", Type: "array", Required: true, Description: "All files that are staged now."}},
	}
	type in struct {
		Paths []string `json:"paths"`
	}
	return tool(def, host.ToolDetail{Idempotent: true}, func(ctx context.Context, a *in) (*tools.Outcome, error) {
		if len(a.Paths) == 0 || len(a.Paths) > 1000 {
			return nil, protocol.Violation(protocol.FieldError{Path: "/arguments/paths", Message: "must name 1 to 1000 files or folders; \".\" is all"})
		}
		for i := range a.Paths {
			if a.Paths[i] == "" {
				a.Paths[i] = ".." // refused by the same words
			}
			if err := r.treePath("paths/"+strconv.Itoa(i), &a.Paths[i]); err != nil {
				return nil, err
			}
		}
		r.change.Lock()
		defer r.change.Unlock()
		if err := r.stage(ctx, a.Paths); err != nil {
			return nil, err
		}
		out, err := r.Run(ctx, "diff", "--cached", "--name-only", "-z", "--no-ext-diff", "--no-textconv", "--no-renames", "--ignore-submodules=dirty")
		if err != nil {
			return nil, err
		}
		staged := strings.FieldsFunc(out.Text, func(c rune) bool { return c == 0 })
		if staged == nil {
			staged = []string{}
		}
		return &tools.Outcome{Data: &changed{staged}, Summary: strconv.Itoa(len(staged)) + " files are staged", Truncated: out.Cut}, nil
	})
}

// maxListing bounds the list of a repository's files, in bytes: some 800,000 of them.
const maxListing = 64 << 20

// stage adds what lies under the paths, but for submodules: git would look into each with
// that repository's own filters.
func (r *repo) stage(ctx context.Context, paths []string) error {
	out, err := r.List(ctx, maxListing, "ls-files", "--stage", "-z")
	if err != nil {
		return err
	}
	if out.Cut {
		return protocol.Errorf(protocol.CodeToolError, "the repository has too many files to look for submodules among them")
	}
	args := []string{"--no-literal-pathspecs", "add", "--all", "--"}
	for _, p := range paths {
		if filepath.Clean(p) == "." { // which git takes literally, and so for nothing
			args = append(args, ":(top)")
			continue
		}
		args = append(args, ":(top,literal)"+p)
	}
	for record := range strings.SplitSeq(out.Text, "\x00") {
		if name, ok := strings.CutPrefix(record, "160000 "); ok {
			_, name, _ = strings.Cut(name, "\t")
			if slices.Contains(paths, name) {
				return protocol.Errorf(protocol.CodeToolDenied, "%q is a submodule, which this tool does not stage", name)
			}
			args = append(args, ":(top,literal,exclude)"+name)
		}
	}
	_, err = r.Run(ctx, args...)
	return err
}

func (r *repo) commit() tools.Tool {
	def := protocol.ToolDefinition{
		Name: "git_commit", Description: "Commit what is staged. No hook runs.", Tags: []string{"write"},
		InputParameters: []protocol.ToolParameter{
			{Name: "message", Type: "string", Required: true, Description: "The message: a subject, and after an empty line more."},
			{Name: "all", Type: "boolean", Description: "Stage all changed and deleted files that are tracked first."},
		},
		OutputParameters: []protocol.ToolParameter{
			{Name: "hash", Type: "string", Required: true, Description: "The new commit."},
			{Name: "subject", Type: "string", Required: true, Description: "The first line of its message."},
			{Name: "files_changed", Type: "integer", Required: true, Description: "How many files differ from the commit before."},
		},
	}
	type in struct {
		Message string `json:"message"`
		All     bool   `json:"all"`
	}
	type result struct {
		Hash         string `json:"hash"`
		Subject      string `json:"subject"`
		FilesChanged int    `json:"files_changed"`
	}
	return tool(def, host.ToolDetail{}, func(ctx context.Context, a *in) (*tools.Outcome, error) {
		if strings.TrimSpace(a.Message) == "" || strings.ContainsRune(a.Message, 0) {
			return nil, protocol.Violation(protocol.FieldError{Path: "/arguments/message", Message: "must say something, without NUL characters"})
		}
		r.change.Lock()
		defer r.change.Unlock()
		args := []string{"commit", "--no-verify", "--no-gpg-sign", "--no-edit", "--no-status", "--quiet", "--cleanup=whitespace", "--message=" + a.Message}
		if a.All {
			args = append(args, "--all")
		}
		if _, err := r.Run(ctx, args...); err != nil {
			return nil, err
		}
		out, err := r.Run(ctx, append([]string{"show", "--no-show-signature", "--no-notes", "--name-only", commitFormat}, plain(diffFlags(), "HEAD", "")...)...)
		if err != nil {
			return nil, err
		}
		commits, files := parseCommits(out.Text)
		if len(commits) != 1 {
			return nil, protocol.Errorf(protocol.CodeToolError, "the commit was made, but git does not show it")
		}
		data := &result{commits[0].Hash, commits[0].Subject, len(strings.FieldsFunc(files, func(c rune) bool { return c == '\n' }))}
		return &tools.Outcome{Data: data, Summary: data.Hash[:min(len(data.Hash), 10)] + " " + data.Subject}, nil
	})
}
