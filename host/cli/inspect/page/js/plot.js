// Lines over time, by uPlot, which is loaded when the first plot is drawn.

import {h, set, count} from './dom.js';

let loading = null;

function load() {
  loading ??= new Promise((done, failed) => {
    document.head.append(h('link', {rel: 'stylesheet', href: 'vendor/uPlot.min.css'}),
      h('script', {src: 'vendor/uPlot.iife.min.js', onload: () => done(globalThis.uPlot), onerror: () => failed(new Error('uPlot did not load'))}));
  });
  return loading;
}

const colours = 8;
const dashes = [[], [9, 4]];
const dashOf = (i) => dashes[Math.floor(i / colours) % dashes.length];
const fewPoints = 40; // of a line, each of which is marked

// plot draws the points {ts, name, y} of these names into box, in place of what it showed.
export async function plot(box, {title, low, high, stepped}, names, points) {
  const turn = box.turn = (box.turn ?? 0) + 1;
  const uPlot = await load();
  if (box.turn !== turn) return; // drawn again meanwhile
  box.chart?.destroy();
  box.watch?.disconnect();
  const space = h('div.space');
  set(box, h('figcaption', null, title), space);
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const data = columns(names, points);
  const [first, last] = [data[0][0], data[0].at(-1)];
  const axis = {stroke: colour('--muted'), grid: {stroke: colour('--line'), width: 1}, ticks: {stroke: colour('--line'), width: 1}, font: '12px system-ui, sans-serif'};
  const options = {
    width: Math.max(240, box.clientWidth), height: 220,
    scales: {x: {time: true, range: (u, min, max) => first === last ? [first - 30, first + 30] : [min, max]}, y: {range: (u, min, max) => low !== undefined ? [low, high] : around(min, max)}},
    axes: [{...axis, space: 90, size: 32, values: (u, splits, i, space, step) => splits.map((t) => when(t, step))}, {...axis, size: 44}],
    cursor: {drag: {x: true, y: false}, focus: {prox: 16}}, // the line that is pointed at, or whose name is, stands out
    focus: {alpha: 0.15},
    legend: {markers: {width: 2, dash: (u, i) => dashOf(i - 1).length ? 'dashed' : 'solid'}},
    hooks: {setCursor: [(u) => u.cursor.idx === null && u.setLegend({idx: data[0].length - 1}, false)]},
    series: [{label: 'Time', value: (u, v) => v === null ? '' : new Date(v * 1000).toLocaleString('sv')}, ...names.map((name, i) => ({
      label: name.length > 40 ? name.slice(0, 39) + '…' : name, stroke: colour(`--line-${i % colours + 1}`), width: 2, dash: dashOf(i), spanGaps: true,
      paths: stepped ? uPlot.paths.stepped({align: 1}) : undefined, points: {size: 5, show: points.length <= fewPoints * names.length},
      value: (u, v, s, idx) => number(u.data[s], idx)}))],
  };
  box.chart = new uPlot(options, data, space);
  box.chart.setLegend({idx: data[0].length - 1}, false); // the last values, until a point is looked at
  const canvas = space.querySelector('canvas');
  canvas.setAttribute('role', 'img');
  canvas.setAttribute('aria-label', `${title}: ${count(names.length, 'component')}, ${count(points.length, 'point')}; the table below has the figures`);
  box.watch = new ResizeObserver(() => box.chart.setSize({width: Math.max(240, box.clientWidth), height: 220}));
  box.watch.observe(box);
}

// around leaves some room at both ends of what there is.
function around(min, max) {
  const room = Math.max(0.1 * (max - min), 0.05);
  return [min - room, max + room];
}

// number is the value of a line at a point, or the last one before it.
function number(line, idx) {
  while (idx > 0 && line[idx] === null) idx--;
  const v = line?.[idx];
  return v === null || v === undefined ? '' : v.toFixed(3);
}

// when writes a time of the axis, as short as the step to the next allows.
function when(t, step) {
  const d = new Date(t * 1000);
  if (step >= 86400) return d.toLocaleDateString('sv');
  if (step < 1) return d.toLocaleTimeString('sv') + (t % 1).toFixed(2).slice(1);
  return (last24(t) ? '' : d.toLocaleDateString('sv').slice(5) + ' ') + d.toLocaleTimeString('sv').slice(0, step >= 60 ? 5 : 8);
}

const last24 = (t) => Math.abs(Date.now() / 1000 - t) < 86400;

// columns turns points into one column of times and one of values for each name.
function columns(names, points) {
  const times = [...new Set(points.map((p) => p.ts))].sort((a, b) => a - b);
  const at = new Map(times.map((t, i) => [t, i]));
  const lines = new Map(names.map((name) => [name, new Array(times.length).fill(null)]));
  for (const p of points) {
    const line = lines.get(p.name);
    if (line) line[at.get(p.ts)] = p.y;
  }
  return [times, ...lines.values()];
}
