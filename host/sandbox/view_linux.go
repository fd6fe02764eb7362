package sandbox

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"a2e/host/guard/wall"
)

// access says what a grant allows.
type access string

const (
	accessRead  access = "r" // read and execute
	accessWrite access = "w" // also change
	accessLink  access = "l" // a symbolic link; source is its text

	accessDevice access = "d" // a device file
	accessHide   access = "h" // an empty folder; it has no source
)

// grant is one part of the machine that a child sees, at the path Target.
type grant struct {
	Access         access
	Source, Target string

	ID fileID // of the folder that Source must still be; zero = any file
}

// systemPaths returns the programs and libraries of a machine, which a child may read. Paths that the
// machine lacks are skipped later.
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

// publicEtc returns the names in /etc that ordinary programs need and that hold no secrets. passwd and
// group are not included, because children get their own.
func publicEtc() []string {
	return []string{
		"alternatives", "bash.bashrc", "bash_completion.d", "ca-certificates", "ca-certificates.conf",
		"crypto-policies",
		"debian_version", "ethertypes", "fonts", "gai.conf", "gitconfig", "gnutls", "host.conf", "hostname", "hosts",
		"inputrc",
		"java*", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "locale.alias", "locale.conf", "localtime", "login.defs",
		"lsb-release",
		"magic", "magic.mime", "mailcap", "manpath.config", "maven", "mime.types", "networks", "nsswitch.conf",
		"os-release", "perl",
		"pki/ca-trust", "pki/tls/certs", "pki/tls/cert.pem", "pki/tls/openssl.cnf", "profile", "profile.d", "protocols",
		"python3*", "R",
		"*-release", "resolv.conf", "rpc", "services", "shells", "skel", "ssl/cert.pem", "ssl/certs", "ssl/openssl.cnf",
		"terminfo", "timezone",
		"vim", "wgetrc", "xdg", "xml", "sgml",
	}
}

// toolNames returns the names of folders next to a folder of programs that the programs may need.
// Other folders there may contain private files.
func toolNames() []string {
	return []string{
		"bin", "sbin", "shims", "lib", "lib32", "lib64", "libexec", "include", "share", "src", "pkg", "versions",
		"version",
		"plugins", "installs", "toolchains", "pyenv.d", "rbenv.d", "tools",
	}
}

// toolPaths returns what the programs of a folder need to read: the folder itself, and if its name is one for programs,
// the folders next to it that belong to them. In a home these are only folders of installed programs, not private ones.
// No path is returned that is or contains one of the closed folders.
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
			continue // keyrings are there
		}
		beside := filepath.Join(parent, name)
		if _, err := os.Lstat(beside); err == nil && holdsFolder(realPath(beside), closed) == "" {
			paths = append(paths, beside)
		}
	}
	return paths
}

// view lists what the children of a launcher see, in the order in which it is mounted.
type view struct {
	grants   []grant
	closed   []string // folders that are not shown only because a program lies in them
	barriers barriers
	walled   []grant  // the grants with the walls, for a child without grants of its own
	shared   []string // of the sources: the home and the temporary folder, unless one is the workspace
}

// newView makes the part of the view that all children share. tmp replaces the machine's temporary
// folder. Children may change home and the workspace.
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
	v.grants = append(v.grants, grant{Access: accessWrite, Source: tmp, Target: "/tmp"})
	v.add(accessWrite, tmp)
	v.add(accessWrite, home)
	switch {
	case opts.Workspace != "" && opts.WorkspaceInfo != nil:
		v.addOnly(accessWrite, opts.Workspace, opts.WorkspaceInfo)
	case opts.Workspace != "":
		v.add(accessWrite, opts.Workspace)
	}
	for _, p := range opts.Read { // after the changeable folders, so that links in those lead nowhere else
		v.add(accessRead, p)
	}
	v.sort()
	v.walled = v.withWalls()
	v.shared = slices.DeleteFunc([]string{tmp, realPath(tmp), realPath(home)},
		func(p string) bool { return p == realPath(opts.Workspace) })
	return v
}

// with returns the grants of one child, whose program may lie elsewhere, and which may read and change
// more, or less, than other children.
func (v *view) with(policy *Policy) []grant {
	program := policy.Path
	own := &view{grants: slices.Clip(v.grants), barriers: v.barriers} // clipped, so that appending makes a copy
	if policy.Scratch != "" || len(policy.ReadOnly) > 0 {
		own.grants = slices.Clone(v.grants)
	}
	for _, p := range policy.ReadOnly { // before the folders that may be changed after all
		own.protect(p)
	}
	if policy.Scratch != "" {
		own.grants = slices.DeleteFunc(own.grants,
			func(g grant) bool { return g.Access == accessWrite && slices.Contains(v.shared, g.Source) })
		own.grants = slices.Insert(own.grants, 0, grant{
			Access: accessWrite, Source: realPath(policy.Scratch),
			Target: "/tmp",
		}) // /tmp may be the workspace, which is mounted on top
		own.add(accessWrite, policy.Scratch)
		if policy.HomeDir != "" {
			own.add(accessWrite, policy.HomeDir)
		}
	}
	if !own.covers(program, accessRead) {
		own.add(accessRead, program)
		// what a link such as npx needs lies next to the link and next to its target
		for _, dir := range []string{filepath.Dir(program), filepath.Dir(realPath(program))} {
			if own.covers(dir, accessRead) || private(realPath(dir), v.closed) != "" {
				continue
			}
			for _, p := range toolPaths(dir, v.closed) {
				own.add(accessRead, p)
			}
		}
	}
	for _, p := range policy.Write {
		own.add(accessWrite, p)
	}
	for _, p := range policy.Read { // after the changeable folders, as in newView
		own.add(accessRead, p)
	}
	if slices.Equal(own.grants, v.grants) {
		return v.walled // it was granted already, under another name
	}
	own.sort()
	return own.withWalls()
}

// protect makes a path read-only.
func (v *view) protect(path string) {
	real := v.follow(path)
	if real == "" {
		return // nothing is there
	}
	for i, g := range v.grants {
		if g.Access == accessWrite && g.Source == real {
			v.grants[i].Access = accessRead
		}
	}
	if v.covers(real, accessWrite) { // as a part of a changeable folder: it is mounted on top of that
		v.grants = append(v.grants, grant{Access: accessRead, Source: real, Target: real})
	}
}

// sort puts a folder before the paths in it, which it would cover otherwise.
func (v *view) sort() {
	slices.SortStableFunc(v.grants, func(a, b grant) int {
		return strings.Count(a.Target, "/") - strings.Count(b.Target,
			"/")
	})
}

// addOnly grants one folder under its own path, but no other folder that takes its place.
func (v *view) addOnly(a access, path string, info os.FileInfo) {
	if real := v.follow(path); real != "" {
		path = real
	}
	v.grants = append(v.grants, grant{Access: a, Source: path, Target: path, ID: idOf(info)})
}

// add grants a path under its own name. Symbolic links on the way become links of the view, and their
// targets are granted. A path that does not exist is skipped.
func (v *view) add(a access, path string) {
	real := v.follow(path)
	if real == "" || v.covers(real, a) {
		return
	}
	v.grants = append(v.grants, grant{Access: a, Source: real, Target: real})
}

// follow adds the links on a path to the view and returns the path to which they lead, or "". A link in a folder that
// children may change is followed only to places in the same folder; otherwise a child could grant itself any path.
func (v *view) follow(path string) string {
	bound := ""
	real, ok := walk(path, func(at, text string, _ []string) bool {
		if bound == "" {
			bound = v.changeable(at)
		}
		link := grant{Access: accessLink, Source: text, Target: at}
		if !slices.Contains(v.grants, link) && !v.covers(at, accessRead) {
			v.grants = append(v.grants, link)
		}
		return true
	})
	if !ok || bound != "" && !within(bound, real) {
		return ""
	}
	return real
}

// maxLinks is the maximum number of symbolic links on one path, as in the kernel.
const maxLinks = 40

// walk resolves the links on an absolute path. It calls link for each one, with its place, its text and
// the names that follow it on the path; link returns false to end the walk. ok is false if the walk was
// ended, if nothing is there, or if there are too many links.
func walk(path string, link func(at, text string, rest []string) bool) (real string, ok bool) {
	done, rest := "/", components(path)
	for links := 0; len(rest) > 0; {
		next := filepath.Join(done, rest[0])
		rest = rest[1:]
		info, err := os.Lstat(next)
		if err != nil {
			return "", false
		}
		if info.Mode()&os.ModeSymlink == 0 {
			done = next
			continue
		}
		text, err := os.Readlink(next)
		if links++; err != nil || links > maxLinks || !link(next, text, rest) {
			return "", false
		}
		if !filepath.IsAbs(text) {
			text = filepath.Join(done, text)
		}
		done, rest = "/", append(components(text), rest...)
	}
	return done, true
}

// components returns the names in an absolute path.
func components(path string) []string {
	return strings.FieldsFunc(filepath.Clean(path), func(r rune) bool { return r == '/' })
}

// changeable returns the folder that children may change and that contains a path, or "" if there is none.
func (v *view) changeable(path string) string {
	for _, g := range v.grants {
		if g.Access == accessWrite && g.Source != path && within(g.Source, path) {
			return g.Source
		}
	}
	return ""
}

// covers reports whether an earlier grant contains the path under its own name, with at least this
// access. A narrower grant may still be mounted on top.
func (v *view) covers(path string, a access) bool {
	return slices.ContainsFunc(v.grants, func(g grant) bool {
		return g.Access != accessLink && g.Source == g.Target && within(g.Target, path) &&
			(g.Access == a || a == accessRead) && !v.barriers.hide(g.Source, path)
	})
}

// barriers are the host's own places, from which children are kept although granted folders contain
// them. Only mounts can exclude a part of a folder: Landlock has no exceptions.
type barriers struct {
	hidden []string // absolute folders without links on the way
	fixed  []string // absolute paths without links on the way
}

func newBarriers(opts *Options) barriers {
	var w barriers
	for _, p := range opts.Hidden {
		w.hidden = append(w.hidden, wall.Real(p))
	}
	for _, p := range opts.Fixed {
		w.fixed = append(w.fixed, wall.Real(p))
	}
	return w
}

// hide reports whether a hidden folder inside dir contains the path.
func (w *barriers) hide(dir, path string) bool {
	return slices.ContainsFunc(w.hidden, func(h string) bool { return h != dir && within(dir, h) && within(h, path) })
}

// make makes the missing hidden folders, since otherwise a child could make them. If a folder cannot
// be made, a child cannot make it either.
func (w *barriers) make() {
	for _, h := range w.hidden {
		_ = os.MkdirAll(h, 0o700)
	}
}

// withWalls returns the grants with walls around the barriers. Each folder between a barrier and the
// changeable folder above it becomes a mount of its own: the kernel does not let anybody rename a
// mount point, so no other folder can take its place.
func (v *view) withWalls() []grant {
	var added []grant
	for _, h := range v.barriers.hidden {
		added = append(added, v.wall(h, accessHide)...)
	}
	for _, f := range v.barriers.fixed {
		if !slices.ContainsFunc(v.barriers.hidden, func(h string) bool { return within(h, f) }) {
			added = append(added, v.wall(f, accessRead)...)
		}
	}
	if len(added) == 0 {
		return v.grants
	}
	all := &view{grants: append(added, v.grants...)} // before grants of the same place, which are mounted on top
	all.sort()
	return all.grants
}

// wall returns the grants that put a wall around a path, wherever the existing grants show it.
func (v *view) wall(path string, a access) (added []grant) {
	for _, g := range v.grants {
		if g.Access != accessRead && g.Access != accessWrite || !within(g.Source, path) || g.Source == path &&
			a == accessHide {
			continue
		}
		if _, err := os.Lstat(path); err != nil {
			continue // it cannot be made, or nothing runs
		}
		inner := v.innermost(g.Target + strings.TrimPrefix(path, g.Source))
		if a == accessRead && inner.Access != accessWrite {
			continue
		}
		for dir := filepath.Dir(path); dir != g.Source && within(g.Source, dir); dir = filepath.Dir(dir) {
			at := g.Target + strings.TrimPrefix(dir, g.Source)
			if around := v.innermost(at); around.Target != at && around.Access == accessWrite {
				added = append(added, grant{Access: accessWrite, Source: dir, Target: at})
			}
		}
		wall := grant{Access: a, Source: path, Target: g.Target + strings.TrimPrefix(path, g.Source)}
		if a == accessHide {
			wall.Source = ""
		}
		added = append(added, wall)
	}
	return added
}

// innermost returns the grant that decides about a path in the view.
func (v *view) innermost(target string) (inner grant) {
	for _, g := range v.grants {
		if (g.Access == accessRead || g.Access == accessWrite) && within(g.Target, target) &&
			len(g.Target) >= len(inner.Target) {
			inner = g
		}
	}
	return inner
}

// idOf returns the identity of a folder. If it cannot be known, the result matches no folder.
func idOf(info os.FileInfo) fileID {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fileID{^uint64(0), ^uint64(0)}
	}
	return fileID{uint64(st.Dev), st.Ino}
}

// openStraight opens a path without links; if it contains a link, the error is ELOOP.
func openStraight(path string) (int, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS,
	})
	if err != unix.ENOSYS {
		return fd, err
	}
	// A host that is itself a child lacks this call: the path of the opened file is compared instead.
	if fd, err = unix.Open(path, unix.O_PATH|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0); err != nil {
		return -1, err
	}
	var st unix.Stat_t
	real, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil || real != filepath.Clean(path) || unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT == unix.S_IFLNK {
		unix.Close(fd)
		return -1, unix.ELOOP
	}
	return fd, nil
}

// open opens the source of a grant with O_PATH. Links were followed when the view was made, so a link
// that was added since is an error.
func (g *grant) open() (int, error) {
	fd, err := openStraight(g.Source)
	switch {
	case err == unix.ELOOP, (err == unix.ENOENT || err == unix.ENOTDIR) && g.ID != (fileID{}):
		return -1, errReplaced
	case err != nil || g.ID == (fileID{}):
		return fd, err
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil && (fileID{uint64(st.Dev), st.Ino}) != g.ID {
		err = errReplaced
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}
