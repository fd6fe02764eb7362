// The log: every entry of the stream in order, matched into exchanges of a request with its
// events and its answer. Bounded: of a very long stream the oldest entries go.

import {describe, titleOf} from './dialect.js';

const maxEntries = 400000;
const maxChars = 500e6;

export class Log {
  entries = [];
  types = new Map();   // type → how many
  gone = 0;            // entries that were let go, or that the server had no more
  last = 0;            // number of the last entry, to go on after it
  errors = [];
  first = 0;           // time of the first entry
  #open = new Map();   // key → exchange
  #chars = 0;
  #listeners = [];

  // on has fn(entry, message) called for each entry that comes.
  on(fn) { this.#listeners.push(fn); }

  // take adds a line of the stream; it returns what the line says about the stream itself.
  take(line) {
    let o;
    try {
      o = JSON.parse(line);
    } catch {
      return {broken: true};
    }
    if (o === null || typeof o !== 'object') return {broken: true};
    if (Number.isFinite(o.dropped)) this.gone += o.dropped;
    if (o.dir === undefined) return o;
    if (Number.isFinite(o.n)) {
      if (o.n <= this.last) return o; // seen before the connection broke
      this.last = o.n;
    }
    this.#add(o, line);
    return o;
  }

  #add(o, line) {
    const e = new Entry(o, line, this.last);
    if (o.dropped !== undefined) Object.assign(e, {type: 'dropped', title: `${o.dropped} entries are missing here`});
    else if (o.dir === 'in' || o.dir === 'out') this.#message(e, o);
    else this.#other(e, o);
    this.first ||= e.ts;
    if (e.bad) this.errors.push(e);
    this.entries.push(e);
    this.types.set(e.type, (this.types.get(e.type) ?? 0) + 1);
    this.#chars += line.length;
    for (const fn of this.#listeners) this.#tell(fn, e, o.msg);
    if (this.entries.length > maxEntries || this.#chars > maxChars && this.entries.length > 100) this.#trim();
  }

  // #tell keeps a message of a shape that nobody thought of from ending the stream.
  #tell(fn, e, msg) {
    try {
      fn(e, msg);
    } catch (err) {
      console.error(err);
    }
  }

  #message(e, o) {
    if (o.msg === undefined) {
      const text = String(o.text ?? '');
      if (o.cut) Object.assign(e, {type: 'long line', title: `${o.size} bytes, beginning with ${text.slice(0, 120)}`});
      else Object.assign(e, {type: 'not JSON', title: text.slice(0, 160), bad: {code: 'not JSON', message: text.slice(0, 400)}});
      return;
    }
    const d = describe(e.dir, o.msg);
    Object.assign(e, {type: d.type, role: d.role, proto: d.proto, bad: d.bad});
    if (d.role === 'request') {
      e.ex = {request: e, answer: null, events: 0, last: null, ms: null};
      for (const key of [d.key, ...d.keys ?? []]) this.#open.set(key, e.ex);
    } else if (d.key) {
      this.#join(e, this.#open.get(d.key));
    }
  }

  #join(e, ex) {
    if (!ex) return;
    if (e.role === 'answer') {
      if (ex.answer) return;
      ex.answer = e;
      ex.ms = Math.max(0, (e.ts - ex.request.ts) * 1000);
    } else {
      ex.events++;
      ex.last = e;
    }
    e.ex = ex;
  }

  #other(e, o) {
    if (o.dir === 'err') Object.assign(e, {type: 'stderr', title: String(o.text ?? '').slice(0, 160)});
    else if (o.dir === 'host') {
      const code = o.code === undefined ? '' : `, exit code ${o.code}`;
      const why = typeof o.text === 'string' ? ': ' + o.text.slice(0, 300) : '';
      Object.assign(e, {type: `host ${o.event}`, title: `the host ${o.event}${code}${why}`});
      if (o.event === 'ended' && o.code) e.bad = {code: 'host ended', message: e.title};
    }
  }

  #trim() {
    const n = Math.ceil(this.entries.length / 10);
    for (const e of this.entries.splice(0, n)) {
      this.#chars -= e.line.length;
      this.types.set(e.type, this.types.get(e.type) - 1);
    }
    this.gone += n;
    const oldest = this.entries[0].n;
    for (const [key, ex] of this.#open) if (ex.request.n < oldest && ex.answer) this.#open.delete(key);
    this.errors = this.errors.filter((e) => e.n >= oldest);
  }
}

// Entry is one line of the stream. What it was read from stays, and is read again for the
// little that is shown of it: parsed, a long record would need several times the memory.
class Entry {
  proto = '';
  role = 'note';
  type = '';
  bad = null; // {code, message} of a failure
  ex = null;  // the exchange that it belongs to
  #title;

  constructor(o, line, last) {
    this.n = o.n ?? last;
    this.ts = Number(o.ts) || 0;
    this.dir = String(o.dir);
    this.src = o.src === 'page' ? 'page' : '';
    this.line = line;
  }

  get title() { return this.#title ??= titleOf(JSON.parse(this.line).msg); }
  set title(text) { this.#title = text; }
}

// message reads the message of an entry again. Numbers that would lose digits come as Digits.
export function message(e) {
  const o = JSON.parse(e.line, (key, value, context) => typeof value === 'number' && context?.source && String(value) !== context.source
    ? new Digits(context.source) : value);
  return o.msg ?? o.text ?? o;
}

// Digits is a number as it was written.
export class Digits {
  constructor(source) { this.source = source; }
}

// raw is the message of an entry as the line that it was.
export function raw(e) {
  const at = memberAt(e.line, 'msg');
  if (at < 0) return String(message(e));
  return e.line.slice(at, valueEnd(e.line, at));
}

// memberAt finds where the value of a top-level member begins, or -1.
function memberAt(line, name) {
  let i = line.indexOf('{') + 1;
  while (i > 0 && i < line.length) {
    const q = line.indexOf('"', i);
    if (q < 0) return -1;
    const end = stringEnd(line, q);
    const value = line.indexOf(':', end) + 1;
    const start = value + line.slice(value).search(/\S/);
    if (line.slice(q, end) === `"${name}"`) return start;
    i = valueEnd(line, start);
  }
  return -1;
}

function stringEnd(line, i) {
  for (i++; i < line.length && line[i] !== '"'; i++) if (line[i] === '\\') i++;
  return i + 1;
}

function valueEnd(line, i) {
  let depth = 0;
  for (; i < line.length; i++) {
    const c = line[i];
    if (c === '"') i = stringEnd(line, i) - 1;
    else if (c === '{' || c === '[') depth++;
    else if (c === '}' || c === ']') depth--;
    if (depth < 0 || depth === 0 && c === ',') return i;
    if (depth === 0 && (c === '}' || c === ']')) return i + 1;
  }
  return i;
}
