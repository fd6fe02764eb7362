// One message in full, with the exchange that it belongs to.

import {h, set, say, ms, clock, count} from './dom.js';
import {message, raw} from './log.js';
import {tree} from './json.js';

const roles = {request: 'request', answer: 'answer', event: 'event', note: 'message'};

// detail returns the pane for an entry.
export function detail(app, e, close) {
  const copied = h('span', {role: 'status'});
  const copy = h('button', {type: 'button', onclick: async () => {
    try {
      await navigator.clipboard.writeText(raw(e));
      set(copied, 'Copied');
    } catch {
      set(copied, 'The browser did not allow it');
    }
  }}, 'Copy as a line');
  const from = e.dir === 'in' ? (e.src === 'page' ? 'from this page to the host' : 'to the host') : e.dir === 'out' ? 'from the host' : '';
  const related = h('dl.related');
  const el = h('div', null,
    h('div.headline', null, h('h3', null, e.type), h('button.close', {type: 'button', onclick: close, 'aria-label': 'Close the message'}, '✕')),
    h('p.meta', null, [`number ${e.n}`, clock(e.ts), [roles[e.role], from].filter(Boolean).join(' '), e.proto].filter(Boolean).join(' · ')),
    e.bad ? h('p.failure', null, h('strong', null, e.bad.code), ' ', e.bad.message) : null,
    related, h('p.buttons', null, copy, copied), tree(message(e), 2));
  let sign = '';
  el.update = () => {
    const ex = e.ex;
    const now = ex ? `${ex.events} ${ex.answer?.n} ${ex.last?.n}` : '';
    if (now === sign) return;
    sign = now;
    const link = (x) => h('a', {href: `#/timeline/${x.n}`}, `${x.type} (${x.n})`);
    const parts = [];
    const part = (name, ...what) => parts.push(h('dt', null, name), h('dd', null, what));
    if (ex.request !== e) part('Request', link(ex.request));
    if (ex.events) part('Events', count(ex.events, 'event'), ex.last && ex.last !== e ? [', last ', link(ex.last)] : '');
    if (ex.answer && ex.answer !== e) part('Answer', link(ex.answer));
    if (ex.ms !== null) part('Latency', ms(ex.ms));
    else part('Answer', 'none yet');
    set(related, parts);
  };
  el.update();
  return el;
}
