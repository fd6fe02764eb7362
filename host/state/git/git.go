// Package git runs the real git on one repository. It switches off everything through which the repository could run
// programs: hooks, pager, filters, textconv, editors, signing, credential helpers, transports.
package git

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"a2e/host/sandbox"
	"a2e/protocol"
)

// Repo is one repository. Its commands run in the sandbox. It is safe for concurrent use.
type Repo struct {
	Dir      string // absolute path of the top of the working tree
	GitDir   string // absolute path of a repository that git may change although it only reads Dir; "" = .git in Dir
	Launcher *sandbox.Launcher
	Folder   *os.File // Dir as an open folder, where git runs even if Dir was replaced; nil = opened by its path
	Write    []string // absolute paths of further folders that git may change
	Room     int      // maximum output of a command that is kept, in bytes; at least 1 MiB

	// AuthorName and AuthorEmail are the author of commits; "" = the author in the repository's config, or
	// else a name for an agent.
	AuthorName, AuthorEmail string

	program string
}

// Open looks for the program git and returns a Repo. It fails if there is no git.
func Open(r Repo) (*Repo, error) {
	program, err := sandbox.LookPath("git", r.Launcher.Path(), r.Dir)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeToolError, "there is no git: %w", err)
	}
	r.program = program
	r.Room = max(r.Room, 1<<20)
	return &r, nil
}

// setting is one setting of git's configuration.
type setting struct{ key, value string }

// settings returns the settings for every git command, so that nothing from the repository is run: no
// hook, pager, filter, editor, signing program, helper or transport.
func settings() []setting {
	return []setting{
		{"core.hooksPath", "/dev/null"},
		{"core.pager", "cat"},
		{"core.fsmonitor", "false"},
		{"core.editor", "false"},
		{"sequence.editor", "false"},
		{"core.sshCommand", "false"},
		{"core.askPass", ""},
		{"core.gitProxy", ""},
		{"core.alternateRefsCommand", "false"},
		{"core.attributesFile", "/dev/null"},
		{"core.excludesFile", "/dev/null"},
		{"core.quotePath", "false"},
		{"credential.helper", ""},
		{"protocol.allow", "never"},
		{"diff.external", ""},
		{"diff.submodule", "short"},
		{"diff.ignoreSubmodules", "dirty"},
		{"status.submoduleSummary", "false"},
		{"submodule.recurse", "false"},
		{"log.showSignature", "false"},
		{"log.mailmap", "false"},
		{"commit.gpgSign", "false"},
		{"commit.template", ""},
		{"gpg.program", "false"},
		{"gpg.ssh.program", "false"},
		{"gpg.x509.program", "false"},
		{"gpg.ssh.defaultKeyCommand", ""},
		{"maintenance.auto", "false"},
		{"gc.auto", "0"},
		{"rerere.enabled", "false"},
		{"color.ui", "false"},
		{"i18n.logOutputEncoding", "UTF-8"},
	}
}

// variables returns the environment of every git command, in addition to that of every child.
func (r *Repo) variables() map[string]string {
	vars := map[string]string{
		"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_TERMINAL_PROMPT": "0",
		"GIT_ASKPASS": "/bin/false", "SSH_ASKPASS": "/bin/false",
		"GIT_PAGER": "cat", "PAGER": "cat", "GIT_EDITOR": "false", "GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "",
		"GIT_CEILING_DIRECTORIES": filepath.Dir(r.Dir),
		"GIT_LITERAL_PATHSPECS":   "1", "GIT_ATTR_NOSYSTEM": "1", "LC_ALL": "C.UTF-8",
	}
	if r.AuthorName != "" {
		vars["GIT_AUTHOR_NAME"], vars["GIT_COMMITTER_NAME"] = r.AuthorName, r.AuthorName
	}
	if r.AuthorEmail != "" {
		vars["GIT_AUTHOR_EMAIL"], vars["GIT_COMMITTER_EMAIL"] = r.AuthorEmail, r.AuthorEmail
	}
	return vars
}

// output is the output of a git command.
type output struct {
	stdout, stderr bounded
	state          sandbox.State
}

// Output is the stdout of a command as UTF-8.
type Output struct {
	Text string
	Cut  bool // the output was longer
}

// Run runs one git command, with the drivers in the repository's config switched off. The error is a
// *protocol.Error with git's message, or the error of ctx.
func (r *Repo) Run(ctx context.Context, args ...string) (Output, error) {
	off, err := r.drivers(ctx)
	if err != nil {
		return Output{}, err
	}
	return r.text(ctx, r.Room, off, args...)
}

// Diff returns the changes between two commits, in the format of git apply. It is an error if they
// have more than room bytes or are not UTF-8.
func (r *Repo) Diff(ctx context.Context, room int, from, to string) (string, error) {
	off, err := r.drivers(ctx)
	if err != nil {
		return "", err
	}
	out, err := r.git(ctx, room, off, "diff", "--binary", "--no-renames", "--no-ext-diff", "--no-textconv", from, to,
		"--")
	switch {
	case err != nil:
		return "", err
	case out.stdout.cut:
		return "", protocol.Errorf(protocol.CodeToolError, "the changes have more than %d bytes", room)
	case !utf8.Valid(out.stdout.kept.Bytes()):
		return "", protocol.Errorf(protocol.CodeToolError, "the changes are not UTF-8 text")
	}
	return out.stdout.kept.String(), nil
}

// List runs a git command that does not read the contents of files, such as ls-files, and keeps up to
// room bytes of its output.
func (r *Repo) List(ctx context.Context, room int, args ...string) (Output, error) {
	return r.text(ctx, room, nil, args...)
}

// text runs one command and returns its stdout.
func (r *Repo) text(ctx context.Context, room int, off []setting, args ...string) (Output, error) {
	out, err := r.git(ctx, room, off, args...)
	if err != nil {
		return Output{}, err
	}
	return Output{Text: out.stdout.String(), Cut: out.stdout.cut}, nil
}

// drivers returns settings that switch off what the repository's own config would run on the contents
// of files: filters (clean, smudge, process), textconv, external diff commands and trailers.
func (r *Repo) drivers(ctx context.Context) ([]setting, error) {
	out, err := r.git(ctx, r.Room, nil, "config", "--includes", "--name-only", "-z", "--list")
	if err != nil {
		return nil, err
	}
	if out.stdout.cut { // what is not seen cannot be switched off
		return nil, protocol.Errorf(protocol.CodeToolError, "the config of the repository is too long to be run "+
			"with: the names in it have more than %d bytes", r.Room)
	}
	var off []setting
	has := map[string]bool{}
	for key := range strings.SplitSeq(out.stdout.kept.String(),
		"\x00") { // the raw bytes, because names that are not UTF-8 count too
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
		case "filter.clean", "filter.smudge", "filter.process", "diff.command", "diff.textconv", "merge.driver",
			"trailer.command", "trailer.cmd":
			off = append(off, setting{key, ""})
		case "filter.required":
			off = append(off, setting{key, "false"})
		}
	}
	if !has["user.name"] && r.AuthorName == "" {
		off = append(off, setting{"user.name", "a2e agent"})
	}
	if !has["user.email"] && r.AuthorEmail == "" {
		off = append(off, setting{"user.email", "agent@a2e.invalid"})
	}
	return off, nil
}

// git runs one command with further settings, and keeps up to room bytes of its output.
func (r *Repo) git(ctx context.Context, room int, off []setting, args ...string) (*output, error) {
	out := &output{stdout: bounded{room: room}, stderr: bounded{room: 16 << 10}}
	err := r.start(ctx, out, sandbox.Policy{Args: args, HostEnv: r.variables(), Stdout: &out.stdout}, off)
	if err == nil && (out.state.Code != 0 || out.state.Signal != 0) {
		err = protocol.Errorf(protocol.CodeToolError, "git %s: %s", args[slices.IndexFunc(args, isCommand)], said(out))
	}
	if err != nil {
		return nil, err
	}
	return out, nil
}

// Script runs several git commands in one child: as a git alias, whose shell gets the variables. The
// child reads stdin and writes to out. The error contains git's message.
func (r *Repo) Script(ctx context.Context, script string, vars map[string]string, stdin *os.File, out io.Writer) error {
	all := r.variables()
	maps.Copy(all, vars)
	o := &output{stderr: bounded{room: 16 << 10}}
	err := r.start(ctx, o, sandbox.Policy{Args: []string{"a2e"}, HostEnv: all, Stdin: stdin, Stdout: out},
		[]setting{{"alias.a2e", "!" + script}})
	if err == nil && (o.state.Code != 0 || o.state.Signal != 0) {
		err = protocol.Errorf(protocol.CodeToolError, "git: %s", said(o))
	}
	return err
}

// start runs git with a policy, and waits for its end.
func (r *Repo) start(ctx context.Context, out *output, p sandbox.Policy, off []setting) error {
	argv := []string{"git", "--no-pager", "--git-dir=" + cmp.Or(r.GitDir, ".git"), "--work-tree=."}
	for i, s := range slices.Concat(settings(), off) { // not with -c, where a name with "=" would be misread
		n := strconv.Itoa(i)
		p.HostEnv["GIT_CONFIG_KEY_"+n], p.HostEnv["GIT_CONFIG_VALUE_"+n] = s.key, s.value
		p.HostEnv["GIT_CONFIG_COUNT"] = strconv.Itoa(i + 1)
	}
	p.Path, p.Args, p.Dir, p.DirFile = r.program, append(argv, p.Args...), r.Dir, r.Folder
	p.Write, p.Home, p.Stderr = r.Write, sandbox.HomeShared, &out.stderr
	if r.GitDir != "" {
		p.Write, p.ReadOnly = append(slices.Clone(r.Write), r.GitDir), []string{r.Dir}
	}
	proc, err := r.Launcher.Command(ctx, p)
	if err != nil {
		return protocol.Errorf(protocol.CodeToolError, "git cannot be started: %w", err)
	}
	out.state, err = proc.Wait()
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, sandbox.ErrMemory), errors.Is(err, sandbox.ErrProcesses):
		return protocol.Errorf(protocol.CodeOutOfMemory, "git was stopped: %w", err)
	case err != nil:
		return protocol.Errorf(protocol.CodeSandboxCrash, "git was lost: %w", err)
	}
	return nil
}

// isCommand reports whether an argument of git is its command rather than an option.
func isCommand(arg string) bool { return !strings.HasPrefix(arg, "-") }

// said returns git's own message about a failure.
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

// bounded keeps the first room bytes that are written to it.
type bounded struct {
	room int
	kept bytes.Buffer
	cut  bool // more was written
}

// Write implements io.Writer.
func (b *bounded) Write(p []byte) (int, error) {
	fits := min(len(p), b.room-b.kept.Len())
	b.kept.Write(p[:fits])
	b.cut = b.cut || fits < len(p)
	return len(p), nil
}

// String returns the kept bytes as UTF-8.
func (b *bounded) String() string { return strings.ToValidUTF8(b.kept.String(), "�") }
