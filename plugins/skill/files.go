package skill

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"a2e/protocol"
)

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

// place gives the absolute path of the skill's folder, without links on the way, for what
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
// tells whether there is more than is listed.
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
		f, err := own.OpenFile(dir, os.O_RDONLY|openNonblock, 0)
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
