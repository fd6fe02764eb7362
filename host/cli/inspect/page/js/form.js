// Forms from JSON Schemas: texts, numbers, choices, lists and objects, and plain JSON for
// whatever has no form of its own.

import {h, uid, set} from './dom.js';

const maxDepth = 6;

// form makes the fields of a schema of an object. read() returns {ok, value}, and shows
// what is wrong at the fields.
export function form(schema) {
  const root = object(schema ?? {}, schema ?? {}, 0);
  return {el: root.el, read() {
    const problems = [];
    const value = root.read(problems, true);
    problems[0]?.focus();
    return {ok: problems.length === 0, value};
  }, write: root.write};
}

// resolve follows a reference into the schema that holds it.
function resolve(schema, root) {
  for (let i = 0; i < 8 && typeof schema?.$ref === 'string' && schema.$ref.startsWith('#/'); i++) {
    let at = root;
    for (const part of schema.$ref.slice(2).split('/')) {
      const name = part.replace(/~1/g, '/').replace(/~0/g, '~');
      at = at && Object.hasOwn(at, name) ? at[name] : undefined;
    }
    const {$ref, ...rest} = schema;
    schema = {...at, ...rest};
  }
  return schema && typeof schema === 'object' ? schema : {};
}

// field makes one field; read(problems, required) returns its value or undefined for none.
function field(name, raw, root, required, depth, item = false) {
  const schema = resolve(raw, root);
  let type = schema.type;
  if (Array.isArray(type)) type = type.filter((t) => t !== 'null').length === 1 ? type.find((t) => t !== 'null') : undefined;
  if (depth < maxDepth) {
    if (type === 'object' && schema.properties) return group(name, schema, required, object(schema, root, depth));
    if (type === 'array' && schema.items && !Array.isArray(schema.items)) return group(name, schema, required, list(name, schema, root, depth));
  }
  if (Array.isArray(schema.enum) && schema.enum.length) return choice(name, schema, required, schema.enum);
  if (type === 'boolean') return choice(name, schema, required, [true, false]);
  if (type === 'string') return line(name, schema, required, h('textarea', {rows: 1, spellcheck: 'false'}), (t) => text(t, schema));
  if (type === 'integer' || type === 'number') return line(name, schema, required, h('input', {inputmode: 'decimal', autocomplete: 'off'}), (t) => number(t, type, schema));
  if (item && type === undefined) return line(name, {...schema, type: 'text, or JSON after { [ or "'}, required, h('textarea', {rows: 1, spellcheck: 'false'}), (t) => /^\s*["{[]/.test(t) ? parse(t) : {value: t});
  return line(name, schema, required, h('textarea.code', {rows: 1, spellcheck: 'false', placeholder: 'JSON'}), parse);
}

const wrong = (message) => ({message});

function parse(t) {
  try {
    return {value: JSON.parse(t)};
  } catch (err) {
    return wrong(`this is not valid JSON: ${err.message}`);
  }
}

function text(t, s) {
  if (s.minLength > [...t].length) return wrong(`at least ${s.minLength} characters`);
  if (s.maxLength < [...t].length) return wrong(`at most ${s.maxLength} characters`);
  if (typeof s.pattern === 'string') {
    try {
      if (!new RegExp(s.pattern, 'u').test(t)) return wrong(`it must match ${s.pattern}`);
    } catch { /* a pattern of another dialect: the host decides */ }
  }
  return {value: t};
}

function number(t, type, s) {
  const n = Number(t);
  if (t.trim() === '' || !Number.isFinite(n)) return wrong(type === 'integer' ? 'a whole number, such as 3' : 'a number, such as 0.5');
  if (type === 'integer' && !Number.isInteger(n)) return wrong('a whole number, such as 3');
  if (s.minimum > n) return wrong(`at least ${s.minimum}`);
  if (s.maximum < n) return wrong(`at most ${s.maximum}`);
  if (s.exclusiveMinimum >= n) return wrong(`more than ${s.exclusiveMinimum}`);
  if (s.exclusiveMaximum <= n) return wrong(`less than ${s.exclusiveMaximum}`);
  if (!Number.isSafeInteger(n) && /^-?\d+$/.test(t.trim()) && JSON.rawJSON) return {value: JSON.rawJSON(t.trim())};
  return {value: n};
}

// line is a field with one control; check turns its text into {value} or {message}.
function line(name, schema, required, control, check) {
  const {el, problem} = frame(name, schema, required, control);
  const read = (problems, needed) => {
    problem('');
    const t = control.value;
    if (t === '' && !(required && needed)) return undefined;
    const got = t === '' ? wrong(schema.type === 'string' ? 'required; for an empty text choose "As JSON"' : 'required') : check(t);
    if (!('message' in got)) return got.value;
    problem(got.message);
    problems.push(control);
    return undefined;
  };
  const write = (value) => { control.value = typeof value === 'string' && !control.classList.contains('code') ? value : value === undefined ? '' : JSON.stringify(value); };
  if (schema.default !== undefined && schema.default !== null) control.placeholder = `default ${JSON.stringify(schema.default)}`;
  return {el, read, write};
}

function choice(name, schema, required, values) {
  const control = h('select', null, required ? h('option', {value: ''}, '(choose)') : h('option', {value: ''}, schema.default === undefined || schema.default === null ? '(not set)' : `(default ${JSON.stringify(schema.default)})`),
    values.map((v, i) => h('option', {value: i}, typeof v === 'string' ? v : JSON.stringify(v))));
  const {el, problem} = frame(name, schema, required, control);
  const read = (problems, needed) => {
    const missing = required && needed && control.value === '';
    problem(missing ? 'required' : '');
    if (missing) problems.push(control);
    return control.value === '' ? undefined : values[Number(control.value)];
  };
  return {el, read,
    write: (value) => { control.value = value === undefined ? '' : String(values.findIndex((v) => JSON.stringify(v) === JSON.stringify(value))); }};
}

// frame puts a label, a description and a place for a problem around a control.
function frame(name, schema, required, control) {
  control.id = uid('field');
  const about = h('p.about', {id: control.id + '-about'}, schema.description ?? '');
  const said = h('p.problem', {id: control.id + '-problem'});
  control.setAttribute('aria-describedby', `${about.id} ${said.id}`);
  if (required) control.setAttribute('aria-required', 'true');
  const label = h('label', {for: control.id}, name, h('span.kind', null, ` ${Array.isArray(schema.type) ? schema.type.join(' or ') : schema.type ?? 'any JSON'}`), required ? h('span.required', null, ' required') : null);
  return {el: h('div.field', null, label, about, control, said), problem(message) {
    set(said, message);
    if (message) control.setAttribute('aria-invalid', 'true');
    else control.removeAttribute('aria-invalid');
  }};
}

function group(name, schema, required, inner) {
  const el = h('fieldset', null, h('legend', null, name, h('span.kind', null, ` ${schema.type}`), required ? h('span.required', null, ' required') : null),
    schema.description ? h('p.about', null, schema.description) : null, inner.el);
  return {el, write: inner.write, read: (problems, needed) => {
    const value = inner.read(problems, needed && required);
    return value === undefined && required && needed ? inner.none : value;
  }};
}

function object(schema, root, depth) {
  const needed = new Set(Array.isArray(schema.required) ? schema.required : []);
  const names = Object.keys(schema.properties ?? {});
  names.sort((a, b) => needed.has(b) - needed.has(a));
  const fields = names.map((name) => [name, field(name, schema.properties[name], root, needed.has(name), depth + 1)]);
  const free = schema.properties === undefined || (schema.additionalProperties && schema.additionalProperties !== true) ? line(names.length ? 'further members' : 'value', {type: 'object', description: names.length ? 'Further members, as a JSON object' : 'A JSON object'},
    false, h('textarea.code', {rows: 3, spellcheck: 'false', placeholder: '{ }'}), objectText) : null;
  return {
    none: {},
    el: h('div.fields', null, fields.map(([, f]) => f.el), free?.el),
    read(problems, required) {
      // an object that is optional and has nothing in it is left out, and asks for nothing
      const quiet = fields.map(([name, f]) => [name, f.read([], false)]);
      const filled = quiet.some(([, value]) => value !== undefined) || free?.read([], false) !== undefined;
      const value = Object.create(null);
      for (const [name, f] of fields) {
        const v = f.read(problems, required || filled);
        if (v !== undefined) value[name] = v;
      }
      Object.assign(value, free?.read(problems, false));
      return required || filled ? value : undefined;
    },
    write(value) {
      for (const [name, f] of fields) f.write(value !== null && typeof value === 'object' && Object.hasOwn(value, name) ? value[name] : undefined);
    },
  };
}

function objectText(t) {
  const got = parse(t);
  return 'value' in got && (got.value === null || typeof got.value !== 'object' || Array.isArray(got.value)) ? wrong('a JSON object, such as {"key": 1}') : got;
}

function list(name, schema, root, depth) {
  const items = [];
  const box = h('div.items');
  const addItem = (value) => {
    const f = field(`${name} item`, schema.items, root, true, depth + 1, true);
    f.el.querySelector('.required')?.remove();
    const row = h('div.item', null, f.el, h('button', {type: 'button', 'aria-label': `Remove this item of ${name}`, onclick: () => {
      items.splice(items.indexOf(f), 1);
      row.remove();
      more.focus();
    }}, 'Remove'));
    items.push(f);
    box.append(row);
    if (value !== undefined) f.write(value);
    return f;
  };
  const more = h('button', {type: 'button', onclick: () => addItem().el.querySelector('input, textarea, select, button')?.focus()}, 'Add an item');
  return {
    none: [],
    el: h('div', null, box, more),
    read: (problems) => items.length ? items.map((f) => f.read(problems, true)) : undefined,
    write(value) {
      items.length = 0;
      box.replaceChildren();
      if (Array.isArray(value)) value.slice(0, 200).forEach((v) => addItem(v));
    },
  };
}
