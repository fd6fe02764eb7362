// Processes: what was started, what it prints, how it ended; and in a session of the page's
// own its input and its end.

import {h, own, set, say, sync, badge, clock, cut, count} from './dom.js';

const maxProcesses = 300;
const maxOutput = 256 * 1024; // characters kept of each

export function processes(app) {
  const all = new Map();  // number of the spawn's entry → process
  const byID = new Map(); // proc_id → process
  let chosen = null;

  const names = h('ul.names');
  const pane = h('section.pane', {'aria-label': 'The chosen process'});
  const note = h('p.empty');
  const start = starter(app, (n) => app.go(`#/processes/${n}`));
  const el = h('div.view', null, h('h2', null, 'Processes'), start.el, note, h('div.two', null, h('div.side', null, names), pane));

  app.log.on((e, msg) => {
    if (e.type === 'proc/spawn/req' && e.role === 'request') spawned(e, msg);
    else if (e.dir === 'host') for (const p of all.values()) p.state = p.state === 'running' ? 'gone' : p.state;
    else if (e.type === 'proc/status/resp') (msg.procs ?? []).forEach(status);
    else if (e.type === 'handshake/resp' && msg.ok) byID.clear();
    const p = e.ex && all.get(e.ex.request.n);
    if (!p || e.ex.request === e) return;
    if (e.type === 'proc/read/event') output(p, msg);
    else if (e.role === 'answer') answered(p, e, msg);
    p.version++;
  });

  function spawned(e, msg) {
    const cmd = Array.isArray(msg.cmd) ? msg.cmd.map(String) : [];
    all.set(e.n, {n: e.n, ts: e.ts, cmd, id: '', pid: 0, state: 'starting', code: null, error: '', chunks: [], size: 0, cutAway: 0, version: 0});
    if (all.size > maxProcesses) all.delete(all.keys().next().value);
  }

  function answered(p, e, msg) {
    if (e.bad) {
      p.state = 'refused';
      p.error = e.bad.message;
    } else {
      p.id = String(msg.proc_id ?? '');
      p.pid = msg.pid;
      if (p.state === 'starting') p.state = 'running';
      byID.set(p.id, p);
    }
  }

  function output(p, msg) {
    const d = msg.data ?? {};
    if (msg.stream_type === 'killed') p.state = 'killed';
    else if (d.code !== undefined) {
      p.code = d.code;
      p.state = d.code === 0 ? 'completed' : 'failed';
    }
    const text = typeof d.text === 'string' ? d.text : typeof d.base64 === 'string' ? `[bytes ${d.base64}]` : '';
    if (!text) return;
    p.chunks.push({err: msg.stream_type === 'stderr', text, at: p.size});
    p.size += text.length;
    while (p.chunks.length > 1 && p.size - p.cutAway > maxOutput) p.cutAway += p.chunks.shift().text.length;
  }

  function status(s) {
    const p = byID.get(s?.proc_id);
    if (!p) return;
    if (typeof s.state === 'string') p.state = s.state;
    if (s.exit_code !== undefined && s.state !== 'running') p.code = s.exit_code;
    p.version++;
  }

  function draw() {
    const list = [...all.values()].reverse();
    say(note, list.length ? '' : 'No process was started. Those of proc/spawn/req are shown here with their output.' + (app.live() ? ' The line above starts one.' : ''));
    note.hidden = list.length > 0;
    if (!chosen && list.length) choose(list[0]);
    sync(names, list, (p) => p.n, (p) => h('li', null, h('a', {href: `#/processes/${p.n}`}, h('code', null, cut(p.cmd.join(' '), 80)), h('span'))), (li, p) => {
      const line = li.firstChild.lastChild;
      const now = stateBadge(p);
      if (line.firstChild?.sign !== now.sign) set(line, now);
      if (p === chosen) li.firstChild.setAttribute('aria-current', 'true');
      else li.firstChild.removeAttribute('aria-current');
    });
    pane.firstChild?.update?.();
  }

  function choose(p) {
    chosen = p;
    set(pane, p ? processPane(app, p) : null);
  }

  return {
    id: 'processes', title: 'Processes', el,
    badge: () => [...all.values()].filter((p) => p.state === 'running').length,
    show(arg) {
      const p = all.get(Number(arg));
      if (p && p !== chosen) choose(p);
      this.wanted = arg && !p ? arg : '';
    },
    update() {
      start.el.hidden = !app.live();
      if (this.wanted) this.show(this.wanted);
      draw();
    },
  };
}

const tones = {running: 'run', completed: 'ok', starting: 'wait', failed: 'bad', killed: 'warn', timedout: 'warn', refused: 'bad', gone: 'off'};
const stateBadge = (p) => badge(own(tones, p.state, 'off'), p.state + (p.code !== null ? `, exit code ${p.code}` : ''));

// starter is the form that starts a program.
function starter(app, started) {
  const line = h('input', {'aria-label': 'Program and arguments', placeholder: 'python3 -c "print(1)"', spellcheck: 'false', autocomplete: 'off'});
  const problem = h('p.problem', {role: 'status'});
  return {el: h('form.inline', {hidden: true, onsubmit: async (ev) => {
    ev.preventDefault();
    const cmd = words(line.value);
    if (typeof cmd === 'string') return say(problem, cmd);
    say(problem, '');
    try {
      const before = app.log.last;
      const answer = await app.session.ask('proc/spawn/req', {cmd});
      if (!answer.ok) return say(problem, String(answer.error));
      const e = app.log.entries.findLast((x) => x.n > before && x.type === 'proc/spawn/resp' && x.ex?.request.src === 'page');
      if (e) started(e.ex.request.n);
    } catch (err) {
      say(problem, err.message);
    }
  }}, line, h('button.primary', null, 'Start'), problem)};
}

// words splits a command line at spaces; quotes keep some together. No shell sees it. It
// returns a text when that cannot be done.
export function words(line) {
  const out = [];
  const pattern = /\s*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([^\s"']+))/gy;
  let end = 0;
  for (let m; (m = pattern.exec(line)); end = pattern.lastIndex) {
    const word = m[1] !== undefined ? m[1].replace(/\\(.)/g, '$1') : m[2] ?? m[3];
    if (out.length && end > 0 && !/^\s/.test(m[0])) out[out.length - 1] += word;
    else out.push(word);
  }
  if (line.slice(end).trim()) return 'A quote is not closed.';
  return out.length ? out : 'Write a program and its arguments.';
}

// processPane shows one process; its output follows as long as its end is in view.
function processPane(app, p) {
  const head = h('p');
  const pre = h('pre.output.tall', {tabindex: 0, role: 'region', 'aria-label': 'Output'});
  const gone = h('p.about');
  const problem = h('p.problem', {role: 'status'});
  const input = h('input', {'aria-label': 'Input for the process', autocomplete: 'off', spellcheck: 'false', placeholder: 'a line for its stdin'});
  const send = (type, fields) => app.session.ask(type, {proc_id: p.id, ...fields}).then((msg) => say(problem, msg.ok === false ? String(msg.error || msg.state) : ''), (err) => say(problem, err.message));
  const controls = h('form.inline', {onsubmit: (ev) => {
    ev.preventDefault();
    send('proc/write/req', {data: input.value + '\n'});
    input.value = '';
  }}, input, h('button', null, 'Send'), h('button', {type: 'button', onclick: () => send('proc/write/req', {data: '', eof: true})}, 'End of input'),
  h('button', {type: 'button', onclick: () => send('proc/kill/req', {signal: 'SIGTERM'})}, 'Terminate'),
  h('button.danger', {type: 'button', onclick: () => send('proc/kill/req', {signal: 'SIGKILL'})}, 'Kill'), problem);
  let drawn = -1;
  let upTo = 0;
  const el = h('div', null, h('h3', null, h('code', null, p.cmd.join(' '))), head, gone, pre, controls);
  el.update = () => {
    controls.hidden = !(app.ready() && p.state === 'running');
    const sign = p.version + p.state;
    if (sign === drawn) return;
    drawn = sign;
    set(head, stateBadge(p), ' ', [clock(p.ts), p.id, p.pid ? `pid ${p.pid}` : '', p.error].filter(Boolean).join(' · '));
    say(gone, p.cutAway ? `The first ${count(p.cutAway, 'character')} are not kept.` : '');
    const atEnd = pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 4;
    for (const c of p.chunks) {
      if (c.at < upTo) continue;
      const span = h(c.err ? 'span.stderr' : 'span', c.err ? {title: 'stderr'} : null, c.text);
      span.at = c.at;
      pre.append(span);
      upTo = c.at + c.text.length;
    }
    while (pre.firstChild && pre.firstChild.at < p.cutAway) pre.firstChild.remove();
    if (atEnd) pre.scrollTop = pre.scrollHeight;
  };
  el.update();
  return el;
}
