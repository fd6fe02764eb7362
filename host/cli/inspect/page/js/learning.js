// Learning: the record of each component, and its weight, worth and score over time.

import {h, say, table, rows, ms, clock} from './dom.js';
import {plot} from './plot.js';

const maxPoints = 20000; // of one plot, all components together
const maxLines = 16;     // components in the plots: the busiest

const kinds = [
  {id: 'weight', title: 'Routing weight (1 is neutral)', field: 'routing_weight', stepped: true},
  {id: 'score', title: 'Score: mean of the feedback so far, −1 to 1', field: 'avg_score', low: -1, high: 1},
  {id: 'worth', title: 'Worth when weights were adapted, 0 to 1', field: 'worth', low: 0, high: 1, stepped: true},
];

export function learning(app) {
  const records = new Map(); // kind and name → the last record
  const seen = {weight: [], score: [], worth: []}; // points {ts, name, y} from the stream
  let kept = null;           // points that the host keeps, from before this stream too
  let version = 0;
  let drawn = '';
  let asked = 0;

  const again = h('button', {type: 'button', onclick: ask}, 'Ask again');
  const adapt = h('button', {type: 'button', onclick: adaptNow}, 'Adapt the weights now');
  const note = h('p.empty', {role: 'status'});
  const plots = kinds.map((k) => ({...k, box: h('figure.plot', {hidden: true})}));
  const t = table('Components', ['Component', 'Kind', '#Calls', '#Failed', '#Success', '#Mean', '#p95', '#Score', '#Feedback', '#Reward', '#Weight', 'Last call']);
  const buttons = h('p.buttons', null, again, adapt);
  const el = h('div.view', null, h('h2', null, 'Learning'), buttons, note, h('div.plots', null, plots.map((p) => p.box)), t.el);

  app.log.on((e, msg) => {
    if (e.dir === 'host') asked = 0;
    const list = e.type === 'learn/stats/resp' ? msg.components : e.type === 'learn/adapt/resp' || e.type === 'learn/feedback/resp' ? msg.updated : null;
    if (!Array.isArray(list)) return;
    for (const c of list) take(e, c);
    if (Array.isArray(msg.history)) kept = msg.history;
    version++;
  });

  function take(e, c) {
    if (!c || typeof c.component_name !== 'string') return;
    const name = `${c.kind ?? ''} ${c.component_name}`.trim();
    records.set(name, c);
    if (records.size > 2000) records.delete(records.keys().next().value);
    if (Number.isFinite(c.routing_weight)) point('weight', e.ts, name, c.routing_weight);
    if (c.feedback_count > 0 && Number.isFinite(c.avg_score)) point('score', e.ts, name, c.avg_score);
  }

  function point(kind, ts, name, y) {
    seen[kind].push({ts, name, y});
    if (seen[kind].length > maxPoints) seen[kind].splice(0, maxPoints / 10);
  }

  // points returns what a plot shows: what the host keeps, where it says, else what passed by.
  function points(k) {
    if (!kept?.length) return seen[k.id];
    return kept.filter((p) => p && Number.isFinite(p[k.field]) && Number.isFinite(p.ts)).slice(-maxPoints)
      .map((p) => ({ts: p.ts, name: `${p.kind} ${p.component_name}`, y: p[k.field]}));
  }

  async function ask() {
    if (!app.ready() || !app.session.caps.has('learning')) return;
    asked = performance.now();
    await app.session.ask('learn/stats/req', {history: true}).catch((err) => say(note, err.message));
  }

  async function adaptNow() {
    try {
      const answer = await app.session.ask('learn/adapt/req', {});
      await ask();
      say(note, String(answer.message ?? ''));
      note.hidden = false;
    } catch (err) {
      say(note, err.message);
    }
  }

  function drawPlots() {
    for (const p of plots) {
      const all = points(p);
      const busy = new Map();
      for (const x of all) busy.set(x.name, (busy.get(x.name) ?? 0) + 1);
      const names = [...busy.keys()].sort((a, b) => busy.get(b) - busy.get(a) || a.localeCompare(b, 'en', {numeric: true})).slice(0, maxLines);
      p.box.hidden = names.length === 0;
      if (names.length) plot(p.box, p, names, all);
    }
  }

  addEventListener('themechange', () => {
    drawn = '';
    app.changed();
  });
  return {
    id: 'learning', title: 'Learning', el,
    show() {
      if (app.ready()) ask();
    },
    update() {
      buttons.hidden = !app.ready();
      if (app.ready() && !asked) ask();
      const sign = `${version} ${app.session.state}`;
      if (sign === drawn) return;
      drawn = sign;
      say(note, records.size ? '' : 'Nothing was learned or asked for yet. Each call of a tool counts; weights come from learn/adapt/req and scores from feedback.');
      note.hidden = records.size > 0;
      t.el.hidden = !records.size;
      drawPlots();
      rows(t, [...records.entries()].sort(([, a], [, b]) => (b.calls_total ?? 0) - (a.calls_total ?? 0)).slice(0, 500), ([name]) => name, ([, c]) => [
        c.component_name, String(c.kind ?? ''), num(c.calls_total), num(c.calls_failed), {num: c.calls_total > 0 ? Math.round(100 * c.calls_success / c.calls_total) + ' %' : ''},
        {num: c.calls_total > 0 ? ms(c.avg_duration_ms) : ''}, {num: c.calls_total > 0 ? ms(c.p95_duration_ms) : ''}, {num: c.feedback_count ? fixed(c.avg_score) : ''}, num(c.feedback_count), {num: c.reward_count ? fixed(c.reward_mean) : ''}, {num: fixed(c.routing_weight)}, clock(c.last_called)]);
    },
  };
}

const num = (v) => ({num: Number.isFinite(v) ? v.toLocaleString('en') : ''});
const fixed = (v) => Number.isFinite(v) ? v.toFixed(2) : '';
