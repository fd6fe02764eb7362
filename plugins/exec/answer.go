package exec

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/protocol"
)

// notOwned tells whether an error of the child says that it does not have the thing that
// the request names, or does not know such requests.
func notOwned(code protocol.ErrorCode) bool {
	switch code {
	case protocol.CodeUnknownTool, protocol.CodeUnknownSkill, protocol.CodeUnknownEnv, protocol.CodeUnknownEpisode, protocol.CodeUnknownProc,
		protocol.CodeMemoryNotFound, protocol.CodeMCPServerNotFound, protocol.CodeUnknownSubagent, protocol.CodeCapabilityMissing,
		protocol.CodeInvalidMessage, protocol.CodeParseError:
		return true
	}
	return false
}

// fits checks an answer that is put together with those of other plugins.
func (p *Plugin) fits(body []byte, q *request) error {
	obj, err := protocol.ParseObject(body)
	if err == nil {
		err = q.valid(obj)
	}
	if err != nil {
		return protocol.Errorf(protocol.CodeRuntimeError, "plugin %q: the child's answer to %s does not fit: %w", p.name, q.typ, err)
	}
	return nil
}

// record counts a call of a tool or skill.
func (p *Plugin) record(ctx context.Context, q *request, body []byte, err error, took time.Duration) {
	kind := ""
	switch q.typ {
	case protocol.TypeToolCallReq:
		kind = host.KindTool
	case protocol.TypeSkillCallReq:
		kind = host.KindSkill
	}
	stopped := err != nil && ctx.Err() != nil && !errors.Is(context.Cause(ctx), context.DeadlineExceeded) // that says nothing of the tool
	if kind == "" || stopped {
		return
	}
	rec := host.CallRecord{Kind: kind, Component: q.name, Duration: took}
	val, _ := q.obj.Get("correlation_id")
	rec.Correlation, _ = val.Str()
	if err == nil {
		obj, _ := protocol.ParseObject(body)
		val, _ := obj.Get("data")
		data, _ := protocol.ParseObject(val)
		success, _ := data.Get("success")
		rec.Success = success.Kind() == 't'
	}
	p.services.Record(ctx, rec)
}

// refusal reads an error of the child. What it says of its own session is no news of the
// agent's.
func (c *peer) refusal(obj protocol.Object) *protocol.Error {
	var said struct {
		Code       protocol.ErrorCode        `json:"code"`
		Message    string                    `json:"message"`
		Detail     map[string]jsontext.Value `json:"detail"`
		Retryable  bool                      `json:"retryable"`
		Capability string                    `json:"capability_name"`
	}
	if err := obj.Decode(&said); err != nil || said.Code == "" {
		return protocol.Errorf(protocol.CodeRuntimeError, "plugin %q: the child answered with an error that is none: %s", c.plugin.name, c.plugin.secrets.Head(obj.Raw(), 200))
	}
	said.Message = c.plugin.secrets.Text(said.Message)
	if said.Code == protocol.CodeUnauthorized {
		return protocol.Errorf(protocol.CodeRuntimeError, "plugin %q: the child says %.200q", c.plugin.name, said.Message)
	}
	e := &protocol.Error{Code: said.Code, Message: said.Message, Retryable: said.Retryable, CapabilityName: said.Capability}
	for key, val := range said.Detail {
		names, isNames := protocol.Value(val).Strings()
		if key != "known" || !isNames {
			e.With(key, val)
			continue
		}
		e.With(key, names)
		for _, link := range []string{"; there are: ", " There are: "} { // the host says it for all plugins
			e.Message, _, _ = strings.Cut(e.Message, link)
		}
	}
	return e
}
