package toolkits

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"a2e/host"
	"a2e/host/sandbox"
	"a2e/host/state/git"
	"a2e/plugins/tools"
	"a2e/protocol"
)

// repo is the repository of the toolkit git.
type repo struct {
	*git.Repo
	change sync.Mutex // held by a command that changes the index
}

// newGit makes the toolkit git. The toolkit keeps the folder open: git always runs in that
// folder, even if another one gets its name.
func (p *Plugin) newGit(o GitOptions, byConfig bool) (*made, error) {
	root, err := p.openFolder("repo", o.Repo, byConfig)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	if _, err := root.Lstat(".git"); err != nil {
		return nil, p.wrongSetting("repo", "is not the top folder of a git working tree: it has no .git", byConfig)
	}
	for _, author := range []string{o.AuthorName, o.AuthorEmail} {
		if strings.ContainsAny(author, "<>\n\x00") {
			return nil, p.wrongSetting("author_name or author_email", "holds one of < > or a line break", byConfig)
		}
	}
	folder, err := root.Open(".")
	if err != nil {
		return nil, p.wrongSetting("repo", reason(err), byConfig)
	}
	m, err := p.gitIn(folder, o)
	if err != nil {
		return nil, errors.Join(err, folder.Close())
	}
	return p.follow(kitGit, root.Name(), m, func() (*made, error) { return p.newGit(o, p.trusted(o.Repo, byConfig)) })
}

// gitIn makes the toolkit of an open folder. The toolkit closes the folder when it is closed.
func (p *Plugin) gitIn(folder *os.File, o GitOptions) (*made, error) {
	dir, err := filepath.Abs(folder.Name())
	if err != nil {
		return nil, err
	}
	info, err := folder.Stat()
	if err != nil {
		return nil, err
	}
	launcher, err := p.env.Confined(host.Confinement{Folder: dir, Is: info})
	if err != nil {
		return nil, err
	}
	opened, err := git.Open(git.Repo{
		Dir: dir, Folder: folder, Launcher: launcher, Room: p.env.MaxOutputBytes, AuthorName: o.AuthorName,
		AuthorEmail: o.AuthorEmail,
	})
	if err != nil {
		return nil, errors.Join(err, launcher.Close())
	}
	r := &repo{Repo: opened}
	all := []tools.Tool{r.status(), r.diff(), r.log(), r.show()}
	if !o.ReadOnly {
		all = append(all, r.add(), r.commit())
	}
	for i := range all {
		all[i].Files = p.oneFile(&all[i], o.Repo)
	}
	return newMade(kitGit, all, func() {
		if err := errors.Join(launcher.Close(), folder.Close()); err != nil {
			p.env.Log.Warn().Err(err).Msg("the sandbox of the toolkit git did not close cleanly")
		}
	}), nil
}

// revision refuses a text that cannot be a revision. name is the argument, for the error.
func revision(name, rev string) error {
	if len(rev) <= 512 && !strings.HasPrefix(rev, "-") && !strings.ContainsAny(rev, "\x00\n") {
		return nil
	}
	return protocol.Violation(protocol.FieldError{
		Path:    "/arguments/" + name,
		Message: "is not a revision, such as HEAD~1, a branch, a tag, a hash or A..B",
	})
}

// treePath makes *file relative to the working tree, and refuses a path outside the tree.
func (r *repo) treePath(name string, file *string) error {
	if *file == "" || filepath.IsLocal(*file) && !strings.ContainsRune(*file, 0) {
		return nil
	}
	if inside, ok := sandbox.Relative(r.Dir, *file); ok && filepath.IsAbs(*file) && !strings.ContainsRune(inside, 0) {
		*file = inside
		return nil
	}
	return protocol.Violation(protocol.FieldError{Path: "/arguments/" + name, Message: "must be a path in the " +
		"repository, best relative to its top folder"})
}

// exists reports whether a revision exists. The error says why git cannot tell, for
// example because the repository is broken.
func (r *repo) exists(ctx context.Context, rev string) (bool, error) {
	if _, err := r.Run(ctx, "rev-parse", "--verify", "--quiet", "--end-of-options", rev); err == nil {
		return true, nil
	}
	_, err := r.Run(ctx, "rev-parse", "--git-dir")
	return false, err
}
