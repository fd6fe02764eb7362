// Showing a JSON value as a tree that opens and closes, bounded at each step.

import {h, set, count} from './dom.js';
import {Digits} from './log.js';

const longText = 400;
const step = 100; // members shown at once

// tree shows a value; open says how many levels are open at first.
export function tree(value, open = 2) {
  return h('div.json', null, node(value, open));
}

function node(value, open, name) {
  const label = name === undefined ? null : [h('span.key', null, name), ': '];
  if (value instanceof Digits) return h('div.leaf', null, label, h('span.number', null, value.source));
  if (typeof value === 'string') return h('div.leaf', null, label, text(value));
  if (value === null || typeof value !== 'object') return h('div.leaf', null, label, h(`span.${value === null ? 'null' : typeof value}`, null, String(value)));
  const list = Array.isArray(value);
  const names = list ? value : Object.keys(value);
  if (names.length === 0) return h('div.leaf', null, label, list ? '[]' : '{}');
  const body = h('div.members');
  const fill = () => {
    if (!body.firstChild) more(body, value, names, list, 0, open - 1);
  };
  const el = h('details', {ontoggle: fill}, h('summary', null, label, h('span.size', null, list ? `[ ${count(names.length, 'item')} ]` : `{ ${count(names.length, 'member')} }`)), body);
  if (open > 0) {
    fill();
    el.open = true;
  }
  return el;
}

function more(body, value, names, list, from, open) {
  const to = Math.min(names.length, from + step);
  for (let i = from; i < to; i++) body.append(list ? node(value[i], open, String(i)) : node(value[names[i]], open, names[i]));
  if (to < names.length) {
    body.append(h('button', {type: 'button', onclick: (ev) => {
      ev.currentTarget.remove();
      more(body, value, names, list, to, open);
    }}, `show ${count(Math.min(step, names.length - to), 'more')} of ${names.length.toLocaleString('en')}`.replace(/more?s of/, 'more of')));
  }
}

// text shows a string, cut when it is long.
function text(value) {
  if (value.length <= longText) return h('span.string', null, JSON.stringify(value));
  const shown = h('span.string', null, JSON.stringify(value.slice(0, longText)).slice(0, -1) + '…');
  const button = h('button', {type: 'button', onclick: () => {
    set(shown, JSON.stringify(value));
    button.remove();
  }}, `show all (${count(value.length, 'character')})`);
  return h('span', null, shown, ' ', button);
}
