package toolkits

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"a2e/host"
	"a2e/host/config"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// pets is a description of version 3.1 in YAML, with the usual features.
const pets = `openapi: 3.1.0
info: {title: Pets, version: "1"}
servers: [{url: "https://pets.example/{v}", variables: {v: {default: v1}}}]
paths:
  /pets/{id}:
    parameters:
      - {name: id, in: path, required: true, schema: {type: string}}
    get: {operationId: getPet, summary: Get a pet, tags: [pets], parameters: [{$ref: "#/components/parameters/Trace"}]}
    put:
      operationId: put pet!
      requestBody: {required: true, content: {application/json: {schema: {$ref: "#/components/schemas/Pet"}}}}
  /pets:
    get:
      operationId: listPets
      parameters:
        - {name: tag, in: query, schema: {type: array, items: {type: string}}}
        - {name: ids, in: query, explode: false, schema: {type: array, items: {type: integer}}}
        - {name: pipe, in: query, style: pipeDelimited, explode: false, schema: {type: array}}
        - {name: filter, in: query, style: deepObject, schema: {type: object}}
        - {name: where, in: query, content: {application/json: {schema: {type: object}}}}
        - {name: limit, in: query, schema: {type: integer, maximum: 100, default: 10}}
        - {name: X-Key, in: header, required: true, schema: {type: string}}
        - {name: sid, in: cookie, schema: {type: string}}
    post:
      requestBody: {content: {application/x-www-form-urlencoded: {schema: {type: object}}}}
  /x/{m}/{l}:
    get:
      operationId: styles
      parameters:
        - {name: m, in: path, required: true, style: matrix, explode: true, schema: {type: array}}
        - {name: l, in: path, required: true, style: label, schema: {type: object}}
  /upload:
    post: {operationId: upload, requestBody: {required: true, content: {application/octet-stream: {}}}}
  /form:
    post: {operationId: form, requestBody: {content: {multipart/form-data: {schema: {type: object}}}}}
components:
  parameters:
    Trace: {name: X-Trace, in: header, schema: {type: string}}
  schemas:
    Pet:
      type: object
      required: [id, name]
      properties:
        id: {type: integer, readOnly: true}
        name: {type: string, minLength: 1}
        parent: {$ref: "#/components/schemas/Pet"}
      additionalProperties: false
`

// newEcho starts a web server that answers with the request that it got.
func newEcho(t testing.TB, header *string) *httptest.Server {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/problem+json; charset=utf-8")
		if strings.HasSuffix(r.URL.Path, "/gone") {
			w.WriteHeader(http.StatusNotFound)
		}
		out := must.Get(json.Marshal(map[string]string{
			"got": r.Method + " " + r.RequestURI, "body": string(body),
			"type": r.Header.Get("Content-Type"), "header": r.Header.Get(*header),
		}))(t)
		w.Write(out)
	}))
	t.Cleanup(server.Close)
	return server
}

func TestOpenAPI(t *testing.T) {
	header := "X-Key"
	server := newEcho(t, &header)
	dir := t.TempDir()
	write(t, dir, "pets.yaml", pets, 0o644)
	p := open(t, dir, Options{OpenAPI: &OpenAPIOptions{
		Spec: "pets.yaml", BaseURL: server.URL + "/v1",
		Headers: map[string]config.Secret{"x-key": config.NewSecret("tok-1234567")}, Exclude: []string{"* /upload"},
	}})
	p.Call(protocol.TypeToolkitListReq, `{"filter_kind":"openapi"}`).Has(t, "/toolkits/0/configured", "true",
		"/toolkits/0/tools", "[]")
	for _, c := range []struct{ tool, args, want string }{ // the first call loads the description
		{"getPet", `{"id":"a/b ?"}`, "GET /v1/pets/a%2Fb%20%3F"},
		{
			"put_pet", `{"id":"7","body":{"name":"Rex","parent":{"name":"Max"}}}`,
			`PUT /v1/pets/7 {"name":"Rex","parent":{"name":"Max"}}`,
		},
		{
			"listPets", `{"tag":["a&b","c"],"ids":[1,2],"pipe":["x","y"],"filter":{"a":{"b":1},"c":true},"where":{"q":"="},"limit":5}`,
			`GET /v1/pets?tag=a%26b&tag=c&ids=1,2&pipe=x%7Cy&filter%5Ba%5D%5Bb%5D=1&filter%5Bc%5D=true&where=%7B%22q%22%3A%22%3D%22%7D&limit=5`,
		},
		{"post_pets", `{"body":{"a":"x y","b":[1,2]}}`, `POST /v1/pets a=x+y&b=1&b=2`},
		{"styles", `{"m":["1","2"],"l":{"k":"v"}}`, "GET /v1/x/;m=1;m=2/.k,v"},
	} {
		m := call(t, p, "openapi_"+c.tool, c.args)
		got := strings.TrimSpace(m.Get("/data/data/content/got") + " " + m.Get("/data/data/content/body"))
		assert.That(t, got == c.want && m.Get("/data/success") == "true" &&
			m.Get("/data/data/content/header") == "[redacted]", "%s %s:\ngot  %s\nwant %s\n%s", c.tool, c.args, got,
			c.want, m.Line)
		assert.That(t, !strings.Contains(string(m.Line), "tok-1234567"), "%s shows the token: %s", c.tool, m.Line)
	}
	assert.That(t, strings.HasPrefix(call(t, p, "openapi_form",
		`{"body":{"a":"x","b":[1]}}`).Get("/data/data/content/type"), "multipart/form-data; boundary="), "the form")
	call(t, p, "openapi_getPet", `{"id":"gone"}`).Has(t, "/data/success", "false", "/data/error", "HTTP 404",
		"/data/data/status", "404")
	assert.Equal(t, toolNames(t, p), "openapi_form openapi_getPet openapi_listPets openapi_post_pets "+
		"openapi_put_pet openapi_styles", "tools")
	for _, c := range []struct{ tool, args, path string }{
		{"getPet", `{}`, "/arguments/id"},
		{"getPet", `{"id":"x","Id":"y"}`, "/arguments/Id"},
		{"getPet", `{"id":7}`, "/arguments/id"},
		{"listPets", `{"limit":101}`, "/arguments/limit"},
		{"listPets", `{"X-Key":"mine"}`, "/arguments/X-Key"},
		{"getPet", `{"id":""}`, "/arguments/id"},
		{"getPet", `{"id":"x","X-Trace":"a\r\nX: y"}`, "/arguments/X-Trace"},
		{"put_pet", `{"id":"7","body":{"name":"","parent":{"parent":{"nome":1}}}}`, "/arguments/body/name"},
		{"put_pet", `{"id":"7"}`, "/arguments/body"},
		{"put_pet", `{"id":"7","body":{"name":"x","id":1}}`, "/arguments/body/id"},
	} {
		m := p.Call(protocol.TypeToolCallReq, `{"tool_name":"openapi_`+c.tool+`","arguments":`+c.args+`}`)
		assert.That(t, m.Code == protocol.CodeSchemaViolation && m.Problem() == c.path, "%s %s: %s", c.tool, c.args,
			m.Line)
	}
	for _, id := range []string{
		"..", ".", "../x", "..%2f", "%2e%2e", "..;/x", `..\\x`, "a/../../admin",
		"\uff0e\uff0e",
	} {
		p.Refused(protocol.TypeToolCallReq, `{"tool_name":"openapi_getPet","arguments":{"id":"`+id+`"}}`,
			protocol.CodeToolDenied)
	}
}

// TestOpenAPI30: the agent may configure a description, here of version 3.0 in JSON.
func TestOpenAPI30(t *testing.T) {
	header := "X-Flag"
	server := newEcho(t, &header)
	dir := t.TempDir()
	const begin = "\ufeff" + `{"openapi":"3.0.3","info":{"title":"\ud83d\ude00"},` // not valid as YAML
	write(t, dir, "a.json", begin+`"servers":[{"url":"`+server.URL+`/v1"}],"paths":{"/n":{"get":{"operationId":"n","parameters":[
		{"name":"n","in":"query","schema":{"type":"integer","nullable":true,"minimum":0,"exclusiveMinimum":true}},
		{"name":"X-Flag","in":"header","schema":{"type":"array","items":{"type":"string"}}}]}}}}`, 0o644)
	p := open(t, dir, Options{AllowPrivate: true})
	configure(p, "openapi", `{"spec":"a.json"}`).Has(t, "/status", "ok", "/message", "openapi_n")
	call(t, p, "openapi_n", `{"n":null,"X-Flag":["a","b"]}`).Has(t, "/data/data/content/got", "GET /v1/n?n=",
		"/data/data/content/header", "a,b")
	p.Refused(protocol.TypeToolCallReq, `{"tool_name":"openapi_n","arguments":{"n":0}}`, protocol.CodeSchemaViolation,
		"/arguments/n")
	p.Handshake(protocol.CapToolkits, protocol.CapTools)
	assert.Equal(t, toolNames(t, p), "", "tools of the next session")
}

// TestOpenAPIWrong: a mistake in a description is reported with its file, line and place.
func TestOpenAPIWrong(t *testing.T) {
	dir := t.TempDir()
	p := open(t, dir, Options{})
	op := func(text string) string { return "openapi: 3.1.0\npaths:\n  /a/{b}:\n    get:\n      " + text + "\n" }
	for text, want := range map[string]string{
		"swagger: '2.0'\npaths: {}": "a.yaml:1: /swagger: is Swagger 2.0, which is not read; convert it to " +
			"OpenAPI 3, such as with `npx swagger2openapi` or at https://converter.swagger.io",
		"openapi: 4.0.0\npaths: {}":     "a.yaml:1: /openapi: is version",
		"info: {}":                      "a.yaml:1: /: has no key openapi",
		"openapi: 3.1.0":                "a.yaml:1: /paths: has no operations",
		"[1]":                           "a.yaml:1: /: should be an object",
		"a: [":                          "a.yaml: line ",
		"{\n\"openapi\": \"3.1.0\",\n}": "a.yaml:2: not valid JSON",
		"{\"openapi\":\"3.0.0\",\n\n\"paths\":{}}":                                                             "a.yaml:3: /paths: has no operations",
		op("operationId: x"):                                                                                   "a.yaml:4: /paths/~1a~1{b}/get: the path has {b}",
		op("parameters: [{name: b, in: path}, {in: query}]"):                                                   "a.yaml:5: /paths/~1a~1{b}/get/parameters/1: has no name",
		op("parameters: [{name: b, in: body}]"):                                                                "in: is \"body\"; should be path, query, header or cookie",
		op("parameters: [{name: b, in: path, style: form}]"):                                                   "style: is \"form\"; should be one of simple, label, matrix",
		op("parameters: [{$ref: '#/components/parameters/gone'}]"):                                             "$ref: there is no \"#/components/parameters/gone\"",
		op("parameters: [{$ref: 'other.yaml#/x'}]"):                                                            "leads out of the file",
		op("parameters: [{$ref: 'https://evil.example/x'}]"):                                                   "leads out of the file",
		op("parameters: [{name: b, in: path, schema: {$ref: '#/x'}}]\nx: {$ref: '#/y'}\ny: {$ref: '#/gone'}"):  "there is no \"#/gone\"",
		op("$ref: '#/paths/~1a~1{b}/get'"):                                                                     "the references lead on and on",
		op("requestBody: {required: true, content: {image/png: {}}}\n      parameters: [{name: b, in: path}]"): "no operation whose body could be sent",
	} {
		write(t, dir, "a.yaml", text, 0o644)
		m := configure(p, "openapi", `{"spec":"a.yaml","base_url":"https://api.example/"}`)
		assert.That(t, m.Code == protocol.CodeSchemaViolation && strings.Contains(m.Get("/message"), want),
			"%s:\n%s\nwant %s", text, m.Line, want)
	}
	write(t, dir, "a.yaml", pets, 0o644)
	for conf, want := range map[string]string{
		`{"spec":"gone.yaml"}`: "/config/spec: names a file that is not there", `{"spec":"."}`: "/config/spec",
		`{"spec":""}`:                                   "/config/spec",
		`{"spec":"../a.yaml"}`:                          "leads out of the workspace",
		`{"spec":"https://api.example/spec"}`:           "host's config only",
		`{"spec":"a.yaml","include":["getPets"]}`:       `did you mean \"getPet\"`,
		`{"spec":"a.yaml","exclude":["**", "GET /**"]}`: "has 0 operations",
		`{"spec":"a.yaml","include":["["]}`:             "/config/include",
		`{"spec":"a.yaml","headers":{"X":"y"}}`:         "/config/headers: need base_url",
		`{"spec":"a.yaml","base_url":"ftp://x"}`:        "https://",
		`{"spec":"a.yaml","base-url":"x"}`:              `did you mean \"base_url\"`,
	} {
		m := configure(p, "openapi", conf)
		assert.That(t, m.Code != "" && strings.Contains(string(m.Line), want), "%s: %s", conf, m.Line)
	}
}

// TestOpenAPIHostile: hostile descriptions are refused soon, with short messages. Without the bounds, a
// description of a few hundred kilobytes took minutes, and another took gigabytes.
func TestOpenAPIHostile(t *testing.T) {
	dir := t.TempDir()
	p := open(t, dir, Options{})
	const whole, listed = `{"openapi":"3.1.0","servers":[{"url":"https://api.example"}],"paths":{%s}%s}`,
		`"/a%d":{"get":{"parameters":[%s]}}`
	repeat := func(n int, format string, more ...any) string {
		all := make([]string, n)
		for i := range all {
			all[i] = fmt.Sprintf(format, append([]any{i}, more...)...)
		}
		return strings.Join(all, ",")
	}
	shared := fmt.Sprintf(`,"components":{"parameters":{%s}}`, repeat(90,
		`"p%d":{"name":"p%[1]d","in":"query","schema":{"const":%q}}`, strings.Repeat("x", 10_000)))
	for name, c := range map[string]struct{ text, want string }{
		"wrong paths": {fmt.Sprintf(whole, repeat(20_000, `"/a%d":1`), ""), "should be an object"},
		"parameters": {
			fmt.Sprintf(whole, fmt.Sprintf(listed, 1, repeat(20_000, `{"name":"p%d","in":"query"}`)), ""),
			"has 20000 parameters; at most 2000",
		},
		"references": {fmt.Sprintf(whole, repeat(100, listed, repeat(90, `{"$ref":"#/components/parameters/p%d"}`)),
			shared), "with those before it 3"},
		"default": {fmt.Sprintf(whole, fmt.Sprintf(listed, 1,
			`{"name":"p","in":"query","schema":{"default":"`+strings.Repeat("x", 1<<20)+`"}}`), ""), "exclude it"},
	} {
		write(t, dir, "a.json", c.text, 0o644)
		m := configure(p, "openapi", `{"spec":"a.json"}`)
		refused := name != "references" // the first operations fit
		assert.Equal(t, m.Code == protocol.CodeSchemaViolation, refused, name)
		assert.That(t, strings.Contains(m.Get("/message"), c.want) && len(m.Line) < 20_000, "%s: %.2000s", name, m.Line)
	}
	for server, want := range map[string]string{
		`"url":"https://` + strings.Repeat("{x}", 200_000) + `","variables":{"x":{"default":"` +
			strings.Repeat("y", 200_000) + `"}}`: "cannot be used",
		`"url":"https://{x}/","variables":{"x":{"default":"{y}"},"y":{"default":"api.example"}}`: "cannot be used",
		`"url":"https://{x}/"`: "cannot be used",
		`"url":"{x}","variables":{"x":{"default":"file:///etc/passwd"}}`:        "no host",
		`"url":"http://{x}/","variables":{"x":{"default":"169.254.169.254"}}`:   "",
		`"url":"http://{x}/","variables":{"x":{"default":"me@127.0.0.1:1"}}`:    "",
		`"url":"http://{x}.1:1/","variables":{"x":{"default":"0x7f.0.0"}}`:      "",
		`"url":"http://{x}1]:1/","variables":{"x":{"default":"[::ffff:7f00:"}}`: "",
	} {
		write(t, dir, "a.json", `{"openapi":"3.1.0","servers":[{`+server+`}],"paths":{"/a":{"get":{}}}}`, 0o644)
		m := configure(p, "openapi", `{"spec":"a.json"}`)
		if want == "" && m.Get("/status") == "ok" { // an address that may not be called is refused at the call
			m = p.Answer(p.Go(protocol.TypeToolCallReq, `{"tool_name":"openapi_get_a","arguments":{}}`))
		}
		assert.That(t, m.Code != "" && strings.Contains(m.Get("/message"), want), "%.80s: %.300s", server, m.Line)
	}
	write(t, dir, "a.json", fmt.Sprintf(whole, `"/a":{"get":{},"put":{"operationId":"upload","requestBody":{"required":true,"content":{"image/png":{}}}}}`, ""), 0o644)
	configure(p, "openapi", `{"spec":"a.json"}`).Has(t, "/message", "openapi_get_a; 1 operation left out, with a "+
		"body of a type that cannot be sent: upload")
}

// TestOpenAPIServers: an operation is called at the server that is declared nearest to it, unless
// base_url says where the API is.
func TestOpenAPIServers(t *testing.T) {
	header := "X-Key"
	first, second := newEcho(t, &header), newEcho(t, &header)
	dir := t.TempDir()
	text := `{"openapi":"3.1.0","servers":[{"url":"` + first.URL + `/root"}],"paths":{
		"/a":{"get":{"operationId":"root"}},
		"/b":{"servers":[{"url":"` + second.URL + `/path"}],"get":{"operationId":"path"},"put":{"operationId":"own","servers":[{"url":"` + first.URL + `/{v}","variables":{"v":{"default":"v2"}}},{"url":"https://other.example"}]}},
		"/c":{"servers":[],"get":{"operationId":"none","servers":[]},"put":{"operationId":"bad","servers":[{"url":"ftp://x/{v}"}]},"post":{"operationId":"ftp","servers":[{"url":"ftp://x"}]}}}}`
	write(t, dir, "a.json", text, 0o644)
	p := open(t, dir, Options{AllowPrivate: true})
	m := configure(p, "openapi", `{"spec":"a.json"}`)
	m.Has(t, "/status", "ok")
	for _, want := range []string{
		"openapi_root, openapi_path", "2 parts of it left out, with mistakes",
		"/paths/~1c/put/servers/0: the URL \"ftp://x/{v}\" cannot be used", "(bad)", "the server \"ftp://x\"",
	} {
		assert.Contains(t, m.Get("/message"), want)
	}
	for tool, want := range map[string]string{
		"root": "GET /root/a", "path": "GET /path/b", "own": "PUT /v2/b",
		"none": "GET /root/c",
	} {
		call(t, p, "openapi_"+tool, `{}`).Has(t, "/data/data/content/got", want)
	}
	configure(p, "openapi", `{"spec":"a.json","base_url":"`+second.URL+`/mine","headers":{"X-Key":"tok-1234567"}}`).Has(t, "/status", "ok")
	for tool, want := range map[string]string{
		"root": "GET /mine/a", "path": "GET /mine/b", "own": "PUT /mine/b",
		"bad": "PUT /mine/c",
	} {
		call(t, p, "openapi_"+tool, `{}`).Has(t, "/data/data/content/got", want)
	}
}

// TestOpenAPIOneBad: an operation with a mistake is named, and the other operations become tools.
func TestOpenAPIOneBad(t *testing.T) {
	dir := t.TempDir()
	p := open(t, dir, Options{})
	write(t, dir, "a.yaml", `openapi: 3.0.0
servers: [{url: "https://api.example"}]
paths:
  /good: {get: {operationId: good}}
  /a: 1
  /b/{c}: {get: {operationId: lacks}}
  /d: {get: {operationId: ref, parameters: [{$ref: "#/components/parameters/gone"}]}}
  /e: {get: {operationId: schema, parameters: [{name: e, in: query, schema: {$ref: "#/gone"}}]}}
  /f: {post: {operationId: up, requestBody: {required: true, content: {image/png: {}}}}, get: {operationId: better}}
`, 0o644)
	m := configure(p, "openapi", `{"spec":"a.yaml"}`)
	m.Has(t, "/status", "ok")
	for _, want := range []string{
		"openapi_better, openapi_good; ", "cannot be sent: up; 4 parts of it left out, with mistakes",
		"a.yaml:5: /paths/~1a: should be an object",
		"a.yaml:6: /paths/~1b~1{c}/get: the path has {c}", "(lacks)", "a.yaml:7: /paths/~1d/get/parameters/0: $ref: " +
			"there is no", "(ref)", "(schema)",
	} {
		assert.Contains(t, m.Get("/message"), want)
	}
	p.Call(protocol.TypeToolkitListReq, `{"filter_kind":"openapi"}`).Has(t, "/toolkits/0/tools",
		`["openapi_better","openapi_good"]`)
}

// TestOpenAPILate: if a description cannot be read, the toolkit has no tools, but the host starts, and
// the list says why.
func TestOpenAPILate(t *testing.T) {
	dir := t.TempDir()
	p := open(t, dir, Options{OpenAPI: &OpenAPIOptions{Spec: "pets.yaml", BaseURL: "https://api.example/v1"}})
	assert.Equal(t, toolNames(t, p), "", "tools")
	p.Refused(protocol.TypeToolCallReq, `{"tool_name":"openapi_getPet","arguments":{"id":"x"}}`, protocol.CodeToolError,
		"spec names a file that is not there")
	p.Call(protocol.TypeToolkitListReq, `{"filter_kind":"openapi"}`).Has(t, "/toolkits/0/problem",
		"spec names a file that is not there")
	_, err := New("kits", Options{OpenAPI: &OpenAPIOptions{Spec: "x", BaseURL: "nonsense"}}, testEnv(t, dir))
	assert.That(t, err != nil, "a wrong base_url is not an error at the start")
}

// TestWallOpenAPI: descriptions that are made to be too large, or to grow too large, do not exhaust the
// host.
func TestWallOpenAPI(t *testing.T) {
	dir := t.TempDir()
	var many, laughs strings.Builder
	many.WriteString(`{"openapi":"3.0.0","paths":{`)
	for i := range 10_000 {
		fmt.Fprintf(&many, `"/p%d":{"get":{"operationId":"op%d"}},`, i, i)
	}
	write(t, dir, "many.json", strings.TrimSuffix(many.String(), ",")+"}}", 0o644)
	laughs.WriteString("openapi: 3.1.0\npaths:\n")
	for i := range 500 {
		fmt.Fprintf(&laughs, "  /p%d: {post: {requestBody: {content: {application/json: {schema: {$ref: "+
			"'#/components/schemas/L0'}}}}}}\n", i)
	}
	laughs.WriteString("components:\n  schemas:\n    L40: {type: string}\n")
	for i := range 40 {
		ref := fmt.Sprintf("{$ref: '#/components/schemas/L%d'}", i+1)
		fmt.Fprintf(&laughs, "    L%d: {type: object, properties: {a: %s, b: %s, c: %s}}\n", i, ref, ref, ref)
	}
	write(t, dir, "laughs.yaml", laughs.String(), 0o644)
	write(t, dir, "aliases.yaml", "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c "+
		"[*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: "+
		"[*e,*e,*e,*e,*e,*e,*e,*e,*e]\n", 0o644)
	write(t, dir, "deep.json", strings.Repeat(`{"openapi":`, 100_000), 0o644)
	plugin := newPlugin(t, dir, Options{})
	p := hosttest.New(t, host.Options{Plugins: []host.Plugin{plugin}})
	p.Handshake(protocol.CapToolkits, protocol.CapTools)
	for name, want := range map[string]string{"many.json": "has 10000 operations", "aliases.yaml": "aliases stand " +
		"for more than", "deep.json": "not valid JSON"} {
		m := configure(p, "openapi", `{"spec":"`+name+`","base_url":"https://api.example/"}`)
		assert.That(t, m.Code == protocol.CodeSchemaViolation && strings.Contains(m.Get("/message"), want),
			"%s: %.300s", name, m.Line)
	}
	configure(p, "openapi", `{"spec":"many.json","base_url":"https://api.example/","include":["op77*"]}`).Has(t,
		"/status", "ok")
	configure(p, "openapi", `{"spec":"laughs.yaml","base_url":"https://api.example/"}`).Has(t, "/status", "ok")
	detail, ok := plugin.DescribeTool("openapi_post_p0")
	assert.That(t, ok && len(detail.InputSchema) < 200_000, "the schema has %d bytes", len(detail.InputSchema))
}

// TestWallOpenAPIRedirect: the URL of a description cannot lead the host to another server, and the
// host reads only a bounded amount.
func TestWallOpenAPIRedirect(t *testing.T) {
	private := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("the redirect was followed")
	}))
	defer private.Close()
	mux := http.NewServeMux()
	server := httptest.NewServer(mux)
	defer server.Close()
	mux.HandleFunc("/elsewhere", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, private.URL, http.StatusFound)
	})
	mux.HandleFunc("/metadata", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://169.254.169.254/latest", http.StatusFound)
	})
	mux.HandleFunc("/moved", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/spec", http.StatusFound)
	})
	mux.HandleFunc("/spec", func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, strings.Replace(pets, `https://pets.example/{v}`, `/{v}`, 1))
	})
	mux.HandleFunc("/v1/pets/7", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "Rex") })
	mux.HandleFunc("/endless", func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 1<<20)); err != nil {
				return
			}
		}
	})
	for path, want := range map[string]string{
		"/elsewhere": "HTTP 302", "/metadata": "HTTP 302", "/gone": "HTTP 404",
		"/endless": "more than", "/moved": "",
	} {
		plugin := newPlugin(t, t.TempDir(), Options{OpenAPI: &OpenAPIOptions{Spec: server.URL + path}})
		p := hosttest.New(t, host.Options{Plugins: []host.Plugin{plugin}})
		p.Handshake(protocol.CapToolkits, protocol.CapTools)
		if want == "" {
			call(t, p, "openapi_getPet", `{"id":"7"}`).Has(t, "/data/data/content", "Rex")
			continue
		}
		p.Refused(protocol.TypeToolCallReq, `{"tool_name":"openapi_getPet","arguments":{"id":"7"}}`,
			protocol.CodeToolError, want)
	}
}
