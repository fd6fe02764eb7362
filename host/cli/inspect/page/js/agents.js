// Child agents and tasks of the fleet protocol, with how they stand.

import {h, own, say, table, rows, badge, clock, cut} from './dom.js';

const maxKept = 2000;

export function agents(app) {
  const children = new Map(); // subagent_id → child
  const tasks = new Map();    // task_id → task
  let worker = '';
  let version = 0;
  let drawn = '';
  let asked = false;

  const again = h('button', {type: 'button', hidden: true, onclick: ask}, 'Ask again');
  const childNote = h('p.empty');
  const childTable = table('Child agents', ['Child', 'State', 'Role or model', 'Parent', 'Task', 'Last said', 'Entry']);
  const taskNote = h('p.empty');
  const taskTable = table('Tasks of the fleet protocol', ['Task', 'State', 'Priority', 'Brief', '#Tokens', '#Took', 'Result', 'Entry']);
  const el = h('div.view', null, h('h2', null, 'Agents'), h('p.buttons', null, again), h('h3', null, 'Child agents'), childNote, childTable.el, h('h3', null, 'Fleet tasks'), taskNote, taskTable.el);

  app.log.on((e, msg) => {
    if (/^(multi_agent\/|SUBAGENT_)/.test(e.type) || (e.role === 'answer' && /^(multi_agent\/|SUBAGENT_)/.test(e.ex?.request.type))) child(e, msg);
    else if (e.proto === 'fleet') task(e, msg);
    else if (e.dir === 'host') asked = false;
    else return;
    version++;
  });

  function keep(id, e) {
    let c = children.get(id);
    if (!c) {
      children.set(id, c = {id, name: '', state: '', about: '', parent: '', task: '', said: '', n: e.n});
      if (children.size > maxKept) children.delete(children.keys().next().value);
    }
    return c;
  }

  // byName finds a child by its id or by its name, as requests may.
  const byName = (id) => children.get(id) ?? [...children.values()].findLast((c) => c.name === id);

  function child(e, msg) {
    if (e.role === 'request') {
      const t = msg.task ?? msg;
      const c = /delegate$/i.test(e.type.replace('_REQ', '')) ? byName(msg.subagent_id) : null;
      if (c) Object.assign(c, {task: String(t.name ?? t.task_name ?? ''), said: cut(t.instruction, 200), n: e.n});
      e.ex.child = c;
      e.ex.spawn = msg.agent ?? (e.type === 'multi_agent/spawn' ? msg : null);
      return;
    }
    for (const info of Array.isArray(msg.subagents) ? msg.subagents : []) listed(info, e);
    if (typeof msg.subagent_id === 'string') told(keep(byName(msg.subagent_id)?.id ?? msg.subagent_id, e), e, msg);
    else if (e.ex?.child && typeof msg.status === 'string') e.ex.child.state = msg.status;
  }

  function told(c, e, msg) {
    const spawn = e.ex?.spawn;
    if (spawn) Object.assign(c, {name: String(spawn.name ?? ''), about: String(spawn.role || spawn.model || '')});
    if (typeof msg.status === 'string') c.state = msg.status;
    if (typeof msg.event === 'string') c.state = own(events, msg.event, c.state);
    const said = msg.content?.text ?? msg.content?.summary ?? msg.result?.summary ?? msg.error;
    if (typeof said === 'string' && said) c.said = cut(said, 300);
    if (typeof msg.content?.parent_agent_id === 'string') c.parent = msg.content.parent_agent_id;
    c.n = e.n;
  }

  function listed(info, e) {
    if (typeof info?.subagent_id !== 'string') return;
    const c = keep(info.subagent_id, e);
    const config = info.config ?? info;
    Object.assign(c, {name: String(info.name ?? c.name), state: String(info.status ?? c.state), parent: String(info.parent_agent_id ?? c.parent), about: String(config.role || config.model || c.about)});
  }

  function task(e, msg) {
    if (e.type === 'SESSION_ANNOUNCE') {
      worker = [msg.worker?.agent_id, msg.worker?.model].filter(Boolean).map(String).join(', ');
      return;
    }
    const id = String(msg.task?.task_id ?? msg.task_id ?? '');
    if (e.type === 'TASK_DISPATCH') {
      tasks.set(id, {id, state: 'running', priority: String(msg.task?.priority ?? ''), brief: cut(msg.brief, 200), tokens: '', took: null, result: '', n: e.n, ex: e.ex});
      if (tasks.size > maxKept) tasks.delete(tasks.keys().next().value);
    } else if (e.type === 'TASK_RESULT' && tasks.has(id)) {
      Object.assign(tasks.get(id), {state: String(msg.status ?? ''), tokens: msg.tokens_spent, result: cut(msg.summary || msg.blocked_reason || msg.error, 300), n: e.n});
    }
  }

  async function ask() {
    asked = true;
    if (app.session.caps.has('multi_agent')) await app.session.ask('multi_agent/list', {}).catch((err) => say(childNote, err.message));
  }

  return {
    id: 'agents', title: 'Agents', el,
    badge: () => [...children.values()].filter((c) => c.state === 'RUNNING').length + [...tasks.values()].filter((t) => t.state === 'running').length,
    update() {
      again.hidden = !app.ready();
      if (app.ready() && !asked) ask();
      const sign = `${version} ${app.session.state}`;
      if (sign === drawn) return;
      drawn = sign;
      const all = [...children.values()].reverse().slice(0, 300);
      say(childNote, all.length ? '' : 'There are no child agents. The ones that the agent starts by subagent/spawn/req are shown here, with their tasks.');
      childTable.el.hidden = !all.length;
      rows(childTable, all, (c) => c.id, (c) => [c.name ? `${c.name} (${c.id})` : c.id, badge(own(tones, c.state, 'off'), c.state || 'unknown'), c.about, c.parent, c.task, c.said, link(c.n)]);
      const list = [...tasks.values()].reverse().slice(0, 300);
      say(taskNote, (list.length ? '' : 'There are no fleet tasks. TASK_DISPATCH starts one, TASK_RESULT ends it.') + (worker ? ` The worker is ${worker}.` : ''));
      taskTable.el.hidden = !list.length;
      rows(taskTable, list, (t) => t.id, (t) => [t.id || 'without an id', badge(own(tones, t.state, 'off'), t.state), t.priority, t.brief, {num: Number.isFinite(t.tokens) ? t.tokens.toLocaleString('en') : ''},
        {num: t.ex.ms === null ? '' : (t.ex.ms / 1000).toFixed(2) + ' s'}, t.result, link(t.n)]);
    },
  };
}

const events = {spawned: 'READY', started: 'RUNNING', output: 'RUNNING', completed: 'COMPLETED', failed: 'FAILED', cancelled: 'CANCELLED', terminated: 'TERMINATED'};
const tones = {READY: 'wait', WAITING: 'wait', RUNNING: 'run', COMPLETED: 'ok', FAILED: 'bad', CANCELLED: 'warn', TERMINATED: 'off', running: 'run', done: 'ok', partial: 'warn', blocked: 'warn', error: 'bad'};

function link(n) {
  const el = h('a', {href: `#/timeline/${n}`}, String(n));
  el.sign = n;
  return el;
}
