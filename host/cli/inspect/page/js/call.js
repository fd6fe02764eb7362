// A call made from the page: its progress, its events and its answer as they come.

import {h, set, say, badge, ms, json} from './dom.js';
import {tree} from './json.js';

const maxLines = 500;

// call sends a request that streams and returns an element that shows what becomes of it.
export function call(app, type, fields) {
  const state = h('span', {role: 'status'}, badge('run', 'running'));
  const took = h('span.took');
  const bar = h('progress', {max: 100, 'aria-label': 'Progress', hidden: true});
  const lines = h('pre.output', {tabindex: 0, role: 'region', 'aria-label': 'Events of the call', hidden: true});
  const body = h('div');
  const stop = h('button', {type: 'button', onclick: () => app.session.send({a2e: '1.0', type: 'cancel', id: 'page-cancel', req_id: answer.id}).catch((err) => say(took, err.message))}, 'Cancel');
  const head = h('p.result-head', null, state, took, stop);
  const el = h('section.result', {'aria-label': 'Result'}, head, bar, lines, body);
  const began = performance.now();
  const answer = app.session.ask(type, fields, (msg) => event(msg, bar, lines));
  const end = (tone, text, ...what) => {
    stop.remove();
    bar.hidden = true;
    set(state, badge(tone, text));
    say(took, ms(performance.now() - began));
    set(body, what);
  };
  answer.then((msg) => {
    const data = msg.data ?? msg;
    if (data.success === false) end('bad', 'failed', h('p.failure', null, h('strong', null, String(data.error_code ?? 'failed')), ' ', String(data.error ?? '')), tree(data.data ?? data, 3));
    else end('ok', 'done', data.summary ? h('p', null, String(data.summary)) : null, plain(data.data), tree(data.data ?? data, 3));
  }, (err) => end('bad', err.code === 'cancelled' ? 'cancelled' : 'error', h('p.failure', null, h('strong', null, String(err.code ?? 'error')), ' ', err.message),
    err.msg?.detail && Object.keys(err.msg.detail).length ? tree(err.msg.detail, 3) : null));
  return el;
}

// plain shows the long text of a result as text, beside its JSON.
function plain(data) {
  if (!data || typeof data !== 'object') return null;
  const texts = ['content', 'stdout', 'text', 'stderr'].filter((name) => typeof data[name] === 'string' && data[name].includes('\n'));
  return texts.map((name) => h('figure', null, h('figcaption', null, name), h('pre.output', {tabindex: 0, role: 'region', 'aria-label': name}, data[name].slice(0, 100000))));
}

function event(msg, bar, lines) {
  const d = msg.data ?? {};
  let text = '';
  if (msg.kind === 'progress') {
    bar.hidden = false;
    if (Number.isFinite(d.pct)) bar.value = d.pct;
    text = [d.pct !== undefined && `${d.pct} %`, d.message].filter(Boolean).join(' ');
  } else if (msg.kind === 'artifact') text = `artifact ${d.name} (${d.mime})`;
  else text = String(d.message ?? json(d));
  if (!text) return;
  lines.hidden = false;
  lines.append(h(d.stream === 'stderr' || d.level === 'error' ? 'span.stderr' : 'span', null, text.endsWith('\n') ? text : text + '\n'));
  while (lines.childNodes.length > maxLines) lines.firstChild.remove();
  lines.scrollTop = lines.scrollHeight;
}
