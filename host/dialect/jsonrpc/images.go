package jsonrpc

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/protocol"
	"a2e/protocol/jsonrpc"
)

const (
	maxImages     = 16
	maxImageBytes = 8 << 20
	maxAllImages  = 16 << 20 // bytes of those of one message: with them it fits into the history
)

// ImageTypes are the types of images by the endings of their files' names, in small letters.
func ImageTypes() map[string]string {
	return map[string]string{".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".webp": "image/webp", ".gif": "image/gif"}
}

// attachment is an image of a message.
type attachment struct {
	Path string `json:"path"`
	MIME string `json:"mimeType"`
	URL  string `json:"dataUrl"`
	Size int    `json:"byteSize"`

	data bool // it came as data: no file has it
}

// imageParam is an image as the client gives it.
type imageParam struct {
	Path string `json:"path"`
	MIME string `json:"mime_type,omitzero"`
	URL  string `json:"data_url,omitzero"`
}

// imageList is the images of a message. What is no image at all is left out.
type imageList []imageParam

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (l *imageList) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	if dec.PeekKind() != '[' {
		return dec.SkipValue()
	}
	_, err := dec.ReadToken()
	for err == nil && dec.PeekKind() != ']' {
		var val jsontext.Value
		if val, err = dec.ReadValue(); err != nil {
			break
		}
		obj, bad := protocol.ParseObject(val)
		if bad != nil {
			continue
		}
		member := func(names ...string) string {
			for _, name := range names {
				if s := obj.Text(name); strings.TrimSpace(s) != "" {
					return strings.TrimSpace(s)
				}
			}
			return ""
		}
		if p := (imageParam{member("path"), member("mime_type", "mimeType"), member("data_url", "dataUrl")}); p.Path != "" || p.URL != "" {
			*l = append(*l, p)
		}
	}
	if err == nil {
		_, err = dec.ReadToken()
	}
	return err
}

// size is what the list costs in memory.
func (l imageList) size() (bytes int) {
	for _, p := range l {
		bytes += len(p.Path) + len(p.MIME) + len(p.URL)
	}
	return bytes
}

// load reads the images of a message.
func (f *Front) load(list imageList) ([]attachment, error) {
	if len(list) > maxImages {
		return nil, jsonrpc.Refused("invalid_image", "the message has %d images; at most %d are taken", len(list), maxImages)
	}
	var all []attachment
	size := 0
	for i, p := range list {
		load := f.fromPath
		if p.URL != "" {
			load = fromURL
		}
		image, err := load(p)
		if err != nil {
			return nil, jsonrpc.Refused("invalid_image", "image %d: %s", i+1, err)
		}
		if size += image.Size; size > maxAllImages {
			return nil, jsonrpc.Refused("invalid_image", "image %d: the images of the message have more than %d bytes together; send them in several messages", i+1, maxAllImages)
		}
		all = append(all, image)
	}
	return all, nil
}

// dataURL matches a data URL with its type and its data.
var dataURL = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?is)^data:([^;,]+);base64,(.+)$`)
})

func fromURL(p imageParam) (attachment, error) {
	parts := dataURL().FindStringSubmatch(p.URL)
	if parts == nil {
		return attachment{}, errors.New("its data_url should be data:<mime>;base64,<payload>")
	}
	mime := strings.ToLower(cmp.Or(p.MIME, parts[1]))
	name := "image" + endingOf(mime)
	if name == "image" {
		return attachment{}, fmt.Errorf("images of the type %.40q are not taken; those of PNG, JPEG, WebP and GIF are", mime)
	}
	raw, err := base64.StdEncoding.DecodeString(parts[2])
	switch {
	case err != nil:
		return attachment{}, errors.New("its data_url is not valid base64")
	case len(raw) > maxImageBytes:
		return attachment{}, errTooLarge(int64(len(raw)))
	}
	return attachment{cmp.Or(p.Path, name), mime, "data:" + mime + ";base64," + parts[2], len(raw), true}, nil
}

// endingOf returns the ending of the names of files of a type; "" = it is none of images.
func endingOf(mime string) string {
	var endings []string
	for ending, m := range ImageTypes() {
		if m == mime {
			endings = append(endings, ending)
		}
	}
	if len(endings) == 0 {
		return ""
	}
	return slices.Min(endings)
}

func errTooLarge(size int64) error {
	return fmt.Errorf("image too large (%d bytes); at most %d are taken", size, maxImageBytes)
}

// fromPath reads an image of the workspace: what the file tools may not read is not sent to a
// model either.
func (f *Front) fromPath(p imageParam) (attachment, error) {
	name, err := f.place(p.Path)
	if err != nil {
		return attachment{}, err
	}
	mime := ImageTypes()[strings.ToLower(path.Ext(name))]
	if mime == "" {
		return attachment{}, fmt.Errorf("unsupported image type of %s; png, jpg, jpeg, webp and gif are supported", quoted(name))
	}
	file, err := f.openImage(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return attachment{}, fmt.Errorf("file not found: %s", quoted(name))
	case err != nil:
		return attachment{}, fmt.Errorf("%s cannot be read as a file of the workspace", quoted(name))
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return attachment{}, fmt.Errorf("not a file: %s", quoted(name))
	}
	raw, err := io.ReadAll(io.LimitReader(file, maxImageBytes+1))
	switch {
	case err != nil:
		return attachment{}, fmt.Errorf("unable to read %s", quoted(name))
	case len(raw) > maxImageBytes:
		return attachment{}, errTooLarge(info.Size())
	}
	return attachment{name, mime, "data:" + mime + ";base64," + base64.StdEncoding.EncodeToString(raw), len(raw), false}, nil
}

// place returns the path of an image within the workspace, with slashes. It may come in quotes,
// as a file URL, with the home folder as ~, or absolute.
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
		if !filepath.IsAbs(name) { // a file of another machine
			name = ".."
		}
	}
	if rest, ok := strings.CutPrefix(name, "~/"); ok {
		if home, err := os.UserHomeDir(); err == nil {
			name = filepath.Join(home, rest)
		}
	}
	if filepath.IsAbs(name) {
		rel, err := filepath.Rel(f.opts.Workspace, name)
		if err != nil {
			rel = ".."
		}
		name = rel
	}
	if f.opts.Workspace == "" || !filepath.IsLocal(name) {
		return "", fmt.Errorf("%s is not in the workspace, whose files are the only ones that are read here", quoted(given))
	}
	return filepath.ToSlash(filepath.Clean(name)), nil
}

// openImage opens a file of the workspace for reading, and none of the host's own. A pipe must not
// wait.
func (f *Front) openImage(name string) (*os.File, error) {
	root, err := os.OpenRoot(f.opts.Workspace)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	if guard := f.opts.Wall.In(root); guard.Holds() {
		return guard.OpenFile(name, syscall.O_NONBLOCK)
	}
	return root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
}

// withPlaces adds the places of images to a text that does not name them.
func withPlaces(s string, images int) string {
	words := []string{}
	if s != "" {
		words = append(words, s)
	}
	for i := range images {
		if label := fmt.Sprintf("[Image %d]", i+1); !strings.Contains(strings.ToLower(s), strings.ToLower(label)) {
			words = append(words, label)
		}
	}
	return strings.Join(words, " ")
}

// pictures are images as models get them.
func pictures(images []attachment) []host.Image {
	all := make([]host.Image, 0, len(images))
	for _, a := range images {
		_, data, _ := strings.Cut(a.URL, ",")
		if raw, err := base64.StdEncoding.DecodeString(data); err == nil { // as it was when it came
			all = append(all, host.Image{Name: a.Path, MIME: a.MIME, Data: raw})
		}
	}
	return all
}
