package sandbox

import (
	"path/filepath"
	"slices"
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
	hidden := ""
	real, ok := walk(path, func(at, text string, rest []string) bool {
		if !v.shows(at) && !slices.Contains(v.grants, grant{Access: accessLink, Source: text, Target: at}) {
			hidden = filepath.Join(append([]string{at}, rest...)...)
			return false
		}
		return true
	})
	switch {
	case !ok || v.shows(real):
		return hidden
	case real == filepath.Clean(path):
		return path // as it was given
	}
	return real
}

// shows reports whether a child finds the machine's own file under this path. The path has no links on the way.
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
