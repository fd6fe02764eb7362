// The timeline: all messages in order, with a filter, and the one that is chosen in full.

import {h, own, set, sync, say, ms} from './dom.js';
import {virtualList} from './list.js';
import {detail} from './detail.js';

const marks = {in: '→', out: '←', err: '!', host: '■'};
const ways = {in: 'to the host', out: 'from the host', err: 'the host’s stderr', host: 'the host itself'};

export function timeline(app) {
  const {log} = app;
  const text = h('input', {type: 'search', placeholder: 'Filter by text  ( / )', 'aria-label': 'Filter by text', oninput: later});
  const type = h('select', {'aria-label': 'Filter by type', onchange: filter}, h('option', {value: ''}, 'All types'));
  const role = h('select', {'aria-label': 'Filter by role', onchange: filter}, [['', 'All messages'], ['request', 'Requests'], ['answer', 'Answers'], ['event', 'Events'], ['open', 'Unanswered requests'], ['page', 'Sent by this page']]
    .map(([value, name]) => h('option', {value}, name)));
  const bad = h('input', {type: 'checkbox', onchange: filter});
  const shown = h('span.shown', {role: 'status'});
  const keys = h('p.keys', null, h('kbd', null, 'j'), ' ', h('kbd', null, 'k'), ' move, ', h('kbd', null, '/'), ' filter, ', h('kbd', null, 'Esc'), ' close');
  const list = virtualList({label: 'Messages', height: 28, make: makeRow, fill: fillRow, choose: (e) => app.go(`#/timeline/${e.n}`)});
  const pane = h('section.detail', {'aria-label': 'The chosen message', hidden: true});
  const el = h('div.timeline', null,
    h('div.bar', null, h('div.filters', {role: 'search'}, text, type, role, h('label.check', null, bad, 'errors only')), shown, keys),
    h('div.split', null, list.el, pane));
  let items = log.entries;
  let tested = 0;   // how many entries the filter has seen
  let goneThen = 0;
  let chosen = null;

  let timer = 0;
  function later() {
    clearTimeout(timer);
    timer = setTimeout(filter, 120);
  }

  // test returns what an entry must be, or null when there is no filter.
  function test() {
    const words = text.value.trim();
    const pattern = words && new RegExp(words.replace(/[.*+?^${}()|[\]\\]/g, '\\$&'), 'i');
    const [t, r, b] = [type.value, role.value, bad.checked];
    if (!pattern && !t && !r && !b) return null;
    return (e) => (!b || e.bad !== null) && (!t || e.type === t)
      && (!r || (r === 'open' ? e.role === 'request' && !e.ex.answer : r === 'page' ? e.src === 'page' : e.role === r))
      && (!pattern || pattern.test(e.line));
  }

  function filter() {
    const fits = test();
    items = fits ? log.entries.filter(fits) : log.entries;
    tested = log.entries.length;
    goneThen = log.gone;
    draw();
  }

  function more() {
    const fits = test();
    if (!fits) {
      items = log.entries;
    } else if (goneThen !== log.gone || role.value === 'open') {
      return filter();
    } else {
      items = items.concat(log.entries.slice(tested).filter(fits));
    }
    tested = log.entries.length;
    draw();
  }

  function draw() {
    list.set(items, app.info.mode !== 'record');
    list.select(chosen ? indexOf(chosen.n) : -1);
    say(shown, items.length === log.entries.length ? '' : `${items.length.toLocaleString('en')} shown`);
    sync(type, ['', ...[...log.types.keys()].sort()], (t) => t, (t) => h('option', {value: t}, t || 'All types'));
  }

  // indexOf finds an entry in the list by its number, which rises.
  function indexOf(n) {
    let [low, high] = [0, items.length];
    while (low < high) {
      const mid = (low + high) >> 1;
      if (items[mid].n < n) low = mid + 1;
      else high = mid;
    }
    return items[low]?.n === n ? low : -1;
  }

  function move(by) {
    const at = chosen ? indexOf(chosen.n) : -1;
    const next = items[Math.max(0, Math.min(items.length - 1, at < 0 && Math.abs(by) <= 1 ? 0 : at + by))];
    if (next) app.go(`#/timeline/${next.n}`);
  }

  function close() {
    app.go('#/timeline');
    list.el.focus();
  }

  const moves = {j: 1, k: -1, ArrowDown: 1, ArrowUp: -1, PageDown: 'page', PageUp: '-page', Home: -Infinity, End: Infinity};
  function key(ev) {
    const inPane = pane.contains(ev.target);
    if (ev.key === '/') {
      text.focus();
      text.select();
    } else if (ev.key === 'Escape') {
      close();
    } else if (Object.hasOwn(moves, ev.key) && (!inPane || ev.key === 'j' || ev.key === 'k') && (ev.target === list.el || /^[jk]$/.test(ev.key))) {
      const by = moves[ev.key];
      move(by === 'page' ? list.page() : by === '-page' ? -list.page() : by);
    } else return;
    ev.preventDefault();
  }
  text.addEventListener('keydown', (ev) => {
    if (ev.key === 'Escape') {
      text.value = '';
      filter();
      list.el.focus();
    } else if (ev.key === 'ArrowDown' || ev.key === 'Enter') {
      list.el.focus();
      if (!chosen) move(0);
    }
  });

  function find(n) {
    const all = log.entries;
    const guess = all[n - (all[0]?.n ?? 1)];
    return guess?.n === n ? guess : all.find((e) => e.n === n) ?? null;
  }

  return {
    id: 'timeline', title: 'Timeline', el, key,
    show(arg) {
      const n = Number(arg);
      chosen = arg === '' ? null : find(n);
      pane.hidden = !chosen;
      if (chosen) set(pane, detail(app, chosen, close));
      this.wanted = arg !== '' && !chosen ? arg : '';
    },
    update() {
      if (this.wanted && find(Number(this.wanted))) this.show(this.wanted);
      more();
      pane.firstChild?.update?.();
    },
  };

  function makeRow() {
    const cells = ['time', 'way', 'type', 'title', 'took'].map((name) => h('span.' + name));
    const meter = h('span.meter', {'aria-hidden': 'true'}, h('span.fill'));
    const row = h('div.row', null, cells, meter);
    row.cells = cells;
    row.way = [h('span', {'aria-hidden': 'true'}), h('span.sr')];
    cells[1].append(...row.way);
    row.fill = meter.firstChild;
    return row;
  }

  function fillRow(row, e) {
    const [time, , kind, title, took] = row.cells;
    const chosenEx = chosen?.ex && chosen.ex === e.ex && chosen !== e;
    row.className = `row ${e.dir} ${e.role}${e.bad ? (e.bad.minor ? ' minor' : ' bad') : ''}${chosenEx ? ' same' : ''}${e === chosen ? ' chosen' : ''}`;
    say(time, (e.ts - log.first).toFixed(3));
    say(row.way[0], own(marks, e.dir, '?'));
    say(row.way[1], own(ways, e.dir, e.dir));
    say(kind, e.type);
    say(title, (e.bad && e.type !== 'error' && !e.bad.minor ? `✕ ${e.bad.code} ` : e.bad ? '✕ ' : '') + e.title);
    const latency = e.role === 'request' ? e.ex.ms : null;
    say(took, e.role === 'request' ? (latency === null ? 'no answer' : ms(latency)) : '');
    const share = e.role !== 'request' || latency === null ? 0 : Math.min(1, Math.max(0.02, Math.log10(1 + latency * 10) / 6));
    row.fill.style.width = share * 100 + '%';
  }
}
