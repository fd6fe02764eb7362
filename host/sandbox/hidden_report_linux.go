package sandbox

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// HiddenAt returns the point at which a path of the machine leaves what a child with this policy sees:
// the path itself, or the target of a link on the way. It returns "" if the child sees the path, or if
// nothing is there. It starts nothing.
func (l *Launcher) HiddenAt(policy *Policy, path string) string {
	if l.mode == Off {
		return ""
	}
	s := &l.start
	opts := s.opts
	if policy.Network != NetworkNone {
		opts.Read = slices.Concat(opts.Read, certificates(s.net))
	}
	const none = "/nonexistent" // the child's own folders contain nothing of the machine
	v := newView(&opts, s.path, none, none)
	v.grants = v.with(policy)
	return v.leaves(path)
}

// leaves follows a path as a child does. It returns the path, with the links so far resolved, at which
// it leaves the view, or "" if it does not.
func (v *view) leaves(path string) string {
	done, rest := "/", components(path)
	for links := 0; len(rest) > 0; {
		next := filepath.Join(done, rest[0])
		rest = rest[1:]
		info, err := os.Lstat(next)
		if err != nil {
			return "" // nothing is there
		}
		if info.Mode()&os.ModeSymlink == 0 {
			done = next
			continue
		}
		text, err := os.Readlink(next)
		if links++; err != nil || links > maxLinks {
			return ""
		}
		if !v.shows(next) && !slices.Contains(v.grants, grant{Access: accessLink, Source: text, Target: next}) {
			return filepath.Join(append([]string{next}, rest...)...)
		}
		if !filepath.IsAbs(text) {
			text = filepath.Join(done, text)
		}
		done, rest = "/", append(components(text), rest...)
		path = filepath.Join(append([]string{"/"}, rest...)...)
	}
	if v.shows(done) {
		return ""
	}
	return path
}

// shows reports whether a child finds the machine's own file under this path. The path has no links on
// the way.
func (v *view) shows(path string) bool {
	for _, own := range []string{"/dev", "/proc"} {
		if within(own, path) {
			return true
		}
	}
	inner := v.innermost(path)
	return inner.Access != "" && inner.Source == inner.Target && !slices.ContainsFunc(v.grants, func(g grant) bool {
		return g.Access == accessHide && within(g.Target, path) && len(g.Target) > len(inner.Target)
	})
}

// components returns the names in an absolute path.
func components(path string) []string {
	return strings.FieldsFunc(filepath.Clean(path), func(r rune) bool { return r == '/' })
}
