package env

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"os"
	"path"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/bmatcuk/doublestar/v4"

	"a2e/host"
	"a2e/host/guard/wall"
	"a2e/host/sandbox"
	"a2e/host/schema/pattern"
	"a2e/protocol"
)

// DataOptions are the options of env/data/*: files that a task needs and leaves, in a folder that is
// independent of episodes. Messages have paths and checksums; they have the content only of small files
// that are asked for.
//
//	data.go        the folder: reset, get   data_stage.go  add
type DataOptions struct {
	Root     string   `yaml:"root" doc:"The folder that data_root means, relative to the workspace or absolute; env/data/reset empties it. Default: data, which is emptied only where the host made it."`
	Baseline string   `yaml:"baseline" doc:"A folder whose content env/data/reset stages, relative to the current folder; default: none."`
	Sources  []string `yaml:"sources" doc:"Folders that src of env/data/add may lie in, relative to the current folder; default: the workspace."`
	MaxFiles int      `yaml:"max_files" min:"0" doc:"Files and folders that one request may stage, and files that one lists; 0 = 100000."`
	MaxBytes int64    `yaml:"max_bytes" min:"0" doc:"Bytes that one request may stage; 0 = 16 GiB."`
}

const (
	defaultDataFolder = "data"
	defaultDataFiles  = 100_000
	defaultDataBytes  = 16 << 30
	maxDataParts      = 1000
	// maxInlined bounds the content in one answer, and maxHashed the bytes that are read for checksums.
	maxInlined = 8 << 20
	maxHashed  = 1 << 30
	// dataOwn begins the names in a data root that belong to the host: its mark, and the folders of what
	// is being staged.
	dataOwn  = ".a2e-data"
	dataMark = dataOwn
)

// dataPlane is the data root of one plugin.
type dataPlane struct {
	opts    DataOptions
	env     host.Env
	root    string // absolute
	within  string // the folder that root is opened from: the workspace, or the parent of root
	sources []string
	turn    chan struct{} // held by the running request
	yields  bool          // another plugin has data options and this one has none; set by Start
}

// dataRoot is a data root while a request works in it.
type dataRoot struct {
	*os.Root
	ours bool // the host may empty it
}

func newDataPlane(opts DataOptions, e host.Env) (*dataPlane, error) {
	workspace, err := filepath.Abs(e.Workspace)
	if err != nil {
		return nil, fmt.Errorf("workspace: %w", err)
	}
	d := &dataPlane{opts: opts, env: e, turn: make(chan struct{}, 1), sources: []string{workspace}}
	d.opts.MaxFiles, d.opts.MaxBytes = cmp.Or(opts.MaxFiles, defaultDataFiles), cmp.Or(opts.MaxBytes, defaultDataBytes)
	if d.root, d.within = cmp.Or(opts.Root, defaultDataFolder), workspace; !filepath.IsAbs(d.root) {
		d.root = filepath.Join(workspace, d.root)
	}
	d.root = filepath.Clean(d.root)
	if !wall.Within(workspace, d.root) {
		d.within = filepath.Dir(d.root)
	}
	if wall.Within(d.root, workspace) {
		return nil, fmt.Errorf("data.root: %q holds the workspace, which env/data/reset would empty; name a folder "+
			"of its own", opts.Root)
	}
	if opts.Sources != nil {
		d.sources = nil
	}
	for _, name := range opts.Sources {
		abs, err := filepath.Abs(name)
		if err != nil {
			return nil, fmt.Errorf("data.sources: %w", err)
		}
		d.sources = append(d.sources, abs)
	}
	if opts.Baseline != "" {
		if d.opts.Baseline, err = filepath.Abs(opts.Baseline); err != nil {
			return nil, fmt.Errorf("data.baseline: %w", err)
		}
	}
	return d, nil
}

// given reports whether the config sets any of the options.
func (o *DataOptions) given() bool {
	return o.Root != "" || o.Baseline != "" || o.Sources != nil || o.MaxFiles != 0 || o.MaxBytes != 0
}

// open opens the folder that a data_root names. If there is none it makes it, or returns
// fs.ErrNotExist without makes. The caller has the turn until it calls close.
func (d *dataPlane) open(ctx context.Context, name string, makes bool) (root dataRoot, err error) {
	if d.yields {
		return root, host.NotOwner(protocol.Errorf(protocol.CodeRuntimeError, "another plugin has the data root"))
	}
	sub, err := d.below(name)
	if err != nil {
		return root, err
	}
	host.HandOff(ctx)
	select {
	case d.turn <- struct{}{}:
	case <-ctx.Done():
		return root, context.Cause(ctx)
	}
	if root, err = d.enter(sub, makes); err == nil {
		return root, nil
	}
	<-d.turn
	if !makes && errors.Is(err, fs.ErrNotExist) {
		return root, err
	}
	return root, explained("the data root cannot be opened", wall.Cause(err))
}

func (d *dataPlane) close(root dataRoot) {
	_ = root.Close()
	<-d.turn
}

// enter opens the data root, or the folder sub in it.
func (d *dataPlane) enter(sub string, makes bool) (root dataRoot, err error) {
	rel, err := filepath.Rel(d.within, d.root)
	if err != nil {
		return root, err
	}
	if makes && d.opts.Root != "" && rel == filepath.Base(d.root) { // the parent may be missing
		if err := os.MkdirAll(d.within, 0o755); err != nil {
			return root, err
		}
	}
	outer, err := os.OpenRoot(d.within)
	if err != nil {
		return root, err
	}
	defer outer.Close()
	if _, err = outer.Stat(rel); makes && errors.Is(err, fs.ErrNotExist) {
		if err = outer.MkdirAll(rel, 0o755); err == nil && d.opts.Root == "" {
			err = outer.WriteFile(filepath.Join(rel, dataMark), []byte("a2e made this folder for env/data\n"), 0o644)
		}
	}
	if err == nil && makes && sub != "" {
		err = outer.MkdirAll(filepath.Join(rel, sub), 0o755)
	}
	if err != nil {
		return root, err
	}
	_, err = outer.Stat(filepath.Join(rel, dataMark))
	root.ours = d.opts.Root != "" || err == nil
	if guard := d.env.Wall.In(outer); guard != nil {
		root.Root, _, err = guard.OpenDir(filepath.ToSlash(filepath.Join(rel, sub)))
	} else {
		root.Root, err = outer.OpenRoot(filepath.Join(rel, sub))
	}
	if err == nil && d.env.Wall.In(root.Root).Holds() {
		err = errors.Join(wall.ErrOwn, root.Close())
	}
	return root, err
}

// below returns the path of a data_root inside the folder; "" = the folder itself.
func (d *dataPlane) below(name string) (string, error) {
	if name == "" {
		return "", nil
	}
	for _, top := range []string{protocol.DefaultDataRoot, d.root, cmp.Or(d.opts.Root, defaultDataFolder)} {
		rel, err := filepath.Rel(filepath.FromSlash(top), filepath.FromSlash(name))
		if err == nil && rel == "." {
			return "", nil
		}
		if err == nil && filepath.IsLocal(rel) && !strings.HasPrefix(rel, dataOwn) {
			return rel, nil
		}
	}
	return "", protocol.Wrong("/data_root", "should be %s or a folder below it, which is the folder that data.root "+
		"of the config names; another one is not a data root of this host", protocol.DefaultDataRoot)
}

// reset answers env/data/reset/req.
func (d *dataPlane) reset(ctx context.Context, req *protocol.EnvDataResetRequest,
	_ host.Emitter,
) (*protocol.EnvDataResetResponse, error) {
	if req.Scope != "all" && req.Scope != "baseline" {
		return nil, protocol.Wrong("/scope", `should be "all" or "baseline"`)
	}
	root, err := d.open(ctx, req.DataRoot, true)
	if err != nil {
		return nil, err
	}
	defer d.close(root)
	resp := &protocol.EnvDataResetResponse{
		OK: true, DataRoot: cmp.Or(req.DataRoot, protocol.DefaultDataRoot),
		Detail: "there is no baseline",
	}
	if req.Scope == "all" {
		if !root.ours {
			return nil, protocol.Errorf(protocol.CodeResetDenied, "the folder %s of the workspace was there before "+
				"a data root was made of it, and is not emptied; name it, or another, as data.root in the config",
				defaultDataFolder)
		}
		if err := emptyData(ctx, root); err != nil {
			return nil, explained("the data root cannot be emptied", err)
		}
	}
	if d.opts.Baseline != "" {
		resp.Restored, err = d.restore(ctx, root)
		resp.Detail = fmt.Sprintf("files of the baseline: %d", resp.Restored)
	}
	return resp, explained("the baseline cannot be staged", err)
}

// emptyData removes everything except the host's mark.
func emptyData(ctx context.Context, root dataRoot) error {
	entries, err := fs.ReadDir(root.FS(), ".")
	for _, e := range entries {
		if err == nil {
			err = ctx.Err()
		}
		if err == nil && e.Name() != dataMark {
			err = wall.Cause(removeAny(ctx, root, e))
		}
	}
	return err
}

// removeAny removes a file, or a folder of any depth and with any permissions.
func removeAny(ctx context.Context, root dataRoot, e fs.DirEntry) error {
	if e.IsDir() {
		return sandbox.RemoveIn(ctx, root.Root, e.Name())
	}
	return root.Remove(e.Name())
}

// get answers env/data/get/req.
func (d *dataPlane) get(ctx context.Context, req *protocol.EnvDataGetRequest,
	_ host.Emitter,
) (*protocol.EnvDataGetResponse, error) {
	if req.MaxBytes < 0 {
		return nil, protocol.Wrong("/max_bytes", "should be 0 or more")
	}
	wanted, err := dataQuery(req.Query)
	if err != nil {
		return nil, err
	}
	root, err := d.open(ctx, req.DataRoot, false)
	if errors.Is(err, fs.ErrNotExist) {
		return &protocol.EnvDataGetResponse{OK: true, Detail: "nothing was staged yet"}, nil
	} else if err != nil {
		return nil, err
	}
	defer d.close(root)
	l := &dataListing{
		root: root, most: d.opts.MaxFiles, inline: req.IncludeContent, each: req.MaxBytes,
		resp: &protocol.EnvDataGetResponse{OK: true},
	}
	err = fs.WalkDir(root.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case strings.HasPrefix(name, dataOwn) && e != nil && e.IsDir():
			return fs.SkipDir
		case err != nil || !e.Type().IsRegular() || strings.HasPrefix(name, dataOwn): // it may be gone or unreadable
			return nil
		}
		fits, err := wanted(ctx, name)
		if err != nil || !fits {
			return err
		}
		return l.add(ctx, name)
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return l.resp, explained("the data root cannot be read", err)
}

// dataQuery returns the function that matches paths with a query. A glob matches the whole path or, if it
// has no slash, the name; other text matches if it is a part of the path.
func dataQuery(query string) (func(context.Context, string) (bool, error), error) {
	if !strings.ContainsAny(query, "*?[{") {
		return func(_ context.Context, name string) (bool, error) { return strings.Contains(name, query), nil }, nil
	}
	query = strings.TrimPrefix(query, "./")
	glob, ok := pattern.NewGlob(query)
	if !ok || !doublestar.ValidatePattern(query) {
		return nil, protocol.Wrong("/query", `is not a glob; send one such as "*.csv" or "out/**", or a part of a path`)
	}
	return func(ctx context.Context, name string) (bool, error) {
		fits, err := glob.Match(ctx, name)
		if err == nil && !fits && !strings.Contains(query, "/") {
			fits, err = glob.Match(ctx, path.Base(name))
		}
		return fits, err
	}, nil
}

// dataListing is an answer to env/data/get/req that is being made.
type dataListing struct {
	root            dataRoot
	most            int
	inline          bool
	each            int64 // most bytes of content per file
	inlined, hashed int64
	resp            *protocol.EnvDataGetResponse
}

func (l *dataListing) add(ctx context.Context, name string) error {
	if len(l.resp.Items) == l.most {
		l.resp.Truncated, l.resp.Detail = true, fmt.Sprintf("there are more than %d files", l.most)
		return errEnough
	}
	file, size, err := openRegular(l.root.Root, filepath.FromSlash(name))
	if err != nil {
		return nil // it is gone, or is no regular file any more
	}
	defer file.Close()
	kind := cmp.Or(mime.TypeByExtension(path.Ext(name)), "application/octet-stream")
	item := map[string]any{"uri": name, "dest": name, "size_bytes": size, "checksum": "", "mime": kind}
	l.resp.Items = append(l.resp.Items, item)
	var content bytes.Buffer
	to := io.Discard
	if l.inline && size <= min(l.each, maxInlined-l.inlined) {
		to = &content
	} else if l.inline {
		l.resp.Truncated, l.resp.Detail = true, "the content of some files is left out: they are longer than "+
			"max_bytes, or all of them than 8 MiB"
	}
	if l.hashed += size; l.hashed > maxHashed {
		l.resp.Detail = "some checksums are left out: only the first GiB of the files is read for them"
		return nil
	}
	sum := sha256.New()
	if _, err := io.Copy(io.MultiWriter(sum, to), io.LimitReader(stoppable{ctx, file}, size)); err != nil {
		return err
	}
	item["checksum"] = "sha256:" + hex.EncodeToString(sum.Sum(nil))
	switch text := content.Bytes(); {
	case to == io.Discard:
	case utf8.Valid(text):
		item["content"] = string(text)
	default:
		item["base64"] = base64.StdEncoding.EncodeToString(text)
	}
	l.inlined += int64(content.Len())
	return nil
}

// stoppable is a reader that stops when its context ends.
type stoppable struct {
	ctx context.Context
	io.Reader
}

// Read implements io.Reader.
func (s stoppable) Read(p []byte) (int, error) {
	if s.ctx.Err() != nil {
		return 0, context.Cause(s.ctx)
	}
	return s.Reader.Read(p)
}
