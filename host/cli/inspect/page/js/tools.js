// Tools: a form for each, to call it here, and what was called how often and how fast.

import {h, set, say, sync, table, rows, ms, cut, json} from './dom.js';
import {form} from './form.js';
import {call} from './call.js';

const maxTools = 2000;
const maxSamples = 5000;

export function tools(app) {
  const stats = new Map(); // name → {name, calls, bad, open, took, last}
  let known = [];          // {name, description, schema, tags}
  let asked = '';          // the session that was asked for them
  let chosen = '';
  let drawn = '';

  const search = h('input', {type: 'search', placeholder: 'Find a tool', 'aria-label': 'Find a tool', oninput: draw});
  const names = h('ul.names');
  const note = h('p.empty', {role: 'status'});
  const pane = h('section.pane', {'aria-label': 'The chosen tool'});
  const used = table('Calls of tools', ['Tool', '#Calls', '#Errors', '#Open', '#p50', '#p95', '#Max', 'Last error']);
  const usedNote = h('p.empty');
  const live = h('div.two', {hidden: true}, h('div.side', null, search, names), pane);
  const el = h('div.view', null, h('h2', null, 'Tools'), note, live, h('h3', null, 'What was called'), usedNote, used.el);

  app.log.on((e, msg) => {
    if (e.role === 'request') {
      const name = toolOf(e.type, msg);
      if (name !== undefined) begin(name, e);
    } else if (e.role === 'answer' && e.ex?.tool && e.ex.answer === e) end(e);
    if (e.dir === 'host') asked = '';
    if (e.type === 'tool/list/resp' && app.info.mode !== 'live') listed(msg);
  });

  function begin(name, e) {
    let s = stats.get(name);
    if (!s) {
      if (stats.size >= maxTools) return;
      stats.set(name, s = {name, calls: 0, bad: 0, open: 0, took: [], last: null});
    }
    s.calls++;
    s.open++;
    e.ex.tool = s;
  }

  function end(e) {
    const s = e.ex.tool;
    s.open--;
    if (s.took.length < maxSamples) s.took.push(e.ex.ms);
    else s.took[Math.floor(Math.random() * maxSamples)] = e.ex.ms;
    if (e.bad) {
      s.bad++;
      s.last = e;
    }
  }

  // load asks the host what there is: the list, and the whole schemas where JSON-RPC has them.
  async function load() {
    const session = app.log.last + app.session.state;
    if (!app.ready() || asked) return;
    asked = session;
    try {
      const [answer, rpc] = await Promise.all([app.session.ask('tool/list/req', {include_deferred: true}), app.session.call('tools.list', {}).catch(() => null)]);
      const schemas = new Map((rpc?.result?.tools ?? []).map((t) => [t.name, t.input_schema]));
      listed(answer, schemas);
    } catch (err) {
      say(note, err.message);
    }
  }

  function listed(answer, schemas = new Map()) {
    known = (answer.tools ?? []).slice(0, maxTools).map((t) => ({name: String(t.name), description: String(t.description ?? ''), streaming: t.streaming, tags: Array.isArray(t.tags) ? t.tags : [], schema: schemas.get(t.name) ?? schemaOf(t.input_parameters)}));
    app.changed();
    if (chosen) choose(chosen);
  }

  // choose shows a tool; what was typed stays when the same tool is listed again.
  function choose(name) {
    const tool = known.find((t) => t.name === name);
    const sign = json([name, known.length > 0, tool]);
    if (sign === drawn) return;
    [chosen, drawn] = [name, sign];
    if (tool) set(pane, toolPane(app, tool));
    else set(pane, h('p.empty', null, name && known.length ? `There is no tool ${cut(name)}.` : 'Choose a tool.'));
  }

  function draw() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const fit = known.filter((t) => words.every((w) => `${t.name} ${t.description} ${t.tags.join(' ')}`.toLowerCase().includes(w)));
    sync(names, fit, (t) => t.name, (t) => h('li', null, h('a', {href: '#/tools/' + encodeURIComponent(t.name)}, h('strong', null, t.name), h('span', null, cut(t.description, 90)))),
      (li, t) => t.name === chosen ? li.firstChild.setAttribute('aria-current', 'true') : li.firstChild.removeAttribute('aria-current'));
    const all = [...stats.values()].sort((a, b) => b.calls - a.calls);
    say(usedNote, all.length ? '' : 'No tool was called yet. Each call is counted here, with its failures and times.');
    used.el.hidden = !all.length;
    rows(used, all.slice(0, 300), (s) => s.name, (s) => {
      const sorted = s.took.toSorted((a, b) => a - b);
      const at = (q) => ({num: sorted.length ? ms(sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))]) : ''});
      return [s.name, {num: s.calls.toLocaleString('en')}, {num: s.bad.toLocaleString('en')}, {num: s.open || ''}, at(0.5), at(0.95), at(1), lastError(s)];
    });
  }

  return {
    id: 'tools', title: 'Tools', el,
    show(arg) {
      choose(arg || (app.live() ? known[0]?.name ?? '' : ''));
    },
    update() {
      load();
      live.hidden = !app.live();
      say(note, !app.live() ? '' : app.ready() ? (known.length ? '' : 'Asking for the tools.') : 'Tools can be called once the host is connected.');
      note.hidden = note.textContent === '';
      if (app.live() && !chosen && known.length) choose(known[0].name);
      draw();
    },
  };
}

function lastError(s) {
  if (!s.last) return '';
  const el = h('a', {href: `#/timeline/${s.last.n}`}, `${s.last.bad.code}: ${cut(s.last.bad.message, 80)}`);
  el.sign = s.last.n;
  return el;
}

function toolOf(type, msg) {
  if (type === 'tool/call/req') return String(msg.tool_name ?? '');
  if (type === 'tools/call') return String(msg.params?.name ?? '');
  if (type === 'skill/call/req') return 'skill ' + String(msg.name ?? '');
  if (type === 'command.execute') return String(msg.params?.raw_command ?? '').split(/\s/)[0].replace(/^\//, '');
  return undefined;
}

// schemaOf makes a JSON Schema of the parameters of a tool as A2E lists them.
function schemaOf(parameters) {
  const schema = {type: 'object', properties: Object.create(null), required: [], additionalProperties: false};
  for (const p of Array.isArray(parameters) ? parameters : []) {
    if (typeof p?.name !== 'string') continue;
    schema.properties[p.name] = parameterOf(p);
    if (p.required) schema.required.push(p.name);
  }
  return schema;
}

function parameterOf(p) {
  const s = {type: p.type === 'any' ? undefined : p.type, description: p.description};
  if (Array.isArray(p.enum)) s.enum = p.enum;
  if (p.properties && typeof p.properties === 'object') Object.assign(s, schemaOf(Object.values(p.properties)));
  return s;
}

// toolPane is a tool's form and what its calls here gave.
function toolPane(app, tool) {
  const fields = form(tool.schema);
  const source = h('textarea.code', {rows: 8, spellcheck: 'false', 'aria-label': 'Arguments as JSON', hidden: true});
  const problem = h('p.problem', {role: 'alert'});
  const results = h('div.results');
  const mode = h('button', {type: 'button', 'aria-pressed': 'false', onclick: toggle}, 'As JSON');
  const go = h('button.primary', null, 'Call');

  function toggle() {
    say(problem, '');
    if (source.hidden) {
      source.value = JSON.stringify(fields.read().value ?? {}, null, 2);
    } else {
      try {
        fields.write(JSON.parse(source.value));
      } catch (err) {
        return say(problem, `This is not valid JSON: ${err.message}`);
      }
    }
    source.hidden = !source.hidden;
    fields.el.hidden = !source.hidden;
    mode.setAttribute('aria-pressed', !source.hidden);
  }

  function args() {
    if (source.hidden) {
      const got = fields.read();
      say(problem, got.ok ? '' : 'Some fields are not right yet.');
      return got.ok ? got.value : undefined;
    }
    try {
      say(problem, '');
      return JSON.parse(source.value);
    } catch (err) {
      return void say(problem, `This is not valid JSON: ${err.message}`);
    }
  }

  return h('div', null, h('h3', null, tool.name, tool.tags.map((t) => h('span.tag', null, t))), h('p.description', null, tool.description),
    h('form', {onsubmit: (ev) => {
      ev.preventDefault();
      const value = args();
      if (value === undefined) return;
      const one = call(app, 'tool/call/req', {tool_name: tool.name, arguments: value, streaming: true});
      results.prepend(one);
      one.scrollIntoView({block: 'nearest'});
      while (results.children.length > 20) results.lastChild.remove();
    }, onkeydown: (ev) => {
      if (ev.key === 'Enter' && (ev.ctrlKey || ev.metaKey)) ev.currentTarget.requestSubmit();
    }}, fields.el, source, h('p.buttons', null, go, mode, h('span.hint', null, 'Ctrl+Enter calls')), problem), results);
}
