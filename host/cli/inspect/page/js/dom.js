// Making and updating elements. Whatever comes from a message goes in as a text node or as
// a plain attribute, never as HTML.

// h makes an element: h('p.note', {title: 'x', onclick: f}, 'text', child, …). Children that
// are null or false are left out.
export function h(spec, props, ...kids) {
  const [tag, ...classes] = spec.split('.');
  const el = document.createElement(tag);
  if (classes.length) el.className = classes.join(' ');
  setProps(el, props);
  add(el, kids);
  return el;
}

// svg is h for SVG.
export function svg(spec, props, ...kids) {
  const [tag, ...classes] = spec.split('.');
  const el = document.createElementNS('http://www.w3.org/2000/svg', tag);
  if (classes.length) el.setAttribute('class', classes.join(' '));
  setProps(el, props);
  add(el, kids);
  return el;
}

function setProps(el, props) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) el.addEventListener(name.slice(2), value);
    else el.setAttribute(name, value === true ? '' : String(value));
  }
}

function add(el, kids) {
  for (const kid of kids.flat()) {
    if (kid !== null && kid !== undefined && kid !== false) el.append(kid instanceof Node ? kid : visible(kid));
  }
}

// visible writes characters that could not be seen, or turn the text around, as escapes.
export function visible(text) {
  return String(text).replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g, (c) => '\\u' + c.charCodeAt(0).toString(16).padStart(4, '0'));
}

// own is a member of a table, by a name that anybody may have made up.
export const own = (table, name, otherwise) => typeof name === 'string' && Object.hasOwn(table, name) ? table[name] : otherwise;

// set replaces what an element holds.
export function set(el, ...kids) {
  el.replaceChildren();
  add(el, kids);
  return el;
}

// say changes a text only when it is another one, so that live regions stay quiet.
export function say(el, text) {
  text = visible(text);
  if (el.textContent !== text) el.textContent = text;
}

// sync makes the children of parent those of items, by key, and keeps elements that are
// there already: focus and what was typed survive.
export function sync(parent, items, keyOf, make, update) {
  const old = parent.kept ?? new Map();
  const kept = new Map();
  let at = parent.firstChild;
  for (const item of items) {
    const key = keyOf(item);
    if (kept.has(key)) continue;
    const el = old.get(key) ?? make(item);
    kept.set(key, el);
    update?.(el, item);
    if (el === at) at = at.nextSibling;
    else parent.insertBefore(el, at);
  }
  for (const [key, el] of old) if (kept.get(key) !== el) el.remove();
  parent.kept = kept;
}

let ids = 0;

// uid returns an id that is free in this page.
export const uid = (name) => `${name}-${++ids}`;

// table makes a table with a caption for screen readers; set its rows by sync on .body.
export function table(caption, columns, className = '') {
  const body = h('tbody');
  const el = h('div.scroll', {tabindex: 0, role: 'region', 'aria-label': caption}, h('table', {class: className || null}, h('caption.sr', null, caption),
    h('thead', null, h('tr', null, columns.map((c) => h('th', {scope: 'col', class: c.startsWith('#') ? 'num' : null}, c.replace('#', ''))))), body));
  return {el, body, names: columns.map((c) => c.replace('#', ''))};
}

// rows fills a table with cells; a cell is a text or an element. key(item) names a row. On a narrow screen each row is a card.
export function rows(t, items, key, cells) {
  sync(t.body, items, key, () => h('tr'), (tr, item) => {
    const now = cells(item);
    now.forEach((cell, i) => {
      const td = tr.children[i] ?? tr.appendChild(h('td', {'data-name': t.names[i]}));
      const text = typeof cell === 'object' && cell !== null && 'num' in cell ? cell.num : cell;
      if (text !== cell) td.className = 'num';
      if (text instanceof Node) {
        if (td.firstChild?.sign !== text.sign || text.sign === undefined) set(td, text);
      } else say(td, text ?? '');
    });
  });
}

// badge is a state: a coloured word with a shape before it, so that colour is not needed.
export const shapes = {ok: '●', bad: '✕', run: '◐', wait: '○', warn: '▲', off: '–'};
export function badge(tone, text) {
  text = cut(text, 60);
  const el = h('span', {class: `badge ${tone}`}, h('span.shape', {'aria-hidden': 'true'}, shapes[tone]), text);
  el.sign = `${tone} ${text}`;
  return el;
}

// cut shortens a text for a line.
export function cut(text, max = 160) {
  text = String(text ?? '');
  return text.length > max ? text.slice(0, max - 1) + '…' : text;
}

// ms writes a duration.
export function ms(value) {
  if (!Number.isFinite(value)) return '';
  if (value < 1) return value.toFixed(2) + ' ms';
  if (value < 10) return value.toFixed(1) + ' ms';
  if (value < 1000) return Math.round(value) + ' ms';
  if (value < 60000) return (value / 1000).toFixed(value < 10000 ? 2 : 1) + ' s';
  return Math.floor(value / 60000) + ' min ' + Math.round(value % 60000 / 1000) + ' s';
}

// clock writes a time of day.
export function clock(ts) {
  return Number.isFinite(ts) && ts > 0 && ts < 8e12 ? new Date(ts * 1000).toLocaleTimeString('sv') : '';
}

// count writes a number with its noun: 1 node, 2 nodes.
export const count = (n, noun) => `${n.toLocaleString('en')} ${noun}${n === 1 ? '' : 's'}`;

// json writes a value on one line, whatever it is.
export function json(value) {
  try {
    return JSON.stringify(value) ?? '';
  } catch {
    return String(value);
  }
}
