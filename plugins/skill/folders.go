package skill

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"unicode"

	"a2e/host/wall"
	"a2e/protocol"
)

// Where skills come from, as SkillDefinition.source says it.
const (
	sourceSystem  = "system"  // skills_path
	sourceProject = "project" // the workspace
	sourceUser    = "user"
)

// root is a folder that skills lie in.
type root struct {
	source string
	base   string // absolute; what it is, and links on the way to it, is the user's business
	rel    string // below base, "." = base itself; no link leads out of base
	show   string // the whole path as messages have it
	named  bool   // by the config: then it should be there
	wall   *wall.Wall
}

// dir returns the absolute path.
func (r *root) dir() string { return filepath.Join(r.base, r.rel) }

// open opens the folder; paths in what it gives cannot leave it.
func (r *root) open() (*os.Root, error) {
	top, err := os.OpenRoot(asDir(r.base))
	if err != nil || r.rel == "." {
		return top, err
	}
	defer top.Close()
	if guard := r.wall.In(top); guard.Holds() { // agents may have put a link there
		own, _, err := guard.OpenDir(filepath.ToSlash(r.rel))
		return own, err
	}
	return top.OpenRoot(asDir(r.rel))
}

// asDir makes opening a path fail on anything but a folder, and without waiting: the bare
// name of a pipe would wait for its other end, and all skills with it.
func asDir(name string) string { return name + "/." }

// rootsOf lists the folders, the first to win a name at the front.
func rootsOf(opts Options, env Env) ([]*root, error) {
	paths, err := pathsOf(opts.SkillsPath)
	if err != nil {
		return nil, err
	}
	var all []*root
	for _, path := range paths {
		abs, err := filepath.Abs(path)
		if err != nil {
			return nil, fmt.Errorf("skills_path: %w", err)
		}
		all = append(all, &root{source: sourceSystem, base: abs, rel: ".", show: path, named: true})
	}
	if opts.WorkspaceSkills && env.Workspace != "" {
		abs, err := filepath.Abs(env.Workspace)
		if err != nil {
			return nil, fmt.Errorf("workspace: %w", err)
		}
		for _, owner := range []string{".a2e", ".agents", ".claude"} {
			rel := filepath.Join(owner, "skills")
			all = append(all, &root{wall: env.Wall, source: sourceProject, base: abs, rel: rel, show: filepath.Join(env.Workspace, rel)})
		}
	}
	if opts.UserSkills && filepath.IsAbs(env.UserDir) {
		path := filepath.Join(env.UserDir, "skills")
		all = append(all, &root{source: sourceUser, base: path, rel: ".", show: path})
	}
	return all, nil
}

// Folders lists the folders of skills_path and of the user as they are opened to programs that
// agents start, so that the scripts of skills in them run there too: none that agents may
// change, none that holds the workspace, the home or what is the host's own, and none that is
// not there.
func Folders(opts Options, env Env) []string {
	roots, err := rootsOf(opts, env)
	if err != nil {
		return nil // New says so
	}
	workspace := realPath(env.Workspace)
	home, _ := os.UserHomeDir()
	var all []string
	for _, r := range roots {
		dir := realPath(r.dir())
		inside := workspace != "" && wall.Within(workspace, dir) && !env.Wall.Hides(dir)
		if _, err := os.Stat(dir); err != nil || r.source == sourceProject || inside {
			continue
		}
		if !slices.ContainsFunc([]string{workspace, realPath(home), realPath(env.UserDir), realPath(env.StateDir)}, func(own string) bool {
			return own != "" && wall.Within(dir, own)
		}) {
			all = append(all, dir)
		}
	}
	return all
}

// realPath is a path without links in it; "" stays so.
func realPath(path string) string {
	abs, err := filepath.Abs(path)
	if path == "" || err != nil {
		return ""
	}
	return wall.Real(abs)
}

// pathsOf reads skills_path: one text, or a list of them.
func pathsOf(option any) ([]string, error) {
	var paths []string
	switch v := option.(type) {
	case nil:
	case string:
		paths = []string{v}
	case []string:
		paths = v
	case []any:
		for _, item := range v {
			text, ok := item.(string)
			if !ok {
				return nil, errors.New("skills_path: should be a path, or a list of paths")
			}
			paths = append(paths, text)
		}
	default:
		return nil, errors.New("skills_path: should be a path, or a list of paths")
	}
	for i, path := range paths {
		if path == "" || strings.ContainsRune(path, 0) {
			return nil, errors.New("skills_path: a path is empty, or has a NUL character in it")
		}
		if rest, ok := strings.CutPrefix(path, "~/"); ok {
			home, err := os.UserHomeDir()
			if err != nil {
				return nil, fmt.Errorf("skills_path: %s: %w", path, err)
			}
			paths[i] = filepath.Join(home, rest)
		}
	}
	return paths, nil
}

// What a call lists of the files of a skill.
const (
	maxFilesListed = 500
	maxFilesSeen   = 5000 // names looked at
	maxFileLevels  = 8
)

// scheme is that of the URIs of a skill's files.
const scheme = "skill"

// Scheme implements host.FileSource.
func (p *Plugin) Scheme() string { return scheme }

// OpenFiles implements host.FileSource: the folder of one skill. The error is unknown_skill.
func (p *Plugin) OpenFiles(_ context.Context, authority string) (*os.Root, error) {
	s, err := p.find(authority)
	if err != nil {
		return nil, err
	}
	return s.open()
}

// uri names a file of the skill; "" = its folder.
func (s *skill) uri(file string) string { return scheme + "://" + s.name + "/" + file }

// open opens the skill's folder, which by now may be gone.
func (s *skill) open() (*os.Root, error) {
	top, err := s.root.open()
	if err != nil {
		return nil, s.gone(err)
	}
	defer top.Close()
	own, err := top.OpenRoot(asDir(s.rel))
	if err != nil {
		return nil, s.gone(err)
	}
	return own, nil
}

func (s *skill) gone(err error) error {
	return protocol.Errorf(protocol.CodeSkillError, "the folder of skill %q cannot be opened: %w", s.name, reason(err))
}

// place returns the absolute path of the skill's folder, without links on the way, for what
// has to be told one. It is the folder that was looked at: no link that somebody has put in
// its place.
func (s *skill) place() (string, error) {
	own, err := s.open()
	if err != nil {
		return "", err
	}
	defer own.Close()
	inside, err := own.Stat(".")
	if err != nil {
		return "", s.gone(err)
	}
	real, err := filepath.EvalSymlinks(s.dir)
	if err != nil {
		return "", s.gone(err)
	}
	outside, err := os.Lstat(real)
	if err != nil {
		return "", s.gone(err)
	}
	if !os.SameFile(inside, outside) {
		return "", s.gone(errors.New("another folder has taken its place"))
	}
	return real, nil
}

// files lists the URIs of what lies in the skill's folder besides its SKILL.md, by path. more
// reports whether there is more than is listed.
func (s *skill) files() (uris []string, more bool, err error) {
	own, err := s.open()
	if err != nil {
		return nil, false, err
	}
	defer own.Close()
	uris, seen := []string{}, 0
	guard := s.root.wall.In(own)
	var add func(dir string, level int)
	add = func(dir string, level int) {
		f, err := own.OpenFile(dir, os.O_RDONLY|syscall.O_NONBLOCK, 0)
		if err != nil {
			return
		}
		entries, err := f.ReadDir(maxFilesSeen)
		f.Close()
		if err != nil {
			return
		}
		slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
		for _, e := range entries {
			name := path.Join(dir, e.Name())
			seen++
			switch {
			case guard.Hides(name, nil):
			case len(uris) >= maxFilesListed || seen > maxFilesSeen:
				more = true
				return
			case e.Name()[0] == '.' || strings.ContainsFunc(e.Name(), func(r rune) bool { return !unicode.IsPrint(r) }):
			case e.IsDir() && level < maxFileLevels:
				add(name, level+1)
			case e.IsDir():
				more = true
			case e.Type().IsRegular() && name != s.doc:
				uris = append(uris, s.uri(name))
			}
		}
	}
	add(".", 0)
	return uris, more, nil
}
