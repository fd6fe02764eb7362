package host

import (
	"path"
	"path/filepath"
	"strings"

	"a2e/protocol"
)

// filesSpace is the space of the names of requests that are about files; see Route.About.
const filesSpace = "files"

// Files says which files of the workspace a request is about.
type Files struct {
	// Path is that of a file or folder, with all below it: relative to the workspace, with
	// slashes, in any spelling. One that leads elsewhere stands for the whole workspace.
	Path string
	Use  FileUse
}

// FileUse is what a request does with the files that it is about.
type FileUse int

// The uses. All of them wait for the changes that came before.
const (
	UsesNone     FileUse = iota // the request is about no files
	SeesFiles                   // for how long nobody knows: nothing waits for it
	ReadsFiles                  // a change that comes later waits for it
	ChangesFiles                // all that comes later waits for it
)

// names is what a request that keeps its order is about; see Route.InOrderOf and Route.About.
type names struct {
	all bool // everything
	one string
	set map[string]struct{} // in place of one
	use FileUse             // of a request about files, which are those at one and below it
}

// followLocked notes which of the calls under way c has to wait for: those that are about
// the same thing. They came before it, and wait for those before them in the same way.
// Mostly nothing else runs, and then this costs nothing.
func (h *Host) followLocked(c *call) {
	for _, r := range h.running {
		h.followOneLocked(c, r)
	}
	for r := range h.aside {
		if r.thing != "" {
			h.followOneLocked(c, r)
		}
	}
}

func (h *Host) followOneLocked(c, r *call) {
	if r == c || r.dest.space != c.dest.space || !c.aboutLocked().waitsFor(r.aboutLocked()) {
		return
	}
	if r.passed == nil {
		r.passed = make(chan struct{})
	}
	c.before = append(c.before, r.passed)
}

func (c *call) aboutLocked() *names {
	if c.names == nil {
		switch d := c.dest; {
		case d.names != "":
			c.names = namesIn(c.line.Object(), d.names)
		case d.space == filesSpace:
			c.names = d.filesIn(c.line.Object())
		default:
			c.names = &names{all: true}
		}
	}
	return c.names
}

// namesIn reads the names in a field of a request.
func namesIn(obj protocol.Object, field string) *names {
	n := &names{}
	val, _ := obj.Get(field)
	list, _ := val.Strings()
	switch one, _ := val.Str(); {
	case len(list) == 1:
		n.one = list[0]
	case len(list) > 1:
		n.set = make(map[string]struct{}, len(list))
		for _, name := range list {
			n.set[name] = struct{}{}
		}
	default:
		n.one, n.all = one, one == ""
	}
	return n
}

// filesIn asks the plugins which files a request is about.
func (d *destination) filesIn(obj protocol.Object) *names {
	for _, route := range d.routes {
		if route.about == nil {
			continue
		}
		if f := route.about(obj); f.Use != UsesNone {
			// some file systems take upper and lower case as the same
			at := strings.ToLower(path.Clean(strings.ReplaceAll(f.Path, `\`, "/")))
			whole := at == "." || at == ".." || at[0] == '/' || filepath.IsAbs(f.Path) || strings.HasPrefix(at, "../")
			return &names{all: whole, one: at, use: f.Use}
		}
	}
	return &names{set: map[string]struct{}{}} // nothing
}

// waitsFor tells whether a request about n waits for an earlier one about other.
func (n *names) waitsFor(other *names) bool {
	switch {
	case other.use == ChangesFiles, other.use == ReadsFiles && n.use == ChangesFiles:
		return n.use != UsesNone && n.sharesFiles(other)
	case n.use != UsesNone || other.use != UsesNone:
		return false
	}
	return n.meets(other)
}

// sharesFiles tells whether one of the two is the other, or in it.
func (n *names) sharesFiles(other *names) bool {
	return n.all || other.all || within(n.one, other.one) || within(other.one, n.one)
}

func within(file, folder string) bool {
	rest, ok := strings.CutPrefix(file, folder)
	return ok && (rest == "" || rest[0] == '/')
}

func (n *names) meets(other *names) bool {
	switch {
	case n.all || other.all:
		return true
	case n.set == nil && other.set == nil:
		return n.one == other.one
	case n.set == nil:
		return other.has(n.one)
	case other.set == nil:
		return n.has(other.one)
	}
	for name := range n.set {
		if other.has(name) {
			return true
		}
	}
	return false
}

func (n *names) has(name string) bool {
	_, ok := n.set[name]
	return ok
}
