// The picture of a chain: its nodes in layers, by what must be there before what.

import {graphlib, layout} from '../vendor/dagre.esm.js';
import {h, svg, cut, ms, shapes} from './dom.js';
import {stateOf} from './chains.js';

const maxDrawn = 300;
const [width, height] = [168, 58];

// draw lays out the nodes of a request. update(states) shows how they stand.
export function draw(nodes, states) {
  const list = (Array.isArray(nodes) ? nodes : []).filter((n) => n && typeof n.node_id === 'string');
  if (list.length === 0) return {el: h('p.empty', null, 'The request has no nodes of its own.'), update() {}};
  if (list.length > maxDrawn) return {el: h('p.empty', null, `${list.length} nodes are too many for a picture; the table has the first 500.`), update() {}};
  const g = new graphlib.Graph();
  g.setGraph({rankdir: 'LR', nodesep: 18, ranksep: 46, marginx: 8, marginy: 8});
  g.setDefaultEdgeLabel(() => ({}));
  // names of the page's own: those of a chain could be __proto__
  const index = new Map(list.map((n, i) => [n.node_id, 'n' + i]));
  for (const name of index.values()) g.setNode(name, {width, height});
  const edges = edgesOf(list);
  for (const e of edges) g.setEdge(index.get(e.from), index.get(e.to));
  layout(g);
  const {width: w, height: t} = g.graph();
  const boxes = new Map([...index].map(([id, name]) => [id, box(id, list.find((n) => n.node_id === id), g.node(name))]));
  const el = svg('svg', {width: w, height: t, viewBox: `0 0 ${w} ${t}`, role: 'img', 'aria-label': `Graph of ${list.length} nodes; the table below says how each stands`},
    svg('defs', null, svg('marker', {id: 'tip', viewBox: '0 0 8 8', refX: 8, refY: 4, markerWidth: 7, markerHeight: 7, orient: 'auto'}, svg('path.tip', {d: 'M0 0L8 4L0 8z'}))),
    edges.map((e) => edge(e, g.edge(index.get(e.from), index.get(e.to)))), [...boxes.values()].map((b) => b.el));
  const update = (now) => {
    for (const [id, b] of boxes) if (now.has(id)) b.show(now.get(id));
  };
  update(states);
  return {el, update};
}

function edge(e, at) {
  const [first, ...rest] = at.points;
  const middle = at.points[Math.floor(at.points.length / 2)];
  return svg('g', {class: e.label ? 'edge named' : 'edge'}, svg('path', {d: `M${first.x} ${first.y}` + rest.map((p) => `L${p.x} ${p.y}`).join(''), 'marker-end': 'url(#tip)'}),
    e.label ? svg('text', {x: middle.x, y: middle.y - 4, 'text-anchor': 'middle'}, e.label) : null);
}

function box(id, n, at) {
  const state = svg('text.state', {x: 10, y: 48});
  const el = svg('g', {class: 'node off', transform: `translate(${at.x - width / 2} ${at.y - height / 2})`}, svg('title', null, id),
    svg('rect', {width, height, rx: n.kind === 'branch' ? 20 : 6}),
    svg('text.id', {x: 10, y: 18}, cut(id, 18)), svg('text.kind', {x: 10, y: 33}, cut([n.kind, n.name].filter((x) => typeof x === 'string').join(' '), 24)), state);
  return {el, show(s) {
    const {state: word, tone} = stateOf(s);
    el.setAttribute('class', 'node ' + tone);
    const text = `${shapes[tone]} ${word}${s.took !== null ? ' ' + ms(s.took) : ''}`;
    if (state.textContent !== text) state.textContent = text;
  }};
}

// edgesOf finds what leads to what: by the fields that name a node, and by expressions.
export function edgesOf(list) {
  const ids = new Set(list.map((n) => n.node_id));
  const edges = new Map();
  const link = (from, to, label = '') => {
    if (from === to || !ids.has(from) || !ids.has(to)) return;
    const key = JSON.stringify([from, to]);
    if (!edges.has(key)) edges.set(key, {from, to, label});
    else if (label && !edges.get(key).label) edges.get(key).label = label;
  };
  for (const n of list) {
    link(n.node_id, n.true_node, 'true');
    link(n.node_id, n.false_node, 'false');
    link(n.node_id, n.next_node);
    link(n.node_id, n.on_error, 'error');
    link(n.node_id, n.catch?.node ?? n.catch, 'error');
    link(n.node_id, n.map_node, 'each');
    for (const d of Array.isArray(n.deps) ? n.deps : []) link(d, n.node_id);
    for (const text of expressions(n)) for (const name of namesIn(text)) if (name !== n.map_node) link(name, n.node_id);
  }
  return [...edges.values()];
}

function expressions(n) {
  const values = n.input_map && typeof n.input_map === 'object' ? Object.values(n.input_map) : [];
  return [...values, n.condition, n.items_path, n.cache?.key, n.until].filter((v) => typeof v === 'string' && v.length < 10000);
}

// namesIn finds the words of an expression that may be nodes: not those after a dot, in a
// literal, or before a bracket, which are functions.
function* namesIn(text) {
  const bare = text.replace(/'(?:[^'\\]|\\.)*'|`(?:[^`\\]|\\.)*`/g, ' ').replace(/\$\./g, ' ');
  for (const m of bare.matchAll(/(\.\s*)?(?:"((?:[^"\\]|\\.)*)"|([\p{L}_][\p{L}\p{N}_-]*))(\s*[(:])?/gu)) {
    if (!m[1] && !(m[4] ?? '').endsWith('(')) yield m[2] ?? m[3];
  }
}
