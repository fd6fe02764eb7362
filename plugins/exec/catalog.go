package exec

import (
	"context"
	"sync"
	"time"

	"a2e/host"
	"a2e/plugins/tools"
	"a2e/protocol"
)

// catalogWait bounds how long the first calls wait for the child's list of its tools.
const catalogWait = time.Second

// catalog is what the child says of its tools: by it their arguments are checked, and its
// lists are searched where it does not do that itself.
type catalog struct {
	mu    sync.Mutex // guards the fields below
	defs  map[string]protocol.ToolDefinition
	check map[string]tools.Check
}

// hear takes in the tools of a list; all says that there are no others.
func (g *catalog) hear(defs []protocol.ToolDefinition, all bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if all || g.defs == nil {
		g.defs, g.check = make(map[string]protocol.ToolDefinition), make(map[string]tools.Check)
	}
	for _, def := range defs {
		if _, known := g.defs[def.Name]; !known && (len(g.defs) >= maxNames || len(def.Name) > maxNameBytes) {
			continue
		}
		g.defs[def.Name] = def
		delete(g.check, def.Name)
		if len(def.InputParameters) == 0 { // it says nothing of what it takes
			continue
		}
		if check, err := tools.NewCheck(def.InputParameters); err == nil {
			g.check[def.Name] = check
		}
	}
}

// fit holds the arguments of a call against what the tool declares.
func (g *catalog) fit(q *request) error {
	g.mu.Lock()
	check := g.check[q.name]
	g.mu.Unlock()
	val, _ := q.obj.Get("arguments")
	args, err := protocol.ParseObject(val)
	if check == nil || err != nil { // what is no object is the child's to refuse
		return nil
	}
	fitting, err := check(args)
	if err != nil || string(fitting.Raw()) == string(args.Raw()) {
		return err
	}
	body := bodyOf(q.obj, "arguments")
	body = append(append(append(body[:len(body)-1], `,"arguments":`...), fitting.Raw()...), '}')
	q.obj, err = protocol.ParseObject(body)
	return err
}

// narrow leaves in a list what the request asks for, as a child may not have looked at that.
func (g *catalog) narrow(services *host.Services, q *request, body []byte) ([]byte, error) {
	var req protocol.ToolListRequest
	var resp protocol.ToolListResponse
	if err := protocol.Decode(q.obj, nil, &req); err != nil {
		return nil, err
	}
	if err := decode(body, &resp); err != nil {
		return nil, err
	}
	g.hear(resp.Tools, false)
	g.mu.Lock()
	known := make([]protocol.ToolDefinition, 0, len(g.defs))
	for _, def := range g.defs {
		known = append(known, def)
	}
	g.mu.Unlock()
	if !tools.Narrow(services, &resp, &req, known) {
		return body, nil
	}
	return protocol.AppendJSON(nil, &resp)
}

// awaitCatalog waits until the child has listed its tools, or is not going to soon.
func (c *peer) awaitCatalog(ctx context.Context) {
	select {
	case <-c.listed:
		return
	default:
	}
	host.Detach(ctx)
	late := time.NewTimer(catalogWait)
	defer late.Stop()
	select {
	case <-c.listed:
	case <-c.Done():
	case <-ctx.Done():
	case <-late.C:
	}
}
