package sandbox

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// access says what a grant allows.
type access string

const (
	accessRead  access = "r" // read and execute
	accessWrite access = "w" // change as well
	accessLink  access = "l" // a symbolic link; source is its text

	accessDevice access = "d" // a device file
	accessHide   access = "h" // an empty folder; it has no source
)

// grant is one part of the machine that a child gets to see, as target.
type grant struct {
	access         access
	source, target string

	id fileID // of the folder that source must still be; zero = whatever is there
}

// systemPaths hold the programs and libraries of a machine. A child may read
// them; those that a machine lacks are left out.
func systemPaths() []string {
	paths := []string{
		"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt",
		"/nix/store", "/gnu/store", "/sys/devices/system/cpu", "/sys/devices/system/node",
	}
	for _, name := range publicEtc() {
		found, _ := filepath.Glob("/etc/" + name) // the one error is a bad pattern
		paths = append(paths, found...)
	}
	return paths
}

// publicEtc lists what in /etc holds no secret and is needed by ordinary
// programs. passwd and group are not among them: children get their own.
func publicEtc() []string {
	return []string{
		"alternatives", "bash.bashrc", "bash_completion.d", "ca-certificates", "ca-certificates.conf", "crypto-policies",
		"debian_version", "ethertypes", "fonts", "gai.conf", "gitconfig", "gnutls", "host.conf", "hostname", "hosts", "inputrc",
		"java*", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "locale.alias", "locale.conf", "localtime", "login.defs", "lsb-release",
		"magic", "magic.mime", "mailcap", "manpath.config", "maven", "mime.types", "networks", "nsswitch.conf", "os-release", "perl",
		"pki/ca-trust", "pki/tls/certs", "pki/tls/cert.pem", "pki/tls/openssl.cnf", "profile", "profile.d", "protocols", "python3*", "R",
		"*-release", "resolv.conf", "rpc", "services", "shells", "skel", "ssl/cert.pem", "ssl/certs", "ssl/openssl.cnf", "terminfo", "timezone",
		"vim", "wgetrc", "xdg", "xml", "sgml",
	}
}

// toolNames are the folders beside a program's own that it may need: what else
// lies there may be somebody's secrets.
func toolNames() []string {
	return []string{
		"bin", "sbin", "shims", "lib", "lib32", "lib64", "libexec", "include", "share", "src", "pkg", "versions", "version",
		"plugins", "installs", "toolchains", "pyenv.d", "rbenv.d", "tools",
	}
}

// toolPaths gives what the programs of a folder need to be read: the folder,
// and if it is named like one for programs, what belongs to it beside it. In a
// home that is what programs installed there have, and not what people keep.
// Nothing is given that is or holds one of the closed folders.
func toolPaths(dir string, closed []string) []string {
	paths := []string{dir}
	if !slices.Contains([]string{"bin", "sbin", "shims", "scripts"}, filepath.Base(dir)) {
		return paths
	}
	parent, names := filepath.Dir(dir), toolNames()
	if private(realPath(parent), closed) != "" {
		names = []string{"lib", "lib32", "lib64", "libexec"}
	}
	for _, name := range names {
		if name == "share" && filepath.Base(parent) == ".local" {
			continue // keyrings lie there
		}
		beside := filepath.Join(parent, name)
		if _, err := os.Lstat(beside); err == nil && holdsFolder(realPath(beside), closed) == "" {
			paths = append(paths, beside)
		}
	}
	return paths
}

// view lists what the children of a launcher see, in the order in which it is
// put together.
type view struct {
	grants   []grant
	closed   []string // folders that are not shown for the sake of a program
	barriers barriers
	walled   []grant  // the grants with the walls in them, for a child that gets no more and no less
	shared   []string // of the sources: the home and the temporary folder, unless one is the workspace
}

// newView makes the part of the view that all children share. tmp stands for
// the machine's own temporary folder; home and workspace may be changed.
func newView(opts *Options, path []string, home, tmp string) *view {
	v := &view{closed: privateFolders(), barriers: newBarriers(opts)}
	if opts.Workspace != "" {
		v.closed = append(v.closed, realPath(opts.Workspace))
	}
	for _, p := range systemPaths() {
		v.add(accessRead, p)
	}
	for _, dir := range path {
		for _, p := range toolPaths(dir, v.closed) {
			v.add(accessRead, p)
		}
	}
	v.grants = append(v.grants, grant{access: accessWrite, source: tmp, target: "/tmp"})
	v.add(accessWrite, tmp)
	v.add(accessWrite, home)
	switch {
	case opts.Workspace != "" && opts.WorkspaceInfo != nil:
		v.addOnly(accessWrite, opts.Workspace, opts.WorkspaceInfo)
	case opts.Workspace != "":
		v.add(accessWrite, opts.Workspace)
	}
	for _, p := range opts.Read { // after what children may change, where links lead nowhere else
		v.add(accessRead, p)
	}
	v.sort()
	v.walled = v.withWalls()
	v.shared = slices.DeleteFunc([]string{tmp, realPath(tmp), realPath(home)}, func(p string) bool { return p == realPath(opts.Workspace) })
	return v
}

// with gives the view of one child, whose program may lie elsewhere, and which may
// read and change more, or less.
func (v *view) with(policy *Policy) []grant {
	program := policy.Path
	own := &view{grants: slices.Clip(v.grants), barriers: v.barriers} // what is added goes to a copy
	if policy.Scratch != "" || len(policy.ReadOnly) > 0 {
		own.grants = slices.Clone(v.grants)
	}
	for _, p := range policy.ReadOnly { // before what may be changed all the same
		own.protect(p)
	}
	if policy.Scratch != "" {
		own.grants = slices.DeleteFunc(own.grants, func(g grant) bool { return g.access == accessWrite && slices.Contains(v.shared, g.source) })
		own.grants = slices.Insert(own.grants, 0, grant{access: accessWrite, source: realPath(policy.Scratch), target: "/tmp"}) // /tmp may be the workspace, which comes on top
		own.add(accessWrite, policy.Scratch)
		if policy.HomeDir != "" {
			own.add(accessWrite, policy.HomeDir)
		}
	}
	if !own.covers(program, accessRead) {
		own.add(accessRead, program)
		if dir := filepath.Dir(realPath(program)); !own.covers(dir, accessRead) && private(dir, v.closed) == "" {
			for _, p := range toolPaths(dir, v.closed) {
				own.add(accessRead, p)
			}
		}
	}
	for _, p := range policy.Write {
		own.add(accessWrite, p)
	}
	for _, p := range policy.Read { // as above
		own.add(accessRead, p)
	}
	if slices.Equal(own.grants, v.grants) {
		return v.walled // it was there by another name
	}
	own.sort()
	return own.withWalls()
}

// protect takes the right to change a path away.
func (v *view) protect(path string) {
	real := v.follow(path)
	if real == "" {
		return // nothing is there
	}
	for i, g := range v.grants {
		if g.access == accessWrite && g.source == real {
			v.grants[i].access = accessRead
		}
	}
	if v.covers(real, accessWrite) { // as a part of something: it hangs on top of that
		v.grants = append(v.grants, grant{access: accessRead, source: real, target: real})
	}
}

// sort puts a folder before what lies in it, or it would hide that.
func (v *view) sort() {
	slices.SortStableFunc(v.grants, func(a, b grant) int { return strings.Count(a.target, "/") - strings.Count(b.target, "/") })
}

// addOnly grants one folder under its own name, and nothing else that may come to have that
// name.
func (v *view) addOnly(a access, path string, info os.FileInfo) {
	if real := v.follow(path); real != "" {
		path = real
	}
	v.grants = append(v.grants, grant{access: a, source: path, target: path, id: idOf(info)})
}

// add grants a path under its own name. Symbolic links on the way become links
// of the view, and what they lead to is granted. A path that does not exist is
// left out.
func (v *view) add(a access, path string) {
	real := v.follow(path)
	if real == "" || v.covers(real, a) {
		return
	}
	v.grants = append(v.grants, grant{access: a, source: real, target: real})
}

// maxLinks bounds the symbolic links on one path, as the kernel does.
const maxLinks = 40

// follow notes the links on a path and gives where it leads, or "". A link in what
// children may change leads nowhere but to places in the same folder: whoever put it there
// would be granted what it likes.
func (v *view) follow(path string) string {
	done, rest := "/", strings.Split(strings.Trim(filepath.Clean(path), "/"), "/")
	bound := ""
	for links := 0; len(rest) > 0; {
		next := filepath.Join(done, rest[0])
		rest = rest[1:]
		info, err := os.Lstat(next)
		if err != nil {
			return ""
		}
		if info.Mode()&os.ModeSymlink == 0 {
			done = next
			continue
		}
		text, err := os.Readlink(next)
		if links++; err != nil || links > maxLinks {
			return ""
		}
		if bound == "" {
			bound = v.changeable(next)
		}
		link := grant{access: accessLink, source: text, target: next}
		if !slices.Contains(v.grants, link) && !v.covers(next, accessRead) {
			v.grants = append(v.grants, link)
		}
		if !filepath.IsAbs(text) {
			text = filepath.Join(done, text)
		}
		done = "/"
		rest = append(strings.Split(strings.Trim(filepath.Clean(text), "/"), "/"), rest...)
	}
	if bound != "" && !within(bound, done) {
		return ""
	}
	return done
}

// changeable gives the folder that children may change and that a path lies in; "" = there
// is none.
func (v *view) changeable(path string) string {
	for _, g := range v.grants {
		if g.access == accessWrite && g.source != path && within(g.source, path) {
			return g.source
		}
	}
	return ""
}

// covers tells whether a grant made before holds the path under its own name,
// with at least this access. Another one that is narrower may come on top.
func (v *view) covers(path string, a access) bool {
	return slices.ContainsFunc(v.grants, func(g grant) bool {
		return g.access != accessLink && g.source == g.target && within(g.target, path) && (g.access == a || a == accessRead) && !v.barriers.hide(g.source, path)
	})
}
