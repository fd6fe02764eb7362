package toolkits

import (
	"cmp"
	"context"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"a2e/host"
	"a2e/plugins/tools"
	"a2e/protocol"
)

// reads returns the detail of tools that change nothing.
func reads() host.ToolDetail { return host.ToolDetail{ReadOnly: true, Idempotent: true} }

// gitFile is one changed file of git_status.
type gitFile struct {
	Path     string `json:"path"`
	From     string `json:"from,omitzero"` // its path before it was renamed or copied
	Index    string `json:"index"`         // what is staged: a letter of git status, "." = unchanged
	Worktree string `json:"worktree"`      // the same for the working tree; "?" = not tracked
}

// gitStatus is the data of git_status.
type gitStatus struct {
	Branch   string    `json:"branch" need:"The branch; empty when none is checked out."`
	Commit   string    `json:"commit"` // "" = no commit yet
	Upstream string    `json:"upstream"`
	Ahead    int       `json:"ahead"`
	Behind   int       `json:"behind"`
	Clean    bool      `json:"clean" need:"Whether nothing is changed and nothing untracked."`
	Files    []gitFile `json:"files" need:"{path, index, worktree}: letters as git status has them."`
}

func (r *repo) status() tools.Tool {
	def := protocol.ToolDefinition{
		Name: "git_status", Description: "Show the branch and the files that are changed, staged or not tracked.",
		Tags: []string{"read"}, Idempotent: true,
	}
	return tools.Typed[struct{}, gitStatus](def, reads(), func(ctx context.Context, _ *struct{}) (*tools.Outcome,
		error,
	) {
		out, err := r.Run(ctx, "status", "--porcelain=v2", "--branch", "-z", "--untracked-files=all",
			"--ignore-submodules=dirty")
		if err != nil {
			return nil, err
		}
		s := parseStatus(out.Text)
		summary := "clean"
		if !s.Clean {
			summary = protocol.Count(len(s.Files), "changed file")
		}
		return &tools.Outcome{Data: s, Summary: summary + " on " + s.Branch, Truncated: out.Cut}, nil
	})
}

// parseStatus reads the porcelain format, version 2, with NUL after each record.
func parseStatus(text string) *gitStatus {
	s := &gitStatus{Files: []gitFile{}}
	records := strings.Split(text, "\x00")
	for i := 0; i < len(records); i++ {
		kind, rest, _ := strings.Cut(records[i], " ")
		switch kind {
		case "#":
			s.header(rest)
		case "?":
			s.Files = append(s.Files, gitFile{Path: rest, Index: ".", Worktree: "?"})
		case "1", "u", "2":
			fields := map[string]int{"1": 8, "2": 9, "u": 10}[kind]
			parts := strings.SplitN(rest, " ", fields)
			if len(parts) < fields || len(parts[0]) != 2 {
				continue // cut off by the limit of output
			}
			f := gitFile{Path: parts[fields-1], Index: parts[0][:1], Worktree: parts[0][1:]}
			if kind == "2" && i+1 < len(records) {
				i++
				f.From = records[i]
			}
			s.Files = append(s.Files, f)
		}
	}
	s.Clean = len(s.Files) == 0
	return s
}

func (s *gitStatus) header(line string) {
	name, value, _ := strings.Cut(line, " ")
	switch name {
	case "branch.head":
		if value != "(detached)" {
			s.Branch = value
		}
	case "branch.oid":
		if value != "(initial)" {
			s.Commit = value
		}
	case "branch.upstream":
		s.Upstream = value
	case "branch.ab":
		ahead, behind, _ := strings.Cut(value, " ")
		s.Ahead, _ = strconv.Atoi(strings.TrimPrefix(ahead, "+"))
		s.Behind, _ = strconv.Atoi(strings.TrimPrefix(behind, "-"))
	}
}

// gitText is the data of a tool that returns a diff.
type gitText struct {
	Diff string `json:"diff" need:"Empty when nothing differs."`
}

// diffFlags returns flags that keep git from running other programs for a diff.
func diffFlags() []string {
	return []string{"--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=dirty"}
}

func (r *repo) diff() tools.Tool {
	def := protocol.ToolDefinition{
		Name: "git_diff", Description: "Show changes as a unified diff: of the working tree, of what is staged, or " +
			"between revisions.", Tags: []string{"read"}, Idempotent: true,
	}
	type in struct {
		Staged bool   `json:"staged" may:"Show what is staged instead of what is not."`
		Rev    string `json:"rev" may:"Compare with this revision, or a range A..B."`
		Path   string `json:"path" may:"Only this file or folder."`
	}
	return tools.Typed[in, gitText](def, reads(), func(ctx context.Context, a *in) (*tools.Outcome, error) {
		if err := cmp.Or(revision("rev", a.Rev), r.treePath("path", &a.Path)); err != nil {
			return nil, err
		}
		args := append([]string{"diff"}, diffFlags()...)
		if a.Staged {
			args = append(args, "--cached")
		}
		return r.text(ctx, plain(args, a.Rev, a.Path))
	})
}

// text runs a command that prints a diff.
func (r *repo) text(ctx context.Context, args []string) (*tools.Outcome, error) {
	out, err := r.Run(ctx, args...)
	if err != nil {
		return nil, err
	}
	return &tools.Outcome{Data: &gitText{Diff: out.Text}, Truncated: out.Cut}, nil
}

// plain adds a revision and a file to a command line so that git takes neither for an option.
func plain(args []string, rev, file string) []string {
	args = append(args, "--end-of-options")
	if rev != "" {
		args = append(args, rev)
	}
	args = append(args, "--")
	if file != "" {
		args = append(args, file)
	}
	return args
}

// gitCommit is one commit.
type gitCommit struct {
	Hash    string   `json:"hash"`
	Parents []string `json:"parents"`
	Author  string   `json:"author"`
	Email   string   `json:"email"`
	Date    string   `json:"date"` // RFC 3339
	Subject string   `json:"subject"`
	Body    string   `json:"body"`
}

// commitFormat prints a record separator, and then each field with a unit separator behind
// it; NUL cannot be used, since git uses it itself.
const commitFormat = "--format=tformat:%x1e%H%x1f%P%x1f%an%x1f%ae%x1f%aI%x1f%s%x1f%b%x1f"

// parseCommits parses output of git in commitFormat; rest is the text after the last commit.
func parseCommits(text string) (commits []gitCommit, rest string) {
	commits = []gitCommit{}
	for record := range strings.SplitSeq(text, "\x1e") {
		if c, after, ok := parseCommit(record); ok {
			commits, rest = append(commits, c), after
		}
	}
	return commits, rest
}

// parseCommit parses one record without its separator. rest is the text after it: a diff, which may
// contain the separators, too.
func parseCommit(record string) (c gitCommit, rest string, ok bool) {
	f := strings.SplitN(record, "\x1f", 8)
	if len(f) < 8 {
		return gitCommit{}, "", false
	}
	return gitCommit{
		Hash: f[0], Parents: strings.Fields(f[1]), Author: f[2], Email: f[3], Date: f[4], Subject: f[5],
		Body: strings.TrimSpace(f[6]),
	}, strings.TrimLeft(f[7], "\n"), true
}

func (r *repo) log() tools.Tool {
	def := protocol.ToolDefinition{
		Name: "git_log", Description: "List commits, the newest first.", Tags: []string{"read"}, Idempotent: true,
	}
	type in struct {
		Limit int    `json:"limit" may:"At most this many commits, 1 to 1000. Default: 20."`
		Rev   string `json:"rev" may:"From this revision back, or a range A..B. Default: HEAD."`
		Path  string `json:"path" may:"Only commits that changed this file or folder."`
	}
	type result struct {
		Commits []gitCommit `json:"commits" need:"{hash, parents, author, email, date, subject, body}"`
	}
	return tools.Typed[in, result](def, reads(), func(ctx context.Context, a *in) (*tools.Outcome, error) {
		if a.Limit == 0 {
			a.Limit = 20
		}
		if a.Limit < 1 || a.Limit > 1000 {
			return nil, protocol.Violation(protocol.FieldError{Path: "/arguments/limit", Message: "must be 1 to 1000"})
		}
		if err := cmp.Or(revision("rev", a.Rev), r.treePath("path", &a.Path)); err != nil {
			return nil, err
		}
		if a.Rev == "" {
			if has, err := r.exists(ctx, "HEAD"); err != nil {
				return nil, err
			} else if !has {
				return &tools.Outcome{Data: &result{Commits: []gitCommit{}}, Summary: "no commits yet"}, nil
			}
		}
		out, err := r.Run(ctx, plain([]string{
			"log", "--no-color", "--no-show-signature", "--no-notes", "-n",
			strconv.Itoa(a.Limit), commitFormat,
		}, a.Rev, a.Path)...)
		if err != nil {
			return nil, err
		}
		commits, _ := parseCommits(out.Text)
		return &tools.Outcome{
			Data: &result{commits}, Summary: protocol.Count(len(commits), "commit"),
			Truncated: out.Cut,
		}, nil
	})
}

func (r *repo) show() tools.Tool {
	def := protocol.ToolDefinition{
		Name: "git_show", Description: "Show one commit with its changes or, with path, a file as it was in that " +
			"revision.", Tags: []string{"read"}, Idempotent: true,
	}
	type in struct {
		Rev  string `json:"rev" may:"The revision. Default: HEAD."`
		Path string `json:"path" may:"A file whose content is shown instead."`
	}
	type result struct {
		Commit gitCommit `json:"commit" may:"{hash, parents, author, email, date, subject, body}; without path."`
		Diff   string    `json:"diff" may:"The commit's changes; without path."`
	}
	type content struct {
		Content string `json:"content" may:"The file's content; with path."`
	}
	return tools.Typed[in, struct {
		result
		content
	}](def, reads(), func(ctx context.Context, a *in) (*tools.Outcome, error) {
		if a.Rev == "" {
			a.Rev = "HEAD"
		}
		if err := cmp.Or(revision("rev", a.Rev), r.treePath("path", &a.Path)); err != nil {
			return nil, err
		}
		if a.Path != "" {
			out, err := r.Run(ctx, "cat-file", "blob", "--end-of-options", a.Rev+":"+a.Path)
			if err != nil {
				return nil, err
			}
			return &tools.Outcome{Data: &content{out.Text}, Truncated: out.Cut}, nil
		}
		args := append([]string{"show", "--no-show-signature", "--no-notes", commitFormat}, diffFlags()...)
		out, err := r.Run(ctx, plain(args, a.Rev+"^{commit}", "")...)
		if err != nil {
			return nil, err
		}
		shown, diff, ok := parseCommit(strings.TrimPrefix(out.Text, "\x1e"))
		if !ok || strings.Contains(a.Rev, "..") {
			return nil, protocol.Errorf(protocol.CodeToolError, "%q names no single commit", a.Rev)
		}
		return &tools.Outcome{Data: &result{shown, diff}, Summary: shown.Subject, Truncated: out.Cut}, nil
	})
}

// changed is the data of git_add.
type changed struct {
	Staged []string `json:"staged" need:"All files that are staged now."`
}

func (r *repo) add() tools.Tool {
	def := protocol.ToolDefinition{
		Name: "git_add", Description: "Stage files for the next commit, deleted ones included. Submodules are left out.", Tags: []string{"write"}, Idempotent: true,
	}
	type in struct {
		Paths []string `json:"paths" need:"Files and folders, relative to the repository's top folder; \".\" is all."`
	}
	return tools.Typed[in, changed](def, host.ToolDetail{Idempotent: true}, func(ctx context.Context,
		a *in,
	) (*tools.Outcome, error) {
		if len(a.Paths) == 0 || len(a.Paths) > 1000 {
			return nil, protocol.Violation(protocol.FieldError{Path: "/arguments/paths", Message: "must name 1 to " +
				"1000 files or folders; \".\" is all"})
		}
		for i := range a.Paths {
			if a.Paths[i] == "" {
				a.Paths[i] = ".." // treePath refuses it with its usual text
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
		out, err := r.Run(ctx, "diff", "--cached", "--name-only", "-z", "--no-ext-diff", "--no-textconv",
			"--no-renames", "--ignore-submodules=dirty")
		if err != nil {
			return nil, err
		}
		staged := strings.FieldsFunc(out.Text, func(c rune) bool { return c == 0 })
		if staged == nil {
			staged = []string{}
		}
		return &tools.Outcome{
			Data: &changed{staged}, Summary: protocol.Count(len(staged), "file") + " staged",
			Truncated: out.Cut,
		}, nil
	})
}

// maxListing bounds the list of a repository's files, in bytes: some 800,000 of them.
const maxListing = 64 << 20

// stage adds the files under the paths to the index, except submodules: in each of these git would
// run that repository's own filters.
func (r *repo) stage(ctx context.Context, paths []string) error {
	out, err := r.List(ctx, maxListing, "ls-files", "--stage", "-z")
	if err != nil {
		return err
	}
	if out.Cut {
		return protocol.Errorf(protocol.CodeToolError, "the repository has too many files to look for submodules "+
			"among them")
	}
	args := []string{"--no-literal-pathspecs", "add", "--all", "--"}
	for _, p := range paths {
		if filepath.Clean(p) == "." { // git takes it literally, so it would match nothing
			args = append(args, ":(top)")
			continue
		}
		args = append(args, ":(top,literal)"+p)
	}
	for record := range strings.SplitSeq(out.Text, "\x00") {
		if name, ok := strings.CutPrefix(record, "160000 "); ok {
			_, name, _ = strings.Cut(name, "\t")
			if slices.Contains(paths, name) {
				return protocol.Errorf(protocol.CodeToolDenied, "%q is a submodule, which this tool does not stage",
					name)
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
	}
	type in struct {
		Message string `json:"message" need:"The message: a subject, and after an empty line more."`
		All     bool   `json:"all" may:"Stage all changed and deleted files that are tracked first."`
	}
	type result struct {
		Hash         string `json:"hash" need:"The new commit."`
		Subject      string `json:"subject" need:"The first line of its message."`
		FilesChanged int    `json:"files_changed" need:"How many files differ from the commit before."`
	}
	return tools.Typed[in, result](def, host.ToolDetail{}, func(ctx context.Context, a *in) (*tools.Outcome, error) {
		if strings.TrimSpace(a.Message) == "" || strings.ContainsRune(a.Message, 0) {
			return nil, protocol.Violation(protocol.FieldError{
				Path:    "/arguments/message",
				Message: "must say something, without NUL characters",
			})
		}
		r.change.Lock()
		defer r.change.Unlock()
		args := []string{
			"commit", "--no-verify", "--no-gpg-sign", "--no-edit", "--no-status", "--quiet",
			"--cleanup=whitespace", "--message=" + a.Message,
		}
		if a.All {
			args = append(args, "--all")
		}
		if _, err := r.Run(ctx, args...); err != nil {
			return nil, err
		}
		out, err := r.Run(ctx, append([]string{
			"show", "--no-show-signature", "--no-notes", "--name-only",
			commitFormat,
		}, plain(diffFlags(), "HEAD", "")...)...)
		if err != nil {
			return nil, err
		}
		commits, files := parseCommits(out.Text)
		if len(commits) != 1 {
			return nil, protocol.Errorf(protocol.CodeToolError, "the commit was made, but git does not show it")
		}
		data := &result{
			commits[0].Hash, commits[0].Subject,
			len(strings.FieldsFunc(files, func(c rune) bool { return c == '\n' })),
		}
		return &tools.Outcome{Data: data, Summary: data.Hash[:min(len(data.Hash), 10)] + " " + data.Subject}, nil
	})
}
