// Memory: search and list what is kept, and what this session stored and found.

import {h, set, say, table, rows, clock, cut, json, count} from './dom.js';

const maxSeen = 1000;

export function memory(app) {
  const seen = []; // {n, ts, what, key, text, tags, tier}
  let version = 0;
  let drawn = -1;
  let drawnFound = null;
  let found = null; // the last answer to a search here
  let at = null;   // where the search was done: session and namespace

  const query = h('input', {type: 'search', placeholder: 'What it says; empty lists the newest', 'aria-label': 'Query'});
  const space = h('input', {placeholder: 'default', 'aria-label': 'Namespace', size: 10});
  const tier = h('select', {'aria-label': 'Tier'}, [['', 'All tiers'], ['working', 'working'], ['episodic', 'episodic'], ['semantic', 'semantic']].map(([v, name]) => h('option', {value: v}, name)));
  const tags = h('input', {placeholder: 'tags, with commas', 'aria-label': 'Tags', size: 14});
  const search = h('form.inline', {role: 'search', hidden: true, onsubmit: (ev) => {
    ev.preventDefault();
    ask();
  }}, query, tier, tags, space, h('button.primary', null, 'Search'));
  const said = h('p', {role: 'status'});
  const hits = table('Entries found', ['#Score', 'Key', 'Content', 'Tags', 'Tier', 'Updated']);
  const seenNote = h('p.empty');
  const passed = table('Stored and found', ['Time', 'What', 'Key', 'Content', 'Tags', 'Tier']);
  hits.el.hidden = true;
  const el = h('div.view', null, h('h2', null, 'Memory'), search, said, hits.el, h('h3', null, 'Stored and found in this stream'), seenNote, passed.el);

  app.log.on((e, msg) => {
    if (e.dir === 'host' || e.type === 'handshake/resp') at = null;
    if (e.type === 'memory/store/req') for (const x of list(msg.entries)) note(e, 'stored', x);
    else if (e.type === 'memory/retrieve/resp') for (const x of list(msg.entries)) note(e, 'found', x);
    else if (e.type === 'memory/forget/resp') note(e, 'forgot', {content: count(Number(msg.deleted) || 0, 'entry').replace('entrys', 'entries')});
  });

  function note(e, what, x) {
    seen.push({n: e.n + ':' + version++, ts: e.ts, what, ...entry(x), link: e.n});
    if (seen.length > maxSeen * 1.2) seen.splice(0, seen.length - maxSeen);
  }

  async function ask() {
    say(said, 'Searching');
    try {
      if (at?.space !== space.value) at = {space: space.value, id: (await app.session.ask('memory/init/req', space.value ? {namespace: space.value} : {})).memory_id};
      const fields = {memory_id: at.id, limit: 100};
      if (query.value) fields.query = query.value;
      if (tier.value) fields.tier = tier.value;
      const names = tags.value.split(',').map((t) => t.trim()).filter(Boolean);
      if (names.length) fields.tags = names;
      found = await app.session.ask('memory/retrieve/req', fields);
      say(said, `${list(found.entries).length} of ${(found.total ?? 0).toLocaleString('en')} found`);
    } catch (err) {
      found = null;
      say(said, `${err.code}: ${err.message}`);
    }
    app.changed();
  }

  return {
    id: 'memory', title: 'Memory', el,
    update() {
      search.hidden = !app.ready();
      hits.el.hidden = !found || !list(found.entries).length;
      if (found && found !== drawnFound) {
        drawnFound = found;
        rows(hits, list(found.entries).map((x, i) => ({i, x})), (r) => `${r.i}`, ({x}) => {
          const c = entry(x);
          return [{num: Number.isFinite(x?.score) ? x.score.toFixed(3) : ''}, c.key, content(c.text), c.tags, c.tier, clock(x?.updated_at)];
        });
      }
      if (drawn === version) return;
      drawn = version;
      say(seenNote, seen.length ? (seen.length > 300 ? `The last 300 of ${seen.length.toLocaleString('en')}, the newest first.` : '') : 'Nothing was stored or found. What agents store by memory/store/req and find by memory/retrieve/req is listed here.' + (app.ready() ? ' The search above looks at what is kept.' : ''));
      seenNote.hidden = seenNote.textContent === '';
      passed.el.hidden = !seen.length;
      rows(passed, seen.slice(-300).reverse(), (s) => s.n, (s) => [link(s), s.what, s.key, content(s.text), s.tags, s.tier]);
    },
  };
}

const list = (v) => Array.isArray(v) ? v : [];

function entry(x) {
  return {key: x?.key === undefined ? '' : cut(json(x.key), 200), text: typeof x?.content === 'string' ? x.content : json(x?.content), tags: list(x?.tags).map(String).join(', '), tier: String(x?.tier ?? '')};
}

// content shows a text, cut when it is long, with a way to see all of it.
function content(text) {
  if (text.length <= 240) return text;
  const el = h('span', null, text.slice(0, 240) + '… ');
  el.append(h('button', {type: 'button', onclick: () => set(el, text)}, `show all (${count(text.length, 'character')})`));
  el.sign = text;
  return el;
}

function link(s) {
  const el = h('a', {href: `#/timeline/${s.link}`}, clock(s.ts));
  el.sign = s.n;
  return el;
}
