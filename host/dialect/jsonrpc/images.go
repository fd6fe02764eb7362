package jsonrpc

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/agent"
	"a2e/host/guard/wall"
	"a2e/protocol"
	"a2e/protocol/jsonrpc"
)

// ImageTypes returns the media types of images by file name extension, in lower case.
func ImageTypes() map[string]string {
	return map[string]string{
		".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".webp": "image/webp", ".gif": "image/gif",
	}
}

// attachment is an image of a message.
type attachment struct {
	Path string `json:"path"`
	MIME string `json:"mimeType"`
	URL  string `json:"dataUrl"`
	Size int    `json:"byteSize"`

	data bool // it came as data, not as a file
}

// imageParam is an image in a request of the client.
type imageParam struct {
	Path string `json:"path"`
	MIME string `json:"mime_type,omitzero"`
	URL  string `json:"data_url,omitzero"`
}

// imagesOf returns the images of a request's parameters. It leaves out elements without a path or data.
func imagesOf(params protocol.Object) (images []imageParam) {
	var list []jsontext.Value
	val, _ := params.Get("images")
	_ = json.Unmarshal(val, &list) // leaves list empty if the value is not an array
	for _, val := range list {
		obj, _ := protocol.ParseObject(val) // empty if the element is not an object
		member := func(name, other string) string {
			return cmp.Or(strings.TrimSpace(obj.Text(name)), strings.TrimSpace(obj.Text(other)))
		}
		p := imageParam{member("path", ""), member("mime_type", "mimeType"), member("data_url", "dataUrl")}
		if p.Path != "" || p.URL != "" {
			images = append(images, p)
		}
	}
	return images
}

func (f *Front) load(list []imageParam) (all []attachment, err error) {
	if len(list) > maxImages {
		return nil, jsonrpc.Refused("invalid_image", "the message has %d images; at most %d are taken", len(list),
			maxImages)
	}
	size := 0
	for i, p := range list {
		read := f.fromPath
		if p.URL != "" {
			read = fromURL
		}
		name, mime, data, err := read(p)
		if size += len(data); err == nil && size > maxAllImages {
			err = fmt.Errorf("the images of the message have more than %d bytes together; send them in several "+
				"messages", maxAllImages)
		}
		if err != nil {
			return nil, jsonrpc.Refused("invalid_image", "image %d: %s", i+1, err)
		}
		url := "data:" + mime + ";base64," + base64.StdEncoding.EncodeToString(data)
		all = append(all, attachment{name, mime, url, len(data), p.URL != ""})
	}
	return all, nil
}

var errTooLarge = fmt.Errorf("image too large: %w", wall.TooLargeError(maxImageBytes))

func fromURL(p imageParam) (name, mime string, data []byte, err error) {
	head, payload, _ := strings.Cut(p.URL, ",")
	mime, ok := strings.CutPrefix(strings.ToLower(head), "data:")
	mime, isBase64 := strings.CutSuffix(mime, ";base64")
	if !ok || !isBase64 || mime == "" || strings.Contains(mime, ";") || payload == "" {
		return "", "", nil, errors.New("its data_url should be data:<mime>;base64,<payload>")
	}
	mime = strings.ToLower(cmp.Or(p.MIME, mime))
	kind := strings.TrimPrefix(mime, "image/")
	if ImageTypes()["."+kind] != mime {
		return "", "", nil, fmt.Errorf("images of the type %.40q are not taken; those of PNG, JPEG, WebP and GIF are",
			mime)
	}
	data, err = base64.StdEncoding.DecodeString(payload)
	switch {
	case err != nil:
		err = errors.New("its data_url is not valid base64")
	case len(data) > maxImageBytes:
		err = errTooLarge
	}
	return cmp.Or(p.Path, "image."+kind), mime, data, err
}

// fromPath reads an image of the workspace. It may not read files that the file tools may not read.
func (f *Front) fromPath(p imageParam) (name, mime string, data []byte, err error) {
	if name, err = f.place(p.Path); err != nil {
		return "", "", nil, err
	}
	if mime = ImageTypes()[strings.ToLower(path.Ext(name))]; mime == "" {
		return "", "", nil, fmt.Errorf("unsupported image type of %s; png, jpg, jpeg, webp and gif are supported",
			quoted(name))
	}
	root, err := os.OpenRoot(f.opts.Workspace)
	if err == nil {
		defer root.Close()
		data, err = f.opts.Wall.ReadFile(root, name, maxImageBytes)
	}
	switch large := wall.TooLargeError(0); {
	case errors.Is(err, fs.ErrNotExist):
		err = fmt.Errorf("file not found: %s", quoted(name))
	case errors.As(err, &large):
		err = errTooLarge
	case err != nil:
		err = fmt.Errorf("%s cannot be read as a file of the workspace", quoted(name))
	}
	return name, mime, data, err
}

// place returns the path of an image relative to the workspace, with slashes. The client may write it in quotes, as a
// file URL, with ~ for the home folder, or absolute.
func (f *Front) place(name string) (string, error) {
	if n := len(name); n > 1 && (name[0] == '"' || name[0] == '\'') && name[n-1] == name[0] {
		name = strings.TrimSpace(name[1 : n-1])
	}
	given := name
	if rest, ok := strings.CutPrefix(name, "file://"); ok {
		name = strings.TrimPrefix(rest, "localhost")
		if plain, err := url.PathUnescape(name); err == nil {
			name = plain
		}
		if !filepath.IsAbs(name) { // the URL names another machine
			name = ".."
		}
	}
	if rest, ok := strings.CutPrefix(name, "~/"); ok {
		if home, err := os.UserHomeDir(); err == nil {
			name = filepath.Join(home, rest)
		}
	}
	if filepath.IsAbs(name) {
		if rel, err := filepath.Rel(f.opts.Workspace, name); err == nil {
			name = rel
		}
	}
	if f.opts.Workspace == "" || !filepath.IsLocal(name) {
		return "", fmt.Errorf("%s is not in the workspace, whose files are the only ones that are read here",
			quoted(given))
	}
	return filepath.ToSlash(filepath.Clean(name)), nil
}

// withPlaces adds the labels [Image 1], [Image 2], … to a text, except those that it has already.
func withPlaces(s string, images int) string {
	for i := range images {
		if label := fmt.Sprintf("[Image %d]", i+1); !strings.Contains(strings.ToLower(s), strings.ToLower(label)) {
			s += " " + label
		}
	}
	return strings.TrimSpace(s)
}

// pictures returns images as models get them.
func pictures(images []attachment) []agent.Image {
	all := make([]agent.Image, 0, len(images))
	for _, a := range images {
		_, data, _ := strings.Cut(a.URL, ",")
		if raw, err := base64.StdEncoding.DecodeString(data); err == nil { // load has encoded it
			all = append(all, agent.Image{Name: a.Path, MIME: a.MIME, Data: raw})
		}
	}
	return all
}
