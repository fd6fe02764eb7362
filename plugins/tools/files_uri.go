package tools

import (
	"context"
	"os"
	"slices"
	"strconv"
	"strings"

	"a2e/host"
	"a2e/protocol"
)

// uri is a path such as skill://NAME/FILE, of files that another plugin has. Nothing in
// it is decoded: what stands in it is what is opened.
type uri struct {
	scheme, authority, rest string
}

// splitURI takes a path that begins with a scheme apart. A single letter is none: it may
// be a drive.
func splitURI(name string) (uri, bool) {
	scheme, rest, ok := strings.Cut(name, "://")
	if !ok || len(scheme) < 2 || len(name) > maxPathBytes || strings.ContainsRune(name, 0) || strings.ContainsFunc(scheme, noScheme) {
		return uri{}, false
	}
	authority, rest, _ := strings.Cut(rest, "/")
	return uri{scheme, authority, rest}, true
}

func noScheme(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("+-.", r)
}

// at gives the files that a path to be read is in, and its path there: those of the
// workspace, or those that a URI names. The caller calls leave.
func (f *files) at(ctx context.Context, name string) (in *files, rel string, err error) {
	u, ok := splitURI(name)
	if !ok {
		return f, name, nil
	}
	root, err := u.open(ctx, f.services())
	if err != nil {
		return nil, "", f.explain(name, err)
	}
	in = newFiles(root, f.room+answerFrame, f.wall, f.services)
	in.prefix = name[:len(name)-len(u.rest)]
	in.place = strconv.Quote(strings.TrimSuffix(in.prefix, "/"))
	if in.prefix[len(in.prefix)-1] != '/' {
		in.prefix += "/"
	}
	if u.rest == "" {
		u.rest = "."
	}
	return in, u.rest, nil
}

// leave closes what at has opened.
func (f *files) leave() {
	if f.prefix != "" {
		f.root.Close()
	}
}

// open asks the plugins that have files under the URI's scheme.
func (u uri) open(ctx context.Context, s *host.Services) (*os.Root, error) {
	var schemes []string
	var refused error
	for _, source := range s.Files() {
		scheme := source.Scheme()
		if !strings.EqualFold(scheme, u.scheme) {
			schemes = append(schemes, scheme+"://")
			continue
		}
		root, err := source.OpenFiles(ctx, u.authority)
		if err == nil {
			return root, nil
		}
		if refused == nil {
			refused = err
		}
	}
	switch {
	case refused != nil:
		return nil, refused
	case len(schemes) == 0:
		return nil, protocol.Errorf(protocol.CodeToolError, "nothing here has files under %.64s://; give a path relative to the workspace", u.scheme)
	}
	slices.Sort(schemes)
	return nil, protocol.Errorf(protocol.CodeToolError, "nothing here has files under %.64s://; the schemes are %s; without one a path is relative to the workspace",
		u.scheme, strings.Join(slices.Compact(schemes), ", "))
}
