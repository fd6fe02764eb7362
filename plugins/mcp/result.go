package mcp

import (
	"encoding/base64"
	"errors"
	"maps"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/plugins/tools"
	"a2e/protocol"
)

// blocks returns the shapes of the content blocks of MCP, by their type.
func blocks() map[string]shape {
	media := map[string]rule{"data": isBase64, "mimeType": isText}
	return map[string]shape{
		"text":          block(map[string]rule{"text": isText}, "text"),
		"image":         block(media, "data", "mimeType"),
		"audio":         block(media, "data", "mimeType"),
		"resource":      block(map[string]rule{"resource": partShape().within}, "resource"),
		"resource_link": block(resourceShape().members, "uri", "name"),
	}
}

func block(members map[string]rule, required ...string) shape {
	s := shape{required: required, members: map[string]rule{"annotations": annotations().within, "_meta": isObject}}
	maps.Copy(s.members, members)
	return s
}

// partShape returns the shape of a part of a resource, which has a text or a blob.
func partShape() shape {
	return shape{required: []string{"uri"}, members: map[string]rule{
		"uri": isText, "mimeType": isText, "text": isText, "blob": isBase64, "_meta": isObject,
	}}
}

// fitBlock returns a block as the host passes it on. A block that does not fit becomes a text that says why
// and has the whole block in it. A block of another type is kept: newer versions of MCP have more types.
func fitBlock(raw jsontext.Value) protocol.Object {
	obj, err := protocol.ParseObject(raw)
	kind := obj.Text("type")
	switch one, known := blocks()[kind]; {
	case err == nil && known:
		obj, err = one.fit(raw)
		if part, has := obj.Child("resource"); has && kind == "resource" && err == nil {
			err = hasContent(part)
		}
	case err != nil:
		err = errors.New("is not a JSON object")
	case kind == "":
		err = errors.New(`has no member "type" that fits`)
	}
	if err == nil {
		return obj
	}
	text := protocol.AppendString(nil, "a block of the MCP server "+err.Error()+": "+string(raw))
	obj, _ = protocol.ParseObject(append(append([]byte(`{"type":"text","text":`), text...), '}')) // it is an object
	return obj
}

// hasContent returns an error if a part of a resource has neither a text nor a blob.
func hasContent(part protocol.Object) error {
	_, text := part.Get("text")
	_, blob := part.Get("blob")
	if !text && !blob {
		return errors.New(`has neither a member "text" nor a member "blob" that fits`)
	}
	return nil
}

// hopPrefix begins the keys of _meta that are about one MCP connection only and are not passed on.
const hopPrefix = "io.modelcontextprotocol/"

// passedMeta returns the part of a member _meta that is passed on, or nil if nothing is.
func passedMeta(v protocol.Value) protocol.Value {
	obj, err := protocol.ParseObject(v)
	if err != nil {
		return nil
	}
	if obj = remade(obj, func(name string, val protocol.Value) protocol.Value {
		if strings.HasPrefix(name, hopPrefix) {
			return nil
		}
		return val
	}); obj.Len() == 0 {
		return nil
	}
	return obj.Raw()
}

// outcome makes the outcome of a tool call from an MCP result. Its data has the members of the result as
// the server wrote them, without isError and resultType:
//
//	{"content":[the blocks as MCP sends them],"structuredContent":…,"_meta":…}
func outcome(raw jsontext.Value, emit host.Emitter) (*tools.Outcome, error) {
	res, err := protocol.ParseObject(raw)
	if err != nil {
		return nil, errors.New("the result of the tool is not a JSON object")
	}
	data := []byte(`{"content":[`)
	var texts []string
	for i, one := range contentOf(res) {
		if i > 0 {
			data = append(data, ',')
		}
		data = append(data, one.Raw()...)
		if one.Text("type") == "text" {
			texts = append(texts, one.Text("text"))
		}
		artifact(one, emit)
	}
	data = append(data, ']')
	for key, val := range res.All() {
		switch string(key) {
		case "content", "isError", "resultType":
			continue
		case "_meta":
			val = passedMeta(val)
		}
		if val != nil && val.Kind() != 'n' {
			data = append(protocol.AppendString(append(data, ','), key), ':')
			data = append(data, val...)
		}
	}
	text := strings.Join(texts, "\n")
	out := &tools.Outcome{Data: jsontext.Value(append(data, '}'))}
	out.Summary = protocol.Clip(strings.Join(strings.Fields(protocol.Clip(text, 2*maxSummary)), " "), maxSummary)
	if failed, _ := res.Get("isError"); failed.Kind() == 't' {
		out.Failed, out.Failure = true, protocol.Clip(strings.TrimSpace(text), maxFailure)
		if out.Failure == "" {
			out.Failure = "the tool reports that it failed, and not why"
		}
	}
	return out, nil
}

// contentOf returns the blocks of a result. Content that is not a list counts as one block.
func contentOf(res protocol.Object) (all []protocol.Object) {
	content, _ := res.Get("content")
	items, err := listItems(content)
	if err != nil && content != nil && content.Kind() != 'n' {
		items = []protocol.Value{content}
	}
	for _, item := range items {
		all = append(all, fitBlock(jsontext.Value(item)))
	}
	return all
}

// artifact sends an image, a sound or the blob of a resource as an artifact to an agent that streams.
func artifact(block protocol.Object, emit host.Emitter) {
	if !emit.Streaming() {
		return
	}
	name, data, of := block.Text("type"), "data", block
	switch name {
	case "image", "audio":
	case "resource":
		of, _ = block.Child("resource")
		name, data = of.Text("uri"), "blob"
		if _, has := of.Get(data); !has {
			return
		}
	default:
		return
	}
	if raw, err := base64.StdEncoding.DecodeString(of.Text(data)); err == nil {
		emit.Artifact(name, of.Text("mimeType"), raw, true)
	}
}
