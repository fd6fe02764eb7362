// All that went wrong: errors, failed calls, lines that are no messages.

import {h, table, rows, clock, cut, say, count} from './dom.js';

export function errors(app) {
  const t = table('Errors', ['Time', 'Code', 'Message', 'Request', 'Entry']);
  const note = h('p.empty');
  const el = h('div.view', null, h('h2', null, 'Errors'), note, t.el);
  let drawn = null;
  return {
    id: 'errors', title: 'Errors', el,
    badge: () => app.log.errors.filter((e) => !e.bad.minor).length,
    update() {
      const all = app.log.errors;
      const sign = `${all.length} ${all.at(-1)?.n}`;
      if (sign === drawn) return;
      drawn = sign;
      const shown = all.slice(-1000).reverse();
      say(note, all.length === 0 ? 'Nothing has gone wrong. Requests that were answered by an error, and results that say they failed, are listed here.' : all.length > shown.length ? `The last ${shown.length.toLocaleString('en')} of ${count(all.length, 'error')}, the newest first.` : '');
      note.hidden = note.textContent === '';
      t.el.hidden = all.length === 0;
      rows(t, shown, (e) => e.n, (e) => [clock(e.ts), code(e), cut(e.bad.message, 600), about(e), link(e, `${e.type} (${e.n})`)]);
    },
  };
}

const code = (e) => {
  const el = h('code.bad', null, e.bad.code);
  el.sign = e.bad.code;
  return el;
};

function link(e, text) {
  const el = h('a', {href: `#/timeline/${e.n}`}, text);
  el.sign = e.n + text;
  return el;
}

const about = (e) => e.ex && e.ex.request !== e ? link(e.ex.request, `${e.ex.request.type} ${cut(e.ex.request.title, 80)}`) : '';
