package mcp

import (
	"cmp"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/protocol"
)

// modernVersion is the first version of MCP without initialize: each request says what that
// said before, questions to the client are answers of their own (see rounds.go), and news
// come to those who listen (see listen.go).
const modernVersion = "2026-07-28"

// metaVersion is where a request names its version.
const metaVersion = mcp.MetaKeyProtocolVersion

// modernMeta is what each request of such a version says in _meta.
type modernMeta struct {
	Version string `json:"io.modelcontextprotocol/protocolVersion"`
	Client  struct {
		Name string `json:"name"`
	} `json:"io.modelcontextprotocol/clientInfo"`
	Offers capabilities `json:"io.modelcontextprotocol/clientCapabilities"`
	Level  string       `json:"io.modelcontextprotocol/logLevel"`
	Token  string       `json:"a2e/auth_token"`
}

// readMeta reads it; nil = the request is of a version that begins with initialize.
func readMeta(params jsontext.Value) *modernMeta {
	raw := member(params, "_meta")
	if version := textOf(member(raw, metaVersion)); version < modernVersion {
		return nil
	}
	m := new(modernMeta)
	_ = json.Unmarshal(raw, m) // what does not fit is refused by the go-sdk
	return m
}

// admit begins the session with the first request of a client that says no initialize.
func (s *server) admit(r *request) error {
	if s.session != nil || r.meta == nil {
		return nil
	}
	h := hello{Version: r.meta.Version, Client: r.meta.Client, Offers: r.meta.Offers}
	h.Meta.Token = r.meta.Token
	return s.begin(h)
}

// level is the least level of log messages that a request is to give; 0 = none.
func (s *server) levelOf(r *request) int64 {
	if r.meta != nil {
		return levelNumber(r.meta.Level)
	}
	return s.level.Load()
}

// kind is what modern versions have in each result.
type kind struct {
	ResultType string `json:"resultType,omitempty"`
}

// complete says that it is no question.
func (k *kind) complete() { k.ResultType = cmp.Or(k.ResultType, "complete") }

// cacheable is what they have in results that a client might keep. It should not: the lists
// and files change.
type cacheable struct {
	kind
	TTL   *int   `json:"ttlMs,omitempty"`
	Scope string `json:"cacheScope,omitempty"`
}

func (c *cacheable) complete() {
	c.kind.complete()
	c.TTL, c.Scope = new(int), "private"
}

// complete says of a result that is passed on that it is no question.
func (r *rawResult) complete() {
	if member(r.raw, "resultType") == nil {
		r.raw = withMember(r.raw, `"resultType":"complete"`)
	}
}

// withMember puts a member before those of a JSON object.
func withMember(obj jsontext.Value, text string) jsontext.Value {
	if o, err := protocol.ParseObject(obj); err == nil && o.Len() > 0 {
		return append(jsontext.Value("{"+text+","), o.Raw()[1:]...)
	}
	return jsontext.Value("{" + text + "}")
}
