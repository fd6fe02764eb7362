package chains

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/state/store"
	"a2e/plugins/chains/jmes"
	"a2e/protocol"
)

// maxCacheKey bounds the value of a key as JSON, in bytes. Only a digest of the value is stored.
const maxCacheKey = 1 << 20

// cacheSpec is the field cache of a node as it was sent.
type cacheSpec struct {
	key string // an expression; "" = the input of the node
	ttl time.Duration
}

// cache says how the output of a node is cached.
type cache struct {
	key    *jmes.Expr // nil = the input of the node
	ttl    time.Duration
	digest [sha256.Size]byte // of what the node does
}

// readCache reads the field cache of a node.
func readCache(at int, val protocol.Value, bad *problems) *cacheSpec {
	c := &cacheSpec{}
	members(at, "cache", `{"ttl": 3600}`, []string{"key", "ttl"}, val, bad, func(name string,
		val protocol.Value,
	) (ok bool, want string) {
		if name == "key" {
			c.key, ok = val.Str()
			return ok && c.key != "", "an expression, such as input.day, or a text in single quotes, such as 'v1'"
		}
		c.ttl, ok = secondsOf(val)
		return ok && c.ttl > 0, "a number of seconds, more than 0: how long the output is good"
	})
	if c.ttl == 0 && len(bad.list) == 0 {
		bad.at(at, "cache/ttl", "is required: for how many seconds the output is good, such as 3600")
	}
	return c
}

// bindCache compiles the key, and makes a digest of what the node does, so that only nodes that do the
// same share outputs.
func (b *binder) bindCache(at int, n *node) {
	s := n.spec
	n.cache = &cache{ttl: s.cache.ttl}
	if s.cache.key != "" {
		n.cache.key = b.expr(at, n, "cache/key", s.cache.key)
	}
	digest := sha256.New()
	for _, part := range [][]byte{
		[]byte(s.kind), []byte(s.name), s.input.Raw(), s.inputMap.Raw(),
		fmt.Appendf(nil, "%q %d", s.condition, s.maxIterations),
	} {
		fmt.Fprintf(digest, "%d %s", len(part), part)
	}
	digest.Sum(n.cache.digest[:0])
}

// cached returns the stored output of a node, or runs the node and stores its output.
func (r *run) cached(ctx context.Context, n *node, it *item) (jsontext.Value, error) {
	key, err := r.cacheKey(ctx, n, it)
	if err != nil {
		return nil, err
	}
	p := r.plugin
	raw, age, err := p.lookUp(ctx, key)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err == nil && raw != nil {
		e := it.event()
		e.age = age
		r.tell(n.id, phaseCached, e)
		r.hit(r.prefix + r.path(n, it))
		return raw, nil
	}
	if raw, err = r.tried(ctx, n, it); err == nil && !r.truncated(r.place(n, it)) {
		p.keepOutput(ctx, key, raw, n.cache.ttl)
	}
	return raw, err
}

// cacheKey returns the key of an output in the store: a digest of the agent, the workspace, what the node
// does and its own key.
func (r *run) cacheKey(ctx context.Context, n *node, it *item) (key []byte, err error) {
	var own []byte
	if n.cache.key == nil {
		args, leave, err := r.given(ctx, n, it)
		if err != nil {
			return nil, err
		}
		own = slices.Clone(args)
		leave()
	} else {
		v, err := r.eval(ctx, n, it, "cache/key", n.cache.key)
		if err != nil {
			return nil, err
		}
		if v == nil {
			return nil, protocol.Errorf(protocol.CodeChainNodeError, "cache/key gives null, under which outputs of "+
				"different inputs would be the same; give an expression that tells them apart")
		}
		if own, err = jmes.Append(nil, v, maxCacheKey); err != nil {
			return nil, r.explained(ctx, "cache/key", err)
		}
	}
	agent := ""
	if s := host.SessionFrom(r.root); s != nil {
		agent = s.AgentID
	}
	digest := sha256.New()
	fmt.Fprintf(digest, "%q %q %x ", agent, r.plugin.env.Workspace, n.cache.digest)
	if n.chain != nil {
		fmt.Fprintf(digest, "%x ", n.chain.digest)
	}
	digest.Write(own)
	return digest.Sum(nil), nil
}

// lookUp returns a stored output and its age; nil = there is none.
func (p *Plugin) lookUp(ctx context.Context, key []byte) (raw jsontext.Value, age time.Duration, err error) {
	if !p.env.StoreExists() {
		return nil, 0, nil
	}
	now := p.env.Now().UnixMicro()
	host.HandOff(ctx)
	err = p.kept.Read(ctx, func(tx *store.Tx) error {
		var output []byte
		var at int64
		there, err := tx.Get("SELECT output, stored_at FROM chains_cache WHERE key = $1 AND expires_at > $2",
			[]any{key, now}, &output, &at)
		if there {
			raw, age = output, time.Duration(max(now-at, 0))*time.Microsecond
		}
		return err
	})
	return raw, age, err
}

// keepOutput stores an output. A failure is only logged, as the node itself succeeded.
func (p *Plugin) keepOutput(ctx context.Context, key []byte, raw jsontext.Value, ttl time.Duration) {
	if raw == nil {
		raw = jsontext.Value("null")
	}
	if p.env.Store == nil || len(raw) > p.opts.MaxCacheBytes/8 {
		return
	}
	now := p.env.Now()
	host.HandOff(ctx)
	_ = p.kept.Write(ctx, func(tx *store.Tx) error {
		if _, err := tx.Exec("DELETE FROM chains_cache WHERE expires_at <= $1 OR key = $2", now.UnixMicro(),
			key); err != nil {
			return err
		}
		if _, err := tx.Exec("INSERT INTO chains_cache (key, stored_at, expires_at, size, output) VALUES ($1, "+
			"$2, $3, $4, $5)",
			key, now.UnixMicro(), now.Add(ttl).UnixMicro(), len(raw), []byte(raw)); err != nil {
			return err
		}
		return store.Bound{
			Table: "chains_cache", Key: "number", Newest: "number DESC", Most: p.opts.MaxCacheEntries,
			Size: "size", Bytes: p.opts.MaxCacheBytes,
		}.Prune(tx)
	})
}
