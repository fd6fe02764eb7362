// The page: what is there, where to go, and what shows how it stands.

import {h, set, say, count} from './dom.js';
import {Log} from './log.js';
import {follow} from './stream.js';
import {Session} from './session.js';
import {asks} from './asks.js';
import {timeline} from './timeline.js';
import {tools} from './tools.js';
import {processes} from './processes.js';
import {chains} from './chains.js';
import {memory} from './memory.js';
import {mcp} from './mcp.js';
import {learning} from './learning.js';
import {agents} from './agents.js';
import {errors} from './errors.js';

const $ = (id) => document.getElementById(id);

const app = {
  log: new Log(),
  info: {},
  live: () => app.info.mode === 'live' && app.info.can_send !== false,
  ready: () => app.live() && app.session.state === 'ready',
  changed,
  go: (hash) => { location.hash = hash; },
};
app.session = new Session(app);

// Each view: {id, title, el, show(arg), update(), badge?()}; models listen from the start.
const views = [timeline, tools, processes, chains, memory, mcp, learning, agents, errors].map((make) => make(app));
let current = null;
let connection = '';
let complete = false;

let due = false;
function changed() {
  if (due) return;
  due = true;
  // a hidden tab has no frames, and nobody to see them
  requestAnimationFrame(() => {
    due = false;
    head();
    question.update();
    current?.update();
  });
}

const question = asks(app);

function route() {
  let [id, arg = ''] = location.hash.replace(/^#\/?/, '').split('/', 2);
  try {
    arg = decodeURIComponent(arg);
  } catch {
    arg = '';
  }
  const view = views.find((v) => v.id === id) ?? views[0];
  if (view !== current) {
    current = view;
    set($('main'), h('h2.sr', null, view.title), question.el, view.el);
    document.title = `${view.title} · a2e inspect`;
    for (const a of $('nav').querySelectorAll('a')) {
      if (a.dataset.view === view.id) a.setAttribute('aria-current', 'page');
      else a.removeAttribute('aria-current');
    }
    $('nav').querySelector('[aria-current]')?.scrollIntoView({block: 'nearest', inline: 'nearest'});
  }
  view.show?.(arg);
  changed();
}

function navigation() {
  set($('nav'), views.map((v) => {
    const a = h('a', {href: '#/' + v.id}, v.title, h('span.many'));
    a.dataset.view = v.id;
    return a;
  }));
}

function head() {
  const {info, log, session} = app;
  for (const a of $('nav').children) {
    const n = views.find((v) => v.id === a.dataset.view).badge?.() ?? 0;
    say(a.querySelector('.many'), n ? n.toLocaleString('en') : '');
  }
  const states = {off: 'starting', connecting: 'connecting', ready: 'connected', refused: 'refused: ' + session.reason, ended: session.reason};
  const state = info.mode === 'live' ? states[session.state] : info.mode === 'follow' ? 'following' : complete ? 'record, complete' : 'opening the record';
  say($('status'), connection || state);
  $('status').className = connection || session.state === 'refused' ? 'bad' : '';
  say($('source'), [info.file || info.workspace, info.version && 'a2e ' + info.version].filter(Boolean).join(' · '));
  stop.hidden = info.mode !== 'live' || session.state === 'ended';
  start.hidden = info.mode !== 'live' || session.state !== 'ended';
  login.hidden = !(app.live() && session.state === 'refused');
  say(total, count(log.entries.length, 'message') + (log.gone ? `, ${log.gone.toLocaleString('en')} missing` : ''));
}

const control = (what) => app.session.control(what).catch((err) => {
  connection = err.message;
  changed();
});
const stop = h('button', {type: 'button', onclick: () => control('stop')}, 'Stop the host');
const start = h('button.primary', {type: 'button', onclick: () => control('start')}, 'Start the host');
const token = h('input', {type: 'password', 'aria-label': 'Token of the host', placeholder: 'token', autocomplete: 'off'});
const login = h('form', {onsubmit: (ev) => {
  ev.preventDefault();
  app.session.connect(token.value);
}}, token, h('button', null, 'Connect'));
const total = h('span', {id: 'total'});

// The switch of the theme: as the system says, light, dark.
function themes() {
  const select = h('select', {'aria-label': 'Colours', onchange: () => {
    choose(select.value);
    try { localStorage.setItem('theme', select.value); } catch { /* then not */ }
  }}, h('option', {value: ''}, 'Auto'), h('option', {value: 'light'}, 'Light'), h('option', {value: 'dark'}, 'Dark'));
  const choose = (theme) => {
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    dispatchEvent(new Event('themechange'));
  };
  try { select.value = localStorage.getItem('theme') ?? ''; } catch { /* then as the system says */ }
  choose(select.value);
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => dispatchEvent(new Event('themechange')));
  return select;
}

// take takes a line of the stream.
function take(line) {
  const said = app.log.take(line);
  if (said.end) complete = true;
  if (said.beat && !complete) {
    complete = true;
    app.session.caughtUp();
  }
  changed();
  return said;
}

async function begin() {
  navigation();
  $('controls').append(total, login, stop, start, themes());
  addEventListener('hashchange', route);
  addEventListener('keydown', (ev) => {
    if (ev.ctrlKey || ev.metaKey || ev.altKey) return;
    if (!ev.target.closest('input, textarea, select')) current?.key?.(ev);
  });
  const reading = follow({
    after: () => app.log.last,
    line: take,
    state: (text) => {
      connection = text;
      changed();
    },
  });
  try {
    app.info = await (await fetch('api/info', {cache: 'no-store'})).json();
  } catch (err) {
    connection = `The server does not answer (${err.message})`;
  }
  if (complete) app.session.caughtUp();
  route();
  await reading;
  changed();
}

begin();
