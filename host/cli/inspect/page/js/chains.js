// Chains: each run as a graph whose nodes light up, and as a table.

import {h, own, set, say, sync, table, rows, badge, clock, cut, ms, count} from './dom.js';
import {message} from './log.js';
import {draw} from './graph.js';

const maxChains = 300;
const maxNodes = 10000;

export function chains(app) {
  const all = new Map(); // number of the request's entry → chain
  let chosen = null;

  const names = h('ul.names');
  const pane = h('section.pane', {'aria-label': 'The chosen chain'});
  const note = h('p.empty');
  const start = starter(app);
  const el = h('div.view', null, h('h2', null, 'Chains'), start.el, note, h('div.two', null, h('div.side', null, names), pane));

  app.log.on((e, msg) => {
    if (e.type === 'chain/req' && e.role === 'request') begin(e, msg);
    const c = e.ex && all.get(e.ex.request.n);
    if (!c || e.ex.request === e) return;
    if (e.type === 'chain/event') event(c, e, msg);
    else if (e.role === 'answer') end(c, e, msg);
    c.version++;
  });

  function begin(e, msg) {
    const nodes = new Map();
    for (const n of Array.isArray(msg.nodes) ? msg.nodes.slice(0, maxNodes) : []) {
      if (n && typeof n.node_id === 'string') nodes.set(n.node_id, fresh(n.node_id, n));
    }
    all.set(e.n, {n: e.n, ts: e.ts, entry: e, id: String(msg.chain_id ?? ''), nodes, state: 'running', ms: null, error: '', version: 0});
    if (all.size > maxChains) all.delete(all.keys().next().value);
  }

  function event(c, e, msg) {
    const id = String(msg.node_id ?? '');
    // the nodes of a loop or of a chain within a chain are told as loop[0]/node: they count for the outer one
    const outer = id.split('/')[0].replace(/\[\d+\]$/, '');
    const n = c.nodes.get(id) ?? c.nodes.get(outer) ?? (c.nodes.size < maxNodes ? c.nodes.set(id, fresh(id, {})).get(id) : null);
    if (!n) return;
    if (n.id !== id) {
      if (msg.phase === 'done') n.inner++;
      return;
    }
    phase(n, e, msg);
  }

  function phase(n, e, msg) {
    const d = msg.data ?? {};
    const many = d.index !== undefined;
    switch (msg.phase) {
      case 'start':
        if (n.state !== 'error') n.state = 'running';
        n.running++;
        n.runs++;
        n.began ??= e.ts;
        break;
      case 'done':
      case 'error':
        n.running = Math.max(0, n.running - 1);
        n.took = many ? (n.took ?? 0) + (Number(d.duration_ms) || 0) : Number.isFinite(d.duration_ms) ? d.duration_ms : n.took;
        if (msg.phase === 'error') {
          n.state = 'error';
          n.error = String(msg.error ?? '');
        } else if (n.state !== 'error' || !many) n.state = n.running ? 'running' : n.cached ? 'cached' : 'done';
        break;
      case 'skip': n.state = 'skipped'; break;
      case 'cached': n.cached = true; break;
      case 'retry':
        n.retries++;
        n.running = Math.max(0, n.running - 1);
        n.error = String(msg.error ?? '');
        break;
      case 'wait': n.state = 'waiting'; break;
      case 'iteration': n.inner = Math.max(n.inner, 0); n.iterations = (Number(d.iteration) || 0) + 1; break;
    }
    n.entry = e;
  }

  function end(c, e, msg) {
    c.ms = e.ex.ms;
    c.state = e.bad ? 'failed' : 'done';
    c.error = e.bad ? `${e.bad.code}: ${e.bad.message}` : '';
    for (const x of Array.isArray(msg.handled) ? msg.handled : []) {
      const n = c.nodes.get(x?.node_id);
      if (n) n.handled = String(x.handled_by ?? '');
    }
    for (const n of c.nodes.values()) if (n.state === 'running' || n.state === 'waiting') n.state = e.bad ? 'stopped' : n.state;
  }

  function drawList() {
    const list = [...all.values()].reverse();
    say(note, list.length ? '' : 'No chain was run. A chain is a graph of calls, which the host runs for the agent by chain/req; each one is shown here as it runs.' + (app.live() ? ' "Run a chain" starts one.' : ''));
    note.hidden = list.length > 0;
    if (!chosen && list.length) choose(list[0]);
    sync(names, list, (c) => c.n, (c) => h('li', null, h('a', {href: `#/chains/${c.n}`}, h('strong', null, cut(c.id, 60) || `chain of ${clock(c.ts)}`), h('span'))), (li, c) => {
      const line = li.firstChild.lastChild;
      const now = chainBadge(c);
      if (line.firstChild?.sign !== now.sign) set(line, now);
      if (c === chosen) li.firstChild.setAttribute('aria-current', 'true');
      else li.firstChild.removeAttribute('aria-current');
    });
    pane.firstChild?.update?.();
  }

  function choose(c) {
    chosen = c;
    set(pane, c ? chainPane(app, c) : null);
  }

  start.ran = (n) => app.go(`#/chains/${n}`);
  return {
    id: 'chains', title: 'Chains', el,
    badge: () => [...all.values()].filter((c) => c.state === 'running').length,
    show(arg) {
      const c = all.get(Number(arg));
      if (c && c !== chosen) choose(c);
      this.wanted = arg && !c ? arg : '';
    },
    update() {
      start.el.hidden = !app.live();
      if (this.wanted) this.show(this.wanted);
      drawList();
    },
  };
}

const fresh = (id, n) => ({id, kind: String(n.kind ?? ''), name: typeof n.name === 'string' ? n.name : '', state: 'not run', running: 0, runs: 0, took: null, error: '', handled: '', cached: false, retries: 0, inner: 0, iterations: 0, entry: null});

const tones = {'not run': 'off', running: 'run', waiting: 'wait', done: 'ok', cached: 'ok', skipped: 'off', error: 'bad', handled: 'warn', stopped: 'warn', failed: 'bad'};
const chainBadge = (c) => badge(tones[c.state], c.state + (c.ms === null ? '' : ` in ${ms(c.ms)}`));

// stateOf says in a word how a node stands, and in which tone.
export function stateOf(n) {
  const state = n.state === 'error' && n.handled ? 'handled' : n.state;
  return {state, tone: own(tones, state, 'off')};
}

function progress(n) {
  const parts = [];
  if (n.iterations) parts.push(count(n.iterations, 'round'));
  if (n.runs > 1) parts.push(`${n.runs.toLocaleString('en')} runs`);
  if (n.retries) parts.push(n.retries === 1 ? '1 retry' : `${n.retries} retries`);
  if (n.inner) parts.push(`${n.inner.toLocaleString('en')} inner nodes done`);
  return parts.join(', ');
}

function chainPane(app, c) {
  const request = message(c.entry);
  const head = h('p');
  const failure = h('p.failure', {hidden: true});
  const picture = h('div.graph.scroll', {tabindex: 0, role: 'region', 'aria-label': 'Graph of the chain'});
  const t = table('Nodes of the chain', ['Node', 'Kind', 'State', '#Duration', 'Progress', 'Error']);
  const el = h('div', null, h('h3', null, c.id || `Chain of ${clock(c.ts)}`, ' ', h('a.small', {href: `#/timeline/${c.n}`}, 'its request')), head, failure, picture, t.el);
  const graph = draw(request.nodes, c.nodes);
  set(picture, graph.el);
  let drawn = -1;
  el.update = () => {
    if (drawn === c.version) return;
    drawn = c.version;
    const done = [...c.nodes.values()].filter((n) => n.state === 'done' || n.state === 'cached').length;
    set(head, chainBadge(c), ` ${done} of ${count(c.nodes.size, 'node')} done`);
    failure.hidden = !c.error;
    say(failure, c.error);
    graph.update(c.nodes);
    rows(t, [...c.nodes.values()].slice(0, 500), (n) => n.id, (n) => {
      const s = stateOf(n);
      return [n.id, [n.kind, n.name].filter(Boolean).join(' '), badge(s.tone, s.state + (n.handled ? ` by ${n.handled}` : '')), {num: ms(n.took)}, progress(n), cut(n.error, 300)];
    });
  };
  el.update();
  return el;
}

const example = `# A graph of calls: list the folder, then say what is in it.
nodes:
  - {node_id: list, kind: tool, name: list_dir, input: {path: .}}
  - {node_id: say, kind: tool, name: echo, input_map: {text: "join(', ', list.entries[].name)"}}
`;

// starter is the form that runs a chain: one written here, or a saved one as it is or changed.
function starter(app) {
  const text = h('textarea.code', {rows: 6, spellcheck: 'false', id: 'chain-nodes'});
  text.value = example;
  const input = h('textarea.code', {rows: 1, spellcheck: 'false', id: 'chain-input', placeholder: '{ }'});
  const problem = h('p.problem', {role: 'status'});
  const choice = h('select', {id: 'chain-saved', onchange: async () => {
    try {
      text.value = choice.value ? await app.session.saved(choice.value) : example;
      say(problem, '');
    } catch (err) {
      say(problem, err.message);
    }
  }});
  const chosen = h('p', {hidden: true}, h('label', {for: 'chain-saved'}, 'Saved chain'), choice);

  const list = async () => {
    const names = await app.session.saved().catch(() => []);
    chosen.hidden = names.length === 0;
    if (names.join() !== [...choice.options].slice(1).map((o) => o.value).join()) set(choice, h('option', {value: ''}, '(none: the example)'), names.map((name) => h('option', {value: name}, name)));
  };

  async function run(ev) {
    ev.preventDefault();
    let fields;
    try {
      const given = await app.session.json(text.value);
      fields = {...(Array.isArray(given) ? {nodes: given} : given), streaming: true};
      if (input.value.trim()) fields.initial_input = await app.session.json(input.value);
    } catch (err) {
      return say(problem, err.message);
    }
    say(problem, '');
    self.el.open = false;
    const answer = app.session.ask('chain/req', fields, () => shown());
    let at = 0;
    const shown = () => {
      if (at) return;
      at = app.log.entries.findLast((e) => e.type === 'chain/req' && e.line.includes(answer.id))?.n ?? 0;
      if (at) self.ran(at);
    };
    answer.then(shown, (err) => {
      shown();
      self.el.open = true;
      say(problem, `${err.code}: ${err.message}`);
    });
  }

  const self = {ran: () => {}};
  self.el = h('details.starter', {hidden: true, ontoggle: () => self.el.open && list()}, h('summary', null, 'Run a chain'), h('form', {onsubmit: run}, chosen,
    h('label', {for: 'chain-nodes'}, 'Chain, as YAML or JSON'), text, h('label', {for: 'chain-input'}, 'Initial input, as YAML or JSON; empty is that of the chain'), input, h('p.buttons', null, h('button.primary', null, 'Run')), problem));
  return self;
}
