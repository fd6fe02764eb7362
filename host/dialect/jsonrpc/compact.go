package jsonrpc

import (
	"cmp"
	"context"
	"fmt"

	"a2e/host"
	"a2e/host/agent"
	"a2e/host/dialect"
	"a2e/host/state/store"
	"a2e/protocol"
	"a2e/protocol/jsonrpc"
)

// Why a conversation is summarised.
const (
	compactAuto   = "auto"   // the conversation comes near the model's window
	compactManual = "manual" // by /compression
	compactSwitch = "provider_switch"
)

// labelCompacting is the status label of a session while its conversation is summarised.
const labelCompacting = "compressing context..."

// CompactionNotice begins the system message that tells of a summary.
const CompactionNotice = "context compression"

// Sources of an estimate of tokens.
const (
	fromHistory = "history"
	fromSummary = "compaction"
)

// conversation is the earlier part of a session as its worker gets it.
type conversation struct {
	summary string // replaces the first messages; "" = there is none
	of      int    // number of messages that the summary replaces
	rest    []*message
}

// told returns the conversation as a worker gets it.
func (c *conversation) told() []agent.Said {
	said := each(c.rest, func(m *message) agent.Said {
		return agent.Said{Role: m.Role, Text: m.Text, Images: pictures(m.Images)}
	})
	if c.summary != "" {
		said = append([]agent.Said{{Role: roleUser, Text: c.summary}}, said...)
	}
	return said
}

// lately returns the end of the conversation, for a worker that is not a model: at most so many bytes of texts, but the
// last message in any case.
func (c *conversation) lately(most int) []agent.Said {
	said, bytes := c.told(), 0
	from := len(said)
	for ; from > 0; from-- {
		if bytes += len(said[from-1].Text); bytes > most && from < len(said) {
			break
		}
	}
	return said[from:]
}

func (h *history) conversation(ctx context.Context, rollout string) (*conversation, error) {
	said, err := h.messages(ctx, rollout, true)
	if err != nil {
		return new(conversation), err
	}
	return h.folded(ctx, rollout, said)
}

// folded returns the conversation of a rollout whose messages are said.
func (h *history) folded(ctx context.Context, rollout string, said []*message) (*conversation, error) {
	c := new(conversation)
	_, err := h.one(ctx, "SELECT summary FROM rpc_rollouts WHERE id = $1", []any{rollout}, &c.summary)
	for _, m := range said {
		if m.summed {
			c.of++
		} else {
			c.rest = append(c.rest, m)
		}
	}
	return c, err
}

// storeSummary stores the summary of a rollout, which replaces the messages up to the number upTo.
func (h *history) storeSummary(ctx context.Context, rollout, summary string, upTo int64) error {
	return h.write(ctx, func(tx *store.Tx) error {
		return cmp.Or(exec(tx, "UPDATE rpc_rollouts SET summary = $2 WHERE id = $1", rollout, h.kept(summary)),
			exec(tx, "UPDATE rpc_messages SET summed = 1 WHERE rollout = $1 AND said <> 0 AND number <= $2", rollout,
				upTo))
	})
}

// estimate is how much of its model's window a session takes.
type estimate struct {
	agent.ContextUse
	rollout  string // id of the rollout
	provider string // the worker whose model was asked; "" = none: only the lengths of the texts count
	source   string
}

// breakdown returns the parts of an estimate.
func (e *estimate) breakdown() map[string]any {
	return map[string]any{
		"pinned_tokens": e.Pinned, "conversation_tokens": e.Conversation, "tool_schema_tokens": e.Tools,
		"provider_overhead_tokens": e.Overhead,
	}
}

// providerName returns the worker of an estimate, or nil.
func (e *estimate) providerName() any {
	if e.provider == "" {
		return nil
	}
	return e.provider
}

// estimated sends an estimate to the client, and stores it for the session's state.
func (f *Front) estimated(s *session, e *estimate) {
	f.mu.Lock()
	s.estimate = e
	f.mu.Unlock()
	f.event(jsonrpc.ContextEstimate, map[string]any{
		"session_id": s.ID, "provider": e.providerName(), "source": e.source, "total_tokens_estimate": e.Total(),
		"breakdown": e.breakdown(),
	})
}

// estimateOf returns the estimate for a session's state. If there is none for the rollout, it counts the texts of its
// messages said, and asks no model.
func (f *Front) estimateOf(ctx context.Context, s *session, rollout string, said []*message) (*estimate, error) {
	f.mu.Lock()
	e := s.estimate
	f.mu.Unlock()
	if e != nil && e.rollout == rollout {
		return e, nil
	}
	conv, err := f.history.folded(ctx, rollout, said)
	e = &estimate{rollout: rollout, source: conv.source()}
	for _, m := range conv.told() {
		e.Conversation += agent.EstimateTokens(len(m.Text))
	}
	return e, err
}

func (c *conversation) source() string {
	if c.summary != "" {
		return fromSummary
	}
	return fromHistory
}

// measure asks the pool how much of its model's window a conversation takes with a worker; nil = the worker is not a
// model.
func (f *Front) measure(ctx context.Context, rollout, worker string, conv *conversation, more ...agent.Said) *estimate {
	pool := host.First[agent.Summariser](host.ServicesOf(ctx))
	if pool == nil {
		return nil
	}
	use, ok := pool.ContextUse(ctx, worker, append(conv.told(), more...))
	if !ok {
		return nil
	}
	if all := f.workers(); worker == "" && len(all) > 0 {
		worker = all[0].Name // the default
	}
	return &estimate{use, rollout, worker, conv.source()}
}

// earlier returns the conversation before a turn, for its worker. If the conversation comes near the window of a model,
// the model summarises the older part first. A worker that is not a model gets only the end of the conversation.
func (f *Front) earlier(t *turn, worker, text, label string) []agent.Said {
	s := t.session
	s.compacting.Lock()
	defer s.compacting.Unlock()
	ctx := dialect.Merge(f.enter(s), t.ctx)
	conv, err := f.history.conversation(ctx, t.rollout)
	if err != nil && t.ctx.Err() == nil {
		f.opts.Log.Warn().Err(err).Msg("the history cannot be read; the worker does not see it")
	}
	next := agent.Said{Role: roleUser, Text: text, Images: pictures(t.images)}
	e := f.measure(ctx, t.rollout, worker, conv, next)
	if e == nil {
		return conv.lately(f.opts.MaxContext)
	}
	if e.Over() && len(conv.rest) > 0 {
		c := &compaction{front: f, session: s, turn: t.ID, rollout: t.rollout, worker: worker, reason: compactAuto}
		f.tell(s, labelCompacting, "")
		notice := ""
		if err := c.run(ctx, conv, e); err != nil {
			notice = "auto-compression failed: " + jsonrpc.From(err).Message + "; the oldest messages are cut instead."
		} else {
			conv = c.after
			e = cmp.Or(f.measure(ctx, t.rollout, worker, conv, next), e) // measure returns nil if ctx has ended
			notice = fmt.Sprintf("%s (auto): %s (limit %s / window %s).", CompactionNotice, c.shrunk(),
				tokens(e.Limit), tokens(e.Window))
		}
		if t.ctx.Err() == nil {
			f.note(t, message{Role: roleSystem, Text: notice})
			f.tell(s, label, "")
		}
	}
	f.estimated(s, e)
	return conv.told()
}

// remeasure sends an estimate of the conversation after a turn.
func (f *Front) remeasure(t *turn) {
	ctx := dialect.Merge(f.enter(t.session), t.ctx)
	conv, err := f.history.conversation(ctx, t.rollout)
	if err != nil {
		return // the next turn reports the error
	}
	if e := f.measure(ctx, t.rollout, t.worker.Name, conv); e != nil {
		f.estimated(t.session, e)
	}
}

// compaction summarises the older part of a session's conversation.
type compaction struct {
	front          *Front
	session        *session
	turn           string // the turn in which it happens; "" = none
	rollout        string
	worker, reason string

	before    *estimate
	from, to  int           // number of messages that the summary replaced before, and replaces now
	after     *conversation // nil = there is no new summary
	afterSize int           // tokens; 0 = not known
}

// run has the model write the summary and stores it. It sends an event for each step.
func (c *compaction) run(ctx context.Context, conv *conversation, e *estimate) error {
	c.before, c.from, c.to = e, conv.of, conv.of
	c.event(jsonrpc.CompactionStarted, map[string]any{
		"anchor_event_index_before": c.from, "event_count": conv.of + len(conv.rest), "context_window_tokens": e.Window,
	})
	summary, of, err := host.First[agent.Summariser](host.ServicesOf(ctx)).Summarise(ctx, c.worker, conv.told())
	kept := of
	if conv.summary != "" {
		kept-- // the earlier summary
	}
	var last int64
	if err == nil && kept > 0 {
		last = conv.rest[kept-1].number
	}
	if err == nil {
		err = c.front.history.storeSummary(ctx, c.rollout, summary.Text, last)
	}
	if err != nil {
		c.event(jsonrpc.CompactionFailed, map[string]any{"message": jsonrpc.From(err).Message})
		return err
	}
	c.to += kept
	c.event(jsonrpc.AnchorSelected, map[string]any{
		"anchor_event_index_before": c.from, "anchor_event_index_after": c.to, "delta_event_count": c.to - c.from,
	})
	c.event(jsonrpc.SummaryMerged, map[string]any{
		"summary_updated_at": stamp(c.front.opts.Now()), "anchor_event_index_after": c.to,
	})
	c.after = &conversation{summary: summary.Text, of: c.to, rest: conv.rest[kept:]}
	if shorter := c.front.measure(ctx, c.rollout, c.worker, c.after); shorter != nil {
		c.afterSize = shorter.Total()
	}
	told := c.result()
	told["high_watermark_limit"] = e.Limit
	c.event(jsonrpc.CompactionCompleted, told)
	return nil
}

func (c *compaction) event(t jsonrpc.EventType, told map[string]any) {
	told["session_id"], told["reason"] = c.session.ID, c.reason
	c.front.event(t, add(told, "turn_id", c.turn))
}

// result returns the answer to /compression.
func (c *compaction) result() map[string]any {
	return map[string]any{
		"compressed": c.after != nil, "reason": c.reason, "estimated_tokens_before": c.before.Total(),
		"estimated_tokens_after": c.afterSize, "model_context_window": c.before.Window, "target_limit": c.before.Target,
		"anchor_event_index_before": c.from, "anchor_event_index_after": c.to,
	}
}

// shrunk returns a text with the tokens before and after.
func (c *compaction) shrunk() string {
	return tokens(c.before.Total()) + " -> " + tokens(c.afterSize) + " est. tokens"
}

// tokens returns a number of tokens as a text; 0 = the number is not known.
func tokens(n int) string {
	switch {
	case n == 0:
		return "unknown"
	case n < 1000:
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%.1fk", float64(n)/1000)
}

// compactNow summarises the conversation of an idle session, for model.select and /compression. c is nil if there is
// nothing to summarise or the worker is not a model. e is the estimate after that, or nil if the worker is not a model.
func (f *Front) compactNow(ctx context.Context, s *session, worker, reason string) (c *compaction, e *estimate,
	err error,
) {
	s.compacting.Lock()
	defer s.compacting.Unlock()
	f.mu.Lock()
	busy, rollout := s.turn != nil, s.Rollout
	f.mu.Unlock()
	if busy {
		return nil, nil, jsonrpc.Refused("session_busy", "the session is busy; session.interrupt first")
	}
	ctx = dialect.Merge(f.enter(s), ctx)
	conv, err := f.history.conversation(ctx, rollout)
	if err != nil {
		return nil, nil, err
	}
	if e = f.measure(ctx, rollout, worker, conv); e == nil || len(conv.rest) == 0 {
		return nil, e, nil
	}
	if provider := conv.rest[len(conv.rest)-1].provider; reason == compactAuto && provider != e.provider {
		reason = compactSwitch
	}
	c = &compaction{front: f, session: s, rollout: rollout, worker: worker, reason: reason}
	if err := c.run(ctx, conv, e); err != nil {
		return nil, e, jsonrpc.Refused("compaction_failed", "the conversation could not be summarised: %s",
			jsonrpc.From(err).Message)
	}
	if e = f.measure(ctx, rollout, worker, c.after); e != nil {
		f.estimated(s, e)
	}
	return c, e, nil
}

func compressionCommand(f *Front, ctx context.Context, c *call) (any, error) {
	done, e, err := f.compactNow(ctx, c.on, cmp.Or(c.on.Model, f.chosen(ctx).Worker), compactManual)
	switch {
	case err != nil:
		return nil, err
	case e == nil:
		return map[string]any{"compressed": false, "error": "the selected worker is not a model, and gets the last " +
			protocol.Count(f.opts.MaxContext, "byte") + " of a conversation"}, nil
	case done == nil:
		return map[string]any{"compressed": false, "error": "there is nothing to sum up"}, nil
	}
	return done.result(), nil
}

// compressed returns the member compression of the answer to model.select.
func (f *Front) compressed(ctx context.Context, id string, w agent.WorkerInfo) (map[string]any, error) {
	s, err := f.get(ctx, id)
	if err != nil {
		return nil, err
	}
	c, e, err := f.compactNow(ctx, s, w.Name, compactAuto)
	told := map[string]any{
		"requested": true, "applied": false, "reason": "none", "estimated_tokens_before": 0,
		"estimated_tokens_after": 0,
		"model_context_window":   w.ContextWindow, "auto_limit": 0, "target_limit": 0, "anchor_event_index_before": 0,
		"anchor_event_index_after": 0,
	}
	if e != nil {
		told["auto_limit"], told["target_limit"] = e.Limit, e.Target
	}
	if c != nil {
		for name, value := range c.result() {
			told[name] = value
		}
		told["applied"] = true
		delete(told, "compressed")
	}
	return told, err
}
