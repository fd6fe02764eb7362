package jsonrpc

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"a2e/host/wall"
	"a2e/protocol"
	"a2e/protocol/jsonrpc"
)

const (
	maxImages     = 16
	maxImageBytes = 10 << 20
	maxImageFiles = 100 // of a session, that come as data
	// imageFolder is where images go that come as data URLs, for the worker to read.
	imageFolder = ".a2e-images"
)

// image is an image of a message, a file in the workspace.
type image struct {
	Path  string `json:"path"` // relative to the workspace, with slashes
	MIME  string `json:"mime_type"`
	Bytes int    `json:"bytes"`
}

// imageParam is an image as the client gives it: a path or data URL, or an object with one.
type imageParam struct{ path, url string }

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (p *imageParam) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	val, err := dec.ReadValue()
	if err != nil {
		return err
	}
	if text, ok := protocol.Value(val).Str(); ok {
		if strings.HasPrefix(text, "data:") {
			p.url = text
		} else {
			p.path = text
		}
		return nil
	}
	obj, err := protocol.ParseObject(val)
	if err != nil {
		return errors.New(wantedImage)
	}
	var o struct {
		Path    string `json:"path"`
		DataURL string `json:"data_url"`
	}
	if err := obj.Decode(&o); err != nil || (o.Path == "") == (o.DataURL == "") {
		return errors.New(wantedImage)
	}
	p.path, p.url = o.Path, o.DataURL
	return nil
}

const wantedImage = `should be {"path":…} or {"data_url":…}`

// images looks at the images of a message, and puts those that come as data into files.
func (f *Front) images(session string, params []imageParam) ([]image, error) {
	if len(params) == 0 {
		return nil, nil
	}
	if len(params) > maxImages {
		return nil, jsonrpc.Params("images", fmt.Sprintf("has %d images; at most %d are taken", len(params), maxImages))
	}
	if f.opts.Workspace == "" {
		return nil, jsonrpc.Params("images", "there is no workspace here for images")
	}
	root, err := os.OpenRoot(f.opts.Workspace)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeRuntimeError, "the workspace cannot be opened")
	}
	defer root.Close()
	all := make([]image, 0, len(params))
	for i, p := range params {
		var img image
		if p.url != "" {
			img, err = f.fromURL(root, session, p.url)
		} else {
			img, err = f.fromPath(root, p.path)
		}
		if err != nil {
			return nil, jsonrpc.Params(fmt.Sprintf("images/%d", i), err.Error())
		}
		all = append(all, img)
	}
	return all, nil
}

// fromPath looks at an image in the workspace.
func (f *Front) fromPath(root *os.Root, name string) (image, error) {
	if filepath.IsAbs(name) {
		rel, err := filepath.Rel(f.opts.Workspace, name)
		if err != nil {
			return image{}, errors.New("is not in the workspace")
		}
		name = rel
	}
	file, err := f.imageFile(root, name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return image{}, errors.New("there is no such file in the workspace")
	case err != nil:
		return image{}, errors.New("cannot be read as a file of the workspace")
	}
	defer file.Close()
	info, err := file.Stat()
	switch {
	case err != nil:
		return image{}, errors.New("cannot be read")
	case !info.Mode().IsRegular():
		return image{}, errors.New("is no file")
	case info.Size() > maxImageBytes:
		return image{}, fmt.Errorf("has %d bytes; at most %d are taken", info.Size(), maxImageBytes)
	}
	head := make([]byte, 512)
	n, err := io.ReadFull(file, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return image{}, errors.New("cannot be read")
	}
	mime, _, err := kindOf(head[:n])
	return image{filepath.ToSlash(filepath.Clean(name)), mime, int(info.Size())}, err
}

// imageFile opens a file of the workspace for reading, and none of the host's own. A pipe must not
// wait.
func (f *Front) imageFile(root *os.Root, name string) (*os.File, error) {
	if guard := f.opts.Wall.In(root); guard.Holds() {
		return guard.OpenFile(filepath.ToSlash(name), syscall.O_NONBLOCK)
	}
	return root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
}

// kindOf tells the type of an image, and the ending of its files' names.
func kindOf(head []byte) (mime, ending string, err error) {
	switch mime = http.DetectContentType(head); mime {
	case "image/png", "image/jpeg", "image/gif", "image/webp":
		return mime, "." + strings.TrimPrefix(mime, "image/"), nil
	}
	return "", "", errors.New("is no PNG, JPEG, GIF or WebP image")
}

// fromURL puts an image that came as data into a file, where the worker can read it.
func (f *Front) fromURL(root *os.Root, session, url string) (image, error) {
	head, data, ok := strings.Cut(strings.TrimPrefix(url, "data:"), ",")
	if !ok || !strings.HasPrefix(url, "data:image/") || !strings.HasSuffix(head, ";base64") {
		return image{}, errors.New("should be a data URL such as data:image/png;base64,…")
	}
	if base64.StdEncoding.DecodedLen(len(data)) > maxImageBytes+2 {
		return image{}, fmt.Errorf("is larger than the %d bytes that are taken", maxImageBytes)
	}
	raw, err := base64.StdEncoding.DecodeString(data)
	if err != nil {
		return image{}, errors.New("is not valid base64")
	}
	mime, ending, err := kindOf(raw)
	if err != nil {
		return image{}, err
	}
	sum := sha256.Sum256(raw)
	folder := filepath.Join(imageFolder, session)
	name := filepath.Join(folder, hex.EncodeToString(sum[:8])+ending)
	if f.opts.Wall.Hides(wall.Real(filepath.Join(f.opts.Workspace, folder))) { // by a link that stands there
		return image{}, errors.New("cannot be put into the workspace")
	}
	if err := put(root, session, name, raw); err != nil {
		return image{}, err
	}
	return image{filepath.ToSlash(name), mime, len(raw)}, nil
}

// put puts an image into the folder of its session.
func put(root *os.Root, session, name string, raw []byte) error {
	failed := errors.New("cannot be put into the workspace")
	if uuid.Validate(session) != nil || root.MkdirAll(filepath.Dir(name), 0o700) != nil {
		return failed
	}
	there, err := fs.ReadDir(root.FS(), path.Join(imageFolder, session))
	if err != nil {
		return failed
	}
	again := slices.ContainsFunc(there, func(e fs.DirEntry) bool { return e.Name() == filepath.Base(name) })
	if len(there) >= maxImageFiles && !again {
		return fmt.Errorf("is one too many: a session may have %d images that come as data; history.clear_session takes them away", maxImageFiles)
	}
	if write(root, filepath.Join(imageFolder, ".gitignore"), []byte("*\n")) != nil || write(root, name, raw) != nil {
		return failed
	}
	return nil
}

// dropImages takes the images of a session away that came as data.
func (f *Front) dropImages(session string) {
	if f.opts.Workspace == "" || uuid.Validate(session) != nil { // the name of a folder, not a path
		return
	}
	root, err := os.OpenRoot(f.opts.Workspace)
	if err == nil {
		err = errors.Join(root.RemoveAll(filepath.Join(imageFolder, session)), root.Close())
	}
	if err != nil {
		f.logger().Warn().Err(err).Str("session_id", session).Msg("the images of a session could not be taken away")
	}
}

// write makes a file, unless the same one is there.
func write(root *os.Root, name string, raw []byte) error {
	file, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = file.Write(raw)
	if err = errors.Join(err, file.Close()); err != nil {
		err = errors.Join(err, root.Remove(name)) // half of it would be taken for the whole one
	}
	return err
}
