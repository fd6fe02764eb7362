package link

import (
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// unversioned is the version of a server that names no MCP version: by the specification HTTP servers
// assume it for clients.
const unversioned = "2025-03-26"

// members are the members of a JSON object.
type members map[string]jsontext.Value

// membersOf returns the members of a value; ok = the value is an object.
func membersOf(v jsontext.Value) (m members, ok bool) {
	ok = v.Kind() == '{' && json.Unmarshal(v, &m, lenient()) == nil
	return m, ok
}

// value returns the object as JSON.
func (m members) value() jsontext.Value {
	v, err := json.Marshal(m, lenient(), json.Deterministic(true))
	if err != nil {
		return jsontext.Value("{}") // it was read from JSON
	}
	return v
}

// keep drops the named members whose values are not of this kind.
func (m members) keep(kind jsontext.Kind, names ...string) {
	for _, name := range names {
		if m[name].Kind() != kind {
			delete(m, name)
		}
	}
}

// text makes the named members strings.
func (m members) text(names ...string) {
	for _, name := range names {
		switch m[name].Kind() {
		case '"':
		case '0', 't', 'f':
			m[name] = quote(string(m[name]))
		default:
			m[name] = quote("")
		}
	}
}

// quote returns a text as a JSON string.
func quote(text string) jsontext.Value {
	v, _ := jsontext.AppendQuote(nil, strings.ToValidUTF8(text, "\ufffd")) // which has no error then
	return v
}

// introduction returns the result of initialize or server/discover in a form that the SDK can decode. The
// SDK refuses the whole result for one wrong member; here such a member is left out, or corrected.
func introduction(result jsontext.Value) (jsontext.Value, error) {
	m, ok := membersOf(result)
	if !ok {
		return nil, fmt.Errorf("its result is %s; it should be an object", quoted(result))
	}
	if v := m["protocolVersion"]; v.Kind() != '"' || words(v) == "" {
		m["protocolVersion"] = quote(unversioned)
	}
	m.keep('[', "supportedVersions")
	if v, ok := m["supportedVersions"]; ok {
		m["supportedVersions"] = stringsOf(v)
	}
	m.keep('"', "instructions", "resultType")
	m.keep('{', "_meta")
	delete(m, "ttlMs") // an introduction is not kept
	delete(m, "cacheScope")
	if meta, ok := membersOf(m["_meta"]); ok && meta[mcp.MetaKeyServerInfo] != nil {
		meta[mcp.MetaKeyServerInfo] = implementation(meta[mcp.MetaKeyServerInfo])
		m["_meta"] = meta.value()
	}
	m["serverInfo"] = implementation(m["serverInfo"])
	m["capabilities"] = capabilities(m["capabilities"])
	return m.value(), nil
}

// capabilities returns the capabilities of a server, each as an object. A capability that is true becomes
// an empty object; one that is false or null is left out.
func capabilities(v jsontext.Value) jsontext.Value {
	m, ok := membersOf(v)
	if !ok {
		return jsontext.Value("{}")
	}
	m.keep('{', "experimental", "extensions")
	for _, name := range []string{"completions", "logging", "prompts", "resources", "tools"} {
		switch m[name].Kind() {
		case 0:
		case 'n', 'f':
			delete(m, name)
		default:
			one, _ := membersOf(m[name])
			said := members{}
			for _, flag := range []string{"listChanged", "subscribe"} {
				if one[flag].Kind() == 't' {
					said[flag] = one[flag]
				}
			}
			m[name] = said.value()
		}
	}
	return m.value()
}

// implementation returns the name, version and so on of a server in the types that the SDK expects.
func implementation(v jsontext.Value) jsontext.Value {
	m, ok := membersOf(v)
	if !ok {
		m = members{"name": v}
	}
	m.text("name", "version")
	m.keep('"', "title", "description", "websiteUrl")
	m.keep('[', "icons")
	if icons := m["icons"]; icons != nil {
		m["icons"] = iconsOf(icons)
	}
	return m.value()
}

// iconsOf returns the icons that can be used.
func iconsOf(v jsontext.Value) jsontext.Value {
	var all []jsontext.Value
	good := []jsontext.Value{}
	_ = json.Unmarshal(v, &all, lenient()) // it is an array
	for _, one := range all {
		icon, ok := membersOf(one)
		if !ok || icon["src"].Kind() != '"' {
			continue
		}
		icon.keep('"', "mimeType", "theme")
		if sizes := icon["sizes"]; sizes.Kind() == '"' { // as in drafts of MCP, and in HTML
			icon["sizes"] = list(strings.Fields(words(sizes)))
		} else if icon.keep('[', "sizes"); icon["sizes"] != nil {
			icon["sizes"] = stringsOf(sizes)
		}
		good = append(good, icon.value())
	}
	text, _ := json.Marshal(good, lenient()) // it was read from JSON
	return text
}

// stringsOf returns the strings of an array.
func stringsOf(v jsontext.Value) jsontext.Value {
	var all []jsontext.Value
	good := []string{}
	_ = json.Unmarshal(v, &all, lenient()) // it is an array
	for _, one := range all {
		if one.Kind() == '"' {
			good = append(good, words(one))
		}
	}
	return list(good)
}

// list returns an array of strings.
func list(all []string) jsontext.Value {
	text, _ := json.Marshal(all, lenient()) // strings always encode so
	return text
}
