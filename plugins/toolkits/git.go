package toolkits

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"a2e/host"
	"a2e/host/sandbox"
	"a2e/plugins/tools"
	"a2e/protocol"
)

// gitTools names the tools of the toolkit git.
func gitTools() []string {
	return []string{"git_add", "git_commit", "git_diff", "git_log", "git_show", "git_status"}
}

// repo is the repository of the toolkit git.
type repo struct {
	dir      string // absolute, the top of the working tree
	opts     GitOptions
	program  string // absolute path of git
	launcher *sandbox.Launcher
	room     int // bytes of output that are kept of one command

	change sync.Mutex // one command at a time that changes the index
}

// newGit makes the toolkit git.
func (p *Plugin) newGit(o GitOptions, byConfig bool) (*made, error) {
	root, err := p.openFolder("repo", o.Repo, byConfig)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	if _, err := root.Lstat(".git"); err != nil {
		return nil, p.wrongSetting("repo", "is not the top folder of a git working tree: it has no .git", byConfig)
	}
	dir, err := filepath.Abs(root.Name())
	if err != nil {
		return nil, err
	}
	for _, author := range []string{o.AuthorName, o.AuthorEmail} {
		if strings.ContainsAny(author, "<>\n\x00") {
			return nil, p.wrongSetting("author_name or author_email", "holds one of < > or a line break", byConfig)
		}
	}
	launcher, err := p.env.Confined(dir)
	if err != nil {
		return nil, err
	}
	program, err := sandbox.LookPath("git", launcher.Path(), dir)
	if err != nil {
		return nil, errors.Join(protocol.Errorf(protocol.CodeToolError, "the toolkit git needs git: %w", err), launcher.Close())
	}
	r := &repo{dir: dir, opts: o, program: program, launcher: launcher, room: max(p.env.MaxOutputBytes, defaultRoom)}
	all := []tools.Tool{r.status(), r.diff(), r.log(), r.show()}
	if !o.ReadOnly {
		all = append(all, r.add(), r.commit())
	}
	return newMade(kitGit, all, func() {
		if err := launcher.Close(); err != nil {
			p.env.Log.Warn().Err(err).Msg("the sandbox of the toolkit git did not close cleanly")
		}
	}), nil
}

// defaultRoom bounds the output of one git command that is kept, in bytes.
const defaultRoom = 1 << 20

// setting is one entry of git's configuration.
type setting struct{ key, value string }

// settings are given to every git command, so that nothing which the repository brings
// runs: no hook, no pager, no filter, no editor, no signing, no helper, no transport.
func settings() []setting {
	return []setting{
		{"core.hooksPath", "/dev/null"}, {"core.pager", "cat"}, {"core.fsmonitor", "false"}, {"core.editor", "false"}, {"sequence.editor", "false"},
		{"core.sshCommand", "false"}, {"core.askPass", ""}, {"core.gitProxy", ""}, {"core.alternateRefsCommand", "false"},
		{"core.attributesFile", "/dev/null"}, {"core.excludesFile", "/dev/null"}, {"core.quotePath", "false"},
		{"credential.helper", ""}, {"protocol.allow", "never"}, {"diff.external", ""}, {"diff.submodule", "short"}, {"diff.ignoreSubmodules", "dirty"},
		{"status.submoduleSummary", "false"}, {"submodule.recurse", "false"}, {"log.showSignature", "false"}, {"log.mailmap", "false"},
		{"commit.gpgSign", "false"}, {"commit.template", ""}, {"gpg.program", "false"}, {"gpg.ssh.program", "false"}, {"gpg.x509.program", "false"},
		{"gpg.ssh.defaultKeyCommand", ""}, {"maintenance.auto", "false"}, {"gc.auto", "0"}, {"rerere.enabled", "false"},
		{"color.ui", "false"}, {"i18n.logOutputEncoding", "UTF-8"},
	}
}

// variables are the environment of every git command, beyond what each child has.
func (r *repo) variables() map[string]string {
	vars := map[string]string{
		"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "/bin/false", "SSH_ASKPASS": "/bin/false",
		"GIT_PAGER": "cat", "PAGER": "cat", "GIT_EDITOR": "false", "GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "", "GIT_CEILING_DIRECTORIES": filepath.Dir(r.dir),
		"GIT_LITERAL_PATHSPECS": "1", "GIT_ATTR_NOSYSTEM": "1", "LC_ALL": "C.UTF-8",
	}
	if r.opts.AuthorName != "" {
		vars["GIT_AUTHOR_NAME"], vars["GIT_COMMITTER_NAME"] = r.opts.AuthorName, r.opts.AuthorName
	}
	if r.opts.AuthorEmail != "" {
		vars["GIT_AUTHOR_EMAIL"], vars["GIT_COMMITTER_EMAIL"] = r.opts.AuthorEmail, r.opts.AuthorEmail
	}
	return vars
}

// output is what a git command printed.
type output struct {
	stdout, stderr bounded
	state          sandbox.State
}

// run runs one git command, with the drivers that the repository's config defines
// switched off. The error says what git said when it failed.
func (r *repo) run(ctx context.Context, args ...string) (*output, error) {
	off, err := r.drivers(ctx)
	if err != nil {
		return nil, err
	}
	return r.git(ctx, off, args...)
}

// drivers lists settings that take away what the repository's own config would run on the
// content of files: filters (clean, smudge, process), textconv, external diff commands
// and trailers.
func (r *repo) drivers(ctx context.Context) ([]setting, error) {
	out, err := r.git(ctx, nil, "config", "--includes", "--name-only", "-z", "--list")
	if err != nil {
		return nil, err
	}
	var off []setting
	has := map[string]bool{}
	for key := range strings.SplitSeq(out.stdout.String(), "\x00") {
		if has[key] {
			continue
		}
		has[key] = true
		section, rest, _ := strings.Cut(key, ".")
		at := strings.LastIndexByte(rest, '.')
		if at < 0 {
			continue
		}
		switch name := rest[at+1:]; section + "." + name {
		case "filter.clean", "filter.smudge", "filter.process", "diff.command", "diff.textconv", "merge.driver", "trailer.command", "trailer.cmd":
			off = append(off, setting{key, ""})
		case "filter.required":
			off = append(off, setting{key, "false"})
		}
	}
	if !has["user.name"] && r.opts.AuthorName == "" {
		off = append(off, setting{"user.name", "a2e agent"})
	}
	if !has["user.email"] && r.opts.AuthorEmail == "" {
		off = append(off, setting{"user.email", "agent@a2e.invalid"})
	}
	return off, nil
}

// git runs one command with further settings.
func (r *repo) git(ctx context.Context, off []setting, args ...string) (*output, error) {
	return r.gitWithin(ctx, r.room, off, args...)
}

// gitWithin is git with another bound of the output that is kept.
func (r *repo) gitWithin(ctx context.Context, room int, off []setting, args ...string) (*output, error) {
	argv := []string{"git", "--no-pager", "--git-dir=.git", "--work-tree=."}
	vars := r.variables()
	for i, s := range slices.Concat(settings(), off) { // not by -c, which a name with "=" in it would mislead
		n := strconv.Itoa(i)
		vars["GIT_CONFIG_KEY_"+n], vars["GIT_CONFIG_VALUE_"+n], vars["GIT_CONFIG_COUNT"] = s.key, s.value, strconv.Itoa(i+1)
	}
	out := &output{stdout: bounded{room: room}, stderr: bounded{room: 16 << 10}}
	proc, err := r.launcher.Command(ctx, sandbox.Policy{
		Path: r.program, Args: append(argv, args...), Dir: r.dir, HostEnv: vars, Stdout: &out.stdout, Stderr: &out.stderr,
	})
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeToolError, "git cannot be started: %w", err)
	}
	out.state, err = proc.Wait()
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.Is(err, sandbox.ErrMemory):
		return nil, protocol.Errorf(protocol.CodeOutOfMemory, "git was stopped: %w", err)
	case err != nil:
		return nil, protocol.Errorf(protocol.CodeSandboxCrash, "git was lost: %w", err)
	case out.state.Code != 0 || out.state.Signal != 0:
		return nil, protocol.Errorf(protocol.CodeToolError, "git %s: %s", args[slices.IndexFunc(args, isCommand)], said(out))
	}
	return out, nil
}

// isCommand tells whether an argument of git is its command, not an option.
func isCommand(arg string) bool { return !strings.HasPrefix(arg, "-") }

// said gives the reason for a failure in git's words.
func said(out *output) string {
	text := strings.TrimSpace(out.stderr.String())
	if text == "" {
		text = strings.TrimSpace(out.stdout.String())
	}
	if text == "" {
		text = out.state.String()
	}
	return text
}

// bounded keeps the first bytes that are written to it.
type bounded struct {
	room int
	kept bytes.Buffer
	cut  bool // there was more
}

// Write implements io.Writer.
func (b *bounded) Write(p []byte) (int, error) {
	fits := min(len(p), b.room-b.kept.Len())
	b.kept.Write(p[:fits])
	b.cut = b.cut || fits < len(p)
	return len(p), nil
}

// String gives what was kept as UTF-8.
func (b *bounded) String() string { return strings.ToValidUTF8(b.kept.String(), "�") }

// revision refuses what git would not take for a revision.
func revision(name, rev string) error {
	if len(rev) <= 512 && !strings.HasPrefix(rev, "-") && !strings.ContainsAny(rev, "\x00\n") {
		return nil
	}
	return protocol.Violation(protocol.FieldError{Path: "/arguments/" + name, Message: "is no revision, such as HEAD~1, a branch, a tag, a hash or A..B"})
}

// treePath refuses a path that is not one of the working tree.
func treePath(name, file string) error {
	if file == "" || filepath.IsLocal(file) && !strings.ContainsRune(file, 0) {
		return nil
	}
	return protocol.Violation(protocol.FieldError{Path: "/arguments/" + name, Message: "must be a path in the repository, relative to its top folder"})
}

// tool makes a git tool of a typed function.
func tool[A any](def protocol.ToolDefinition, detail host.ToolDetail, fn func(context.Context, *A) (*tools.Outcome, error)) tools.Tool {
	return tools.Tool{Def: def, Detail: detail, Call: func(ctx context.Context, args protocol.Object, _ host.Emitter) (*tools.Outcome, error) {
		in := new(A)
		if err := args.Decode(in); err != nil {
			return nil, err
		}
		return fn(ctx, in)
	}}
}

// exists tells whether there is such a revision. The error says why git cannot tell, such
// as a repository that is broken.
func (r *repo) exists(ctx context.Context, rev string) (bool, error) {
	if _, err := r.run(ctx, "rev-parse", "--verify", "--quiet", "--end-of-options", rev); err == nil {
		return true, nil
	}
	_, err := r.run(ctx, "rev-parse", "--git-dir")
	return false, err
}
