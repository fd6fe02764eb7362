package tools

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"

	"a2e/protocol"
)

// A result of MCP is {"content":[blocks],"structuredContent":…}. A part of a picture is useless: a block that does not
// fit is replaced by a text that says what it was and where it is kept. Only texts are shortened.
const (
	noteSize   = 512 // most bytes of such a text, and least bytes of a shortened text
	mostBlocks = 64  // kept in files of their own
)

// contentOf returns the blocks of a result of MCP, and its other members; ok is false for any other data.
func contentOf(data []byte) (blocks [][]byte, rest []piece, ok bool) {
	o, err := protocol.ParseObject(data)
	if err != nil {
		return nil, nil, false
	}
	for key, val := range o.All() {
		switch string(key) {
		case "content":
			if blocks, ok = protocol.SplitArray(val); !ok {
				return nil, nil, false
			}
		case "structuredContent", "_meta", "isError":
			rest = append(rest, piece{key, val})
		case "spilled":
		default:
			return nil, nil, false
		}
	}
	for _, block := range blocks {
		if b, err := protocol.ParseObject(block); err != nil || b.Text("type") == "" {
			return nil, nil, false
		}
	}
	return blocks, rest, ok
}

// result shortens a result of MCP to about limit bytes: the smallest blocks stay whole, the others share the rest.
// Blocks that are not text are kept whole or replaced.
func (c *cutter) result(blocks [][]byte, rest []piece, spilled string, limit int) []byte {
	left := limit - len(`{"content":[],"spilled":""}`) - len(spilled)
	var members []byte
	for _, m := range rest {
		switch structured := string(m.key) == "structuredContent"; {
		case len(m.val) <= left/2:
			members = append(protocol.AppendString(append(members, ','), m.key), ':')
			members = append(members, m.val...)
		case structured:
			blocks = append(blocks, c.note("the structured result", "json", m.val))
		}
	}
	left -= len(members)
	if most := max(left/noteSize, 1); len(blocks) > most {
		more := len(blocks) - most + 1
		last := noteText(protocol.Count(more, "more block")+" left out, for lack of room", spilled, "")
		blocks = append(slices.Clip(blocks[:most-1]), last)
	}
	for n, i := range smallestFirst(len(blocks), func(i int) int { return len(blocks[i]) }) {
		blocks[i] = c.block(blocks[i], left/(len(blocks)-n)-len(","))
		left -= len(blocks[i]) + len(",")
	}
	dst := append([]byte(`{"content":[`), bytes.Join(blocks, []byte{','})...)
	dst = append(append(dst, ']'), members...)
	if spilled != "" {
		dst = protocol.AppendString(append(dst, `,"spilled":`...), spilled)
	}
	return append(dst, '}')
}

// block returns a block that fits, or a replacement of about limit bytes.
func (c *cutter) block(block []byte, limit int) []byte {
	o, err := protocol.ParseObject(block)
	if err != nil || len(block) <= max(limit, noteSize) {
		return block
	}
	kind, mime := o.Text("type"), o.Text("mimeType")
	switch inner, _ := o.Child("resource"); {
	case kind == "text":
		return c.blockOf(o, "text", limit)
	case kind == "image", kind == "audio":
		return c.binary(kind, mime, o.Text("data"))
	case kind == "resource_link":
		return noteText("the link to the resource "+protocol.Clip(o.Text("uri"), noteSize/2)+" is too long", "", "")
	case kind == "resource" && inner.Text("blob") != "":
		what := "resource " + protocol.Clip(inner.Text("uri"), noteSize/4)
		return c.binary(what, inner.Text("mimeType"), inner.Text("blob"))
	case kind == "resource" && inner.Text("text") != "":
		text := c.blockOf(inner, "text", limit-len(`{"type":"resource","resource":}`))
		return append(append([]byte(`{"type":"resource","resource":`), text...), '}')
	}
	return c.note(kind+" block", "json", block)
}

// blockOf shortens the text of a block or of its resource, and leaves out other long members.
func (c *cutter) blockOf(o protocol.Object, name string, limit int) []byte {
	dst := []byte{'{'}
	for key, val := range o.All() {
		if string(key) != name && len(val) <= noteSize/2 {
			dst = append(append(protocol.AppendString(dst, key), ':'), val...)
			dst = append(dst, ',')
		}
	}
	dst = append(protocol.AppendString(dst, name), ':')
	dst = append(dst, c.text(o.Text(name), max(limit-len(dst)-1, noteSize))...)
	return append(dst, '}')
}

// binary keeps base64 content as a file, and returns a text block that replaces it.
func (c *cutter) binary(what, mime, text string) []byte {
	content, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		if content, err = base64.RawURLEncoding.DecodeString(strings.TrimRight(text, "=")); err != nil {
			content = []byte(text)
		}
	}
	return c.note(strings.TrimSpace("the "+what+" "+protocol.Clip(mime, noteSize/8)), extensionOf(mime), content)
}

// note keeps content as a file, and returns a text block that replaces it.
func (c *cutter) note(what, extension string, content []byte) []byte {
	uri, path := "", ""
	if c.files < mostBlocks {
		c.files++
		if file, err := c.spill.KeepAs(c.ctx, c.tool, extension, content); err == nil {
			uri, path = file.URI(), file.Path()
		}
	}
	return noteText(fmt.Sprintf("%s of %d bytes does not fit", what, len(content)), path, uri)
}

// noteText makes the text block that says where replaced content is kept.
func noteText(what, path, uri string) []byte {
	switch {
	case uri != "":
		what += " into this result; it is in the file " + path + ", which MCP's resources/read gives as " + uri
	case path != "":
		what += " into this result; the file " + path + " has all of it"
	default:
		what += " into this result, and could not be kept"
	}
	return append(protocol.AppendString([]byte(`{"type":"text","text":`), "["+what+"]"), '}')
}

// extensionOf returns the usual file extension of a media type, "bin" if it is unknown.
func extensionOf(mime string) string {
	mime, _, _ = strings.Cut(mime, ";")
	known := map[string]string{
		"image/png": "png", "image/jpeg": "jpg", "image/gif": "gif", "image/webp": "webp", "image/svg+xml": "svg",
		"audio/wav": "wav", "audio/mpeg": "mp3", "audio/ogg": "ogg", "video/mp4": "mp4", "application/pdf": "pdf",
	}
	return cmp.Or(known[strings.ToLower(strings.TrimSpace(mime))], "bin")
}
