package skill

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"a2e/host/wall"
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

// dir gives the absolute path.
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
