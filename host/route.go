package host

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/schema"
	"a2e/protocol"
)

// CatchAll is the type of a route that takes every message type which neither the protocol nor a plugin declares.
const CatchAll protocol.Type = "*"

// Route is one message type that a plugin answers. Make one with Handle or List.
type Route struct {
	// Type is the request's type. It may be one that the protocol does not have.
	Type protocol.Type
	// Response is the answer's type. Empty means the protocol's own; for a foreign type it means the same type with
	// "/req" turned into "/resp".
	Response protocol.Type

	noSlot bool
	order  []protocol.Claim                       // nil = those of the protocol's table
	claims func(protocol.Object) []protocol.Claim // in place of order; nil = they do not depend on the request
	serve  func(ctx context.Context, obj protocol.Object, emit Emitter) (any, error)
	merge  func(dst, src any) (any, error) // returns dst with the entries of src; nil = the type is no list
}

// Handle makes the route of one request type. The request is decoded into a Req: required fields must be there, and
// defaults are set. fn's answer is encoded as it is. An error of fn that is or wraps a *protocol.Error is answered
// as such, any other as `runtime_error`. What fn gets is valid until fn returns: to keep an Object longer, clone
// it.
func Handle[Req, Resp any](t protocol.Type, fn func(context.Context, *Req, Emitter) (*Resp, error)) Route {
	var required []string
	if info, ok := protocol.Lookup(t); ok {
		required = info.Required
	}
	return Route{Type: t, serve: func(ctx context.Context, obj protocol.Object, emit Emitter) (any, error) {
		req := new(Req)
		if err := protocol.Decode(obj, required, req); err != nil {
			return nil, err
		}
		resp, err := fn(ctx, req, emit)
		if err != nil {
			return nil, err
		}
		if resp == nil {
			return nil, protocol.Errorf(protocol.CodeRuntimeError, "the plugin gave no answer to %s", t)
		}
		return resp, nil
	}}
}

// Raw makes the route of a request that fn gets as it came, envelope included. fn returns the body of the response
// as JSON. It is for a plugin that passes messages on. What fn gets is valid until fn returns.
func Raw(t protocol.Type, fn func(context.Context, protocol.Object, Emitter) (jsontext.Value, error)) Route {
	return Route{Type: t, serve: func(ctx context.Context, obj protocol.Object, emit Emitter) (any, error) {
		body, err := fn(ctx, obj, emit)
		if err != nil {
			return nil, err
		}
		return body, nil
	}}
}

// List makes the route of a request that asks for a list. Each plugin of the capability is asked, and merge adds
// the entries of src, which has the lower priority, to dst.
func List[Req, Resp any](t protocol.Type, fn func(context.Context, *Req, Emitter) (*Resp, error),
	merge func(dst, src *Resp),
) Route {
	r := Handle(t, fn)
	r.merge = merger(merge)
	return r
}

// RawList is List for a plugin that passes messages on: what fn returns is decoded only if several plugins have
// something to list.
func RawList[Resp any](t protocol.Type, fn func(context.Context, protocol.Object, Emitter) (jsontext.Value, error),
	merge func(dst, src *Resp),
) Route {
	r := Raw(t, fn)
	r.merge = merger(merge)
	return r
}

// merger returns the merge function of one response type. It also takes answers that other routes of the message
// type make in another form.
func merger[Resp any](merge func(dst, src *Resp)) func(dst, src any) (any, error) {
	return func(dst, src any) (any, error) {
		to, err := AnswerOf[Resp](dst)
		if err != nil {
			return nil, err
		}
		from, err := AnswerOf[Resp](src)
		if err != nil {
			return nil, err
		}
		merge(to, from)
		return to, nil
	}
}

// AnswerOf returns the answer of a Handler as a Resp.
func AnswerOf[Resp any](answer any) (*Resp, error) {
	if own, ok := answer.(*Resp); ok {
		return own, nil
	}
	own := new(Resp)
	return own, decodeAnswer(answer, own)
}

// NoSlot returns a copy of a route, of a type that the protocol does not have, whose requests take no slot of
// max_parallel and wait only for their claims. Its handler must be quick.
func (r Route) NoSlot() Route {
	r.noSlot = true
	return r
}

// InOrder returns a copy of a route, of a type that the protocol does not have, with what its requests claim.
func (r Route) InOrder(claims ...protocol.Claim) Route {
	r.order = claims
	return r
}

// Claims returns a copy of a route whose requests claim what fn returns, in place of what the protocol's table says
// about the type. fn is called only when another request is under way. It must be quick and must not call the host.
func (r Route) Claims(fn func(obj protocol.Object) []protocol.Claim) Route {
	r.claims = fn
	return r
}

// FileClaim returns the claim of a file or folder of the workspace, with everything below it. name is relative to
// the workspace, with slashes or backslashes, in any spelling. A name that leads out of the workspace stands for
// the whole workspace.
func FileClaim(name string, access protocol.Access) protocol.Claim {
	at := path.Clean(strings.ReplaceAll(name, `\`, "/"))
	if at == "." || at == ".." || at[0] == '/' || filepath.IsAbs(name) || strings.HasPrefix(at, "../") {
		return protocol.Claim{Key: protocol.KeyWorkspace, Access: access}
	}
	return protocol.Claim{Key: protocol.KeyWorkspace + at + "/", Access: access}
}

// Wrap returns a copy of a route whose requests go through fn, which calls next or answers itself. It is for
// guards, and for changes of what a plugin answers.
func (r Route) Wrap(fn func(ctx context.Context, obj protocol.Object, next func() (any, error)) (any, error)) Route {
	serve := r.serve
	r.serve = func(ctx context.Context, obj protocol.Object, emit Emitter) (any, error) {
		return fn(ctx, obj, func() (any, error) { return serve(ctx, obj, emit) })
	}
	return r
}

// KnownFields refuses a request with a field that is neither in fields nor one of the envelope. It is for a plugin
// where an ignored field might matter. A field that is null counts as absent.
func KnownFields(obj protocol.Object, fields []string) error {
	envelope := []string{"a2e", "version", "type", "id", "ts", "req_id"}
	for name, value := range obj.All() {
		if name := string(name); value.Kind() != 'n' && !slices.Contains(fields, name) &&
			!slices.Contains(envelope, name) {
			return protocol.Violation(protocol.FieldError{
				Path: schema.Below("", name), Message: "there is no such field, and what it means cannot be left " +
					"out; " + schema.Suggest(name, "fields", fields),
			})
		}
	}
	return nil
}

// row is what is known of a message type, whichever plugins serve it. All hosts share the rows of the protocol's
// types.
type row struct {
	typ        protocol.Type
	response   protocol.Type // "" = a catch-all's: it follows from the request
	capability protocol.Capability
	control    control          // the host's own types
	barrier    bool             // nothing else runs beside it: the handshake
	noSlot     bool             // see protocol.Info
	fromHost   bool             // only the host may send it
	streams    bool             // events go out unless the request says otherwise
	order      []protocol.Claim // what its requests claim
	timeout    time.Duration    // default of the field timeout; 0 = the type has no such field
	at         int              // its index among the rows of the protocol
}

// destination is where a message type goes.
type destination struct {
	*row
	routes    []boundRoute // of the plugins, in the order in which they are asked
	handler   Handler      // the steps around the plugins, and these; see Host.wrap
	groups    *groups      // that the request may name; nil = it names none
	slots     *Slots       // of a dialect; its work takes one of them; nil = those of max_parallel
	exclusive bool         // its one plugin answers alone
}

// boundRoute is the part of a plugin's route that a destination needs.
type boundRoute struct {
	plugin Plugin
	serve  func(ctx context.Context, obj protocol.Object, emit Emitter) (any, error)
	claims func(protocol.Object) []protocol.Claim
	merge  func(dst, src any) (any, error)
}

// router finds the destination of a message type.
type router struct {
	rows    map[string]*destination // of the protocol, which all hosts share; see protocolRows
	served  []*destination          // those that plugins serve, in place of rows, by row.at; nil = not served
	foreign map[string]*destination // of other types, which plugins serve
	any     *destination            // the catch-all's, or nil
	answer  *destination            // of the agent's answers of any type to requests of the host
}

// protocolRows makes the rows of the protocol's types and of those that the host answers itself. They do not change.
var protocolRows = sync.OnceValue(func() map[string]*destination {
	types, answered := protocol.Types(), controls()
	most := len(types) + len(answered)
	all, rows, made := make(map[string]*destination, most), make([]row, most), make([]destination, most)
	add := func(one row) { // into arrays: single allocations make a start slower
		one.at = len(all)
		rows[one.at], made[one.at].row = one, &rows[one.at]
		all[string(one.typ)] = &made[one.at]
	}
	for _, info := range types {
		add(row{
			typ: info.Type, response: info.Response, capability: info.Capability,
			fromHost: !info.Direction.FromAgent(), order: info.Order, noSlot: info.NoSlot,
		})
	}
	for t, timeout := range map[protocol.Type]time.Duration{
		protocol.TypeToolCallReq: 30 * time.Second, protocol.TypeSkillCallReq: time.Minute,
		protocol.TypeChainReq: 5 * time.Minute,
	} {
		all[string(t)].timeout = timeout
		all[string(t)].streams = t != protocol.TypeToolCallReq
	}
	for t, control := range answered {
		if all[string(t)] == nil {
			add(row{typ: t})
		}
		all[string(t)].control = control
		all[string(t)].barrier = t == protocol.TypeHandshakeReq
	}
	return all
})

// newRouter builds the table from the protocol's types and the plugins' routes.
// The plugins come in the order in which they are asked.
func newRouter(plugins []Plugin) *router {
	r := &router{rows: protocolRows(), foreign: make(map[string]*destination)}
	r.served = make([]*destination, len(r.rows))
	r.answer = &destination{row: &row{typ: protocol.TypeMCPSampleResp, control: agentAnswer}}
	for _, p := range plugins {
		for _, route := range p.Routes() {
			r.add(p, route)
		}
	}
	return r
}

// at returns the destination of a type by its name in the protocol; nil = nobody knows it.
func (r *router) at(t protocol.Type) *destination {
	if d := r.rows[string(t)]; d != nil {
		return cmp.Or(r.served[d.at], d)
	}
	return r.foreign[string(t)]
}

// own returns the destination of a type of the protocol for this host to change.
func (r *router) own(known *destination) *destination {
	at := &r.served[known.at]
	if *at == nil {
		*at = &destination{row: known.row}
	}
	return *at
}

func (r *router) add(p Plugin, route Route) {
	info, d := p.Info(), r.any
	switch known := r.rows[string(route.Type)]; {
	case known != nil && (known.control != nil || known.fromHost):
		return
	case known != nil:
		d = r.own(known)
	case route.Type != CatchAll:
		d = r.foreign[string(route.Type)]
	}
	if d == nil {
		d = &destination{row: &row{typ: route.Type, capability: info.Capability}}
		if route.Type == CatchAll {
			r.any = d
		} else {
			d.response = foreignResponse(route.Type)
			r.foreign[string(route.Type)] = d
		}
	}
	if d.exclusive {
		return
	}
	if route.Response != "" || route.noSlot || len(route.order) > 0 { // the row is shared
		own := *d.row
		own.response = cmp.Or(route.Response, own.response)
		own.noSlot = own.noSlot || route.noSlot
		own.order = slices.Concat(own.order, route.order)
		d.row = &own
	}
	if info.Exclusive {
		d.exclusive, d.routes = true, nil
	}
	d.routes = append(d.routes, boundRoute{p, route.serve, route.claims, route.merge})
}

// foreignResponse returns the answer's type of a request that the protocol does
// not have.
func foreignResponse(t protocol.Type) protocol.Type {
	return protocol.Type(strings.TrimSuffix(string(t), "/req") + "/resp")
}

// find returns the destination of a type; nil when nobody knows it.
func (r *router) find(t []byte) *destination {
	if d := r.rows[string(t)]; d != nil {
		return cmp.Or(r.served[d.at], d)
	}
	if d := r.foreign[string(t)]; d != nil {
		return d
	}
	if canonical := protocol.Canonical(protocol.Type(t)); canonical != protocol.Type(t) {
		return r.at(canonical)
	}
	return r.any
}

// all returns the destinations that plugins serve.
func (r *router) all() []*destination {
	all := slices.Collect(maps.Values(r.foreign))
	for _, d := range append(slices.Clone(r.served), r.any) {
		if d != nil {
			all = append(all, d)
		}
	}
	return all
}

// serve asks the plugins: all of them for a list, otherwise one after the other
// until one owns what the request names.
func (d *destination) serve(ctx context.Context, obj protocol.Object, emit Emitter) (any, error) {
	if len(d.routes) == 1 {
		resp, err := d.routes[0].serve(ctx, obj, emit)
		if err != nil {
			return unwrapNotOwner(err)
		}
		return resp, nil
	}
	if i := slices.IndexFunc(d.routes, func(r boundRoute) bool { return r.merge != nil }); i >= 0 {
		return d.serveAll(ctx, obj, emit, d.routes[i].merge)
	}
	var refusals []notOwner
	for _, route := range d.routes {
		resp, err := route.serve(ctx, obj, emit)
		if err == nil {
			return resp, nil
		}
		var refused notOwner
		if !errors.As(err, &refused) {
			return resp, err
		}
		refusals = append(refusals, refused)
	}
	return mergeRefusals(refusals)
}

func (d *destination) serveAll(ctx context.Context, obj protocol.Object, emit Emitter,
	merge func(dst, src any) (any, error),
) (any, error) {
	var all any
	var refusals []notOwner
	for _, route := range d.routes {
		resp, err := route.serve(ctx, obj, emit)
		var refused notOwner
		switch {
		case errors.As(err, &refused):
			refusals = append(refusals, refused)
		case err != nil:
			return nil, err
		case all == nil:
			all = resp
		default:
			if all, err = merge(all, resp); err != nil {
				return nil, err
			}
		}
	}
	if all == nil {
		return mergeRefusals(refusals)
	}
	return all, nil
}
