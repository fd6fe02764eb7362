// MCP servers: how each one is, as the host last said, and what they told of themselves.

import {h, own, say, table, rows, badge, clock, cut, ms, json} from './dom.js';

const maxServers = 200;

export function mcp(app) {
  const servers = new Map(); // server_id → record
  const health = new Map();  // of fleet announces: id → ok, timeout, error
  const pushes = [];
  let version = 0;
  let drawn = '';
  let asked = 0;

  const again = h('button', {type: 'button', hidden: true, onclick: ask}, 'Ask again');
  const note = h('p.empty', {role: 'status'});
  const t = table('MCP servers', ['Server', 'State', '#Tools', '#Resources', '#Prompts', '#Ping', '#Restarts', 'Transport', 'Version', 'Error']);
  const pushed = table('Notifications of servers', ['Time', 'Server', 'Method', 'Parameters']);
  const pushedHead = h('h3', null, 'Notifications');
  const el = h('div.view', null, h('h2', null, 'MCP servers'), h('p.buttons', null, again), note, t.el, pushedHead, pushed.el);

  app.log.on((e, msg) => {
    if (e.dir === 'host') asked = 0;
    else if (e.type === 'mcp/server/list/resp') for (const s of Array.isArray(msg.servers) ? msg.servers : []) keep(s);
    else if (e.type === 'mcp/server/register/resp' && msg.server) keep(msg.server);
    else if (e.type === 'mcp/server/unregister/resp' && msg.ok) servers.delete(msg.server_id);
    else if (e.type === 'SESSION_ANNOUNCE') for (const [id, state] of Object.entries(msg.mcp_health ?? {})) health.set(id, state);
    else if (e.type === 'mcp/server/push') {
      pushes.push({n: e.n, ts: e.ts, server: String(msg.server_id ?? ''), method: String(msg.method ?? ''), params: cut(json(msg.params), 300)});
      if (pushes.length > 300) pushes.splice(0, 100);
    } else return;
    version++;
  });

  function keep(s) {
    if (!s || typeof s.server_id !== 'string' || (servers.size >= maxServers && !servers.has(s.server_id))) return;
    servers.set(s.server_id, s);
  }

  async function ask() {
    if (!app.ready() || !app.session.caps.has('mcp')) return;
    asked = performance.now();
    try {
      await app.session.ask('mcp/server/list/req', {});
    } catch (err) {
      say(note, err.message);
    }
  }

  const merged = () => [...servers.values(), ...[...health.keys()].filter((id) => !servers.has(id)).map((id) => ({server_id: id, state: health.get(id)}))];
  return {
    id: 'mcp', title: 'MCP', el,
    badge: () => merged().filter((s) => tone(s) === 'bad').length,
    update() {
      again.hidden = !app.ready();
      if (app.ready() && !asked) ask();
      // while a server is on its way the page looks again every two seconds
      if (asked && merged().some((s) => tone(s) === 'run') && performance.now() - asked > 2000) ask();
      const sign = `${version} ${app.session.state}`;
      if (sign === drawn) return;
      drawn = sign;
      const list = merged();
      say(note, list.length ? '' : app.live() ? 'The host has no MCP servers. a2e mcp add NAME -- COMMAND adds one; then start the host again.' : 'No MCP server was listed. mcp/server/list/req asks for them.');
      note.hidden = list.length > 0;
      t.el.hidden = !list.length;
      rows(t, list, (s) => s.server_id, (s) => [s.server_id, badge(tone(s), String(s.state ?? s.status ?? 'unknown')), {num: num(s.tools_count)}, {num: num(s.resources_count)}, {num: num(s.prompts_count)},
        {num: ms([s.last_ping_ms, s.latency_ms].find((v) => Number.isFinite(v) && v > 0))}, {num: num(s.restarts)}, String(s.transport ?? ''), cut([s.server_name, s.server_version].filter(Boolean).join(' '), 60), cut(s.error || s.last_error || '', 300)]);
      pushedHead.hidden = pushed.el.hidden = !pushes.length;
      rows(pushed, pushes.toReversed(), (p) => p.n, (p) => [clock(p.ts), p.server, p.method, p.params]);
    },
  };
}

const num = (v) => Number.isFinite(v) ? v.toLocaleString('en') : '';
const states = {connected: 'ok', ok: 'ok', ready: 'ok', connecting: 'run', installing: 'run', reconnecting: 'warn', timeout: 'warn', disabled: 'off', disconnected: 'off', failed: 'bad', error: 'bad'};
const tone = (s) => (s.error && s.state !== 'connected' ? 'bad' : own(states, s.state ?? s.status, 'wait'));
