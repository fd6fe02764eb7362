// What a message means, in each protocol that the pipe carries: whether it is a request, an
// answer, an event or none of these, what it belongs to, and what is wrong with it.

import {cut, json} from './dom.js';

const str = (v) => typeof v === 'string' ? v : v === undefined || v === null ? '' : json(v);

// describe returns {proto, type, role, key, keys, bad}: role is request, answer, event or note;
// key names the exchange it opens or belongs to; bad is {code, message} of a failure.
export function describe(dir, msg) {
  if (msg === null || typeof msg !== 'object' || Array.isArray(msg)) {
    return {proto: '', type: 'not an object', role: 'note', bad: null};
  }
  if (isRPC(msg)) return rpc(dir, msg);
  return isFleet(msg) ? fleet(msg) : a2e(dir, msg);
}

const isRPC = (msg) => msg.jsonrpc !== undefined || (msg.type === undefined && (msg.method !== undefined || msg.result !== undefined));
const isFleet = (msg) => typeof msg.type === 'string' && /^(TASK|SESSION)_/.test(msg.type);

// titleOf says in a line what is in a message.
export function titleOf(msg) {
  let text;
  try {
    if (msg === null || typeof msg !== 'object' || Array.isArray(msg)) text = json(msg);
    else if (isRPC(msg)) text = rpcTitle(msg);
    else if (isFleet(msg)) text = `${str(msg.task?.task_id ?? msg.task_id)} ${str(msg.brief) || str(msg.summary) || str(msg.worker?.agent_id)}`;
    else if (Object.hasOwn(titles, str(msg.type))) text = titles[msg.type](msg);
    else text = str(msg.type).endsWith('/event') ? event(msg) : members(msg);
  } catch {
    text = members(msg); // of a shape that no host sends
  }
  return cut(text.slice(0, 1000).replace(/\s+/g, ' ').trim());
}

function rpcTitle(msg) {
  const p = msg.params ?? {};
  if (msg.method === undefined) return json(msg.result ?? msg.error);
  if (msg.method === 'tools/call') return `${str(p.name)} ${json(p.arguments ?? {})}`;
  if (msg.method === 'event') return `${str(p.type)} ${json(p.payload ?? '')}`;
  return json(p) === '{}' ? '' : json(p);
}

function a2e(dir, msg) {
  const type = str(msg.type) || 'without a type';
  const asked = dir === 'in' ? 'agent:' : 'host:';
  const other = dir === 'in' ? 'host:' : 'agent:';
  const d = {proto: 'a2e', type, role: 'note', key: '', bad: failure(type, msg)};
  if (type === 'cancel' || (dir === 'in' && type.endsWith('/event'))) {
    Object.assign(d, {role: 'event', key: asked + str(msg.req_id)});
  } else if (typeof msg.req_id === 'string' && msg.req_id !== '') {
    d.role = /(\/event|\/push|_EVENT)$/.test(type) ? 'event' : 'answer';
    d.key = other + msg.req_id;
  } else if (dir === 'in' || /(\/req|_REQ)$/.test(type)) {
    if (type !== 'shutdown') Object.assign(d, {role: 'request', key: asked + str(msg.id)});
  }
  return d;
}

function failure(type, msg) {
  const data = msg.data;
  if (type === 'error') return {code: str(msg.code), message: str(msg.message)};
  if (type === 'tool/call/resp' && data && data.success === false) return {code: str(data.error_code) || 'failed', message: str(data.error)};
  if (type === 'chain/event' && msg.phase === 'error') return {code: 'chain_node_error', message: `${str(msg.node_id)}: ${str(msg.error)}`, minor: true};
  if (msg.success === false || msg.ok === false || msg.accepted === false) {
    const e = msg.error;
    return {code: str(e?.code) || 'failed', message: str(e?.message ?? e) || str(msg.reason)};
  }
  if (type === 'skill/call/resp' && msg.error) return {code: str(msg.error.code) || 'skill_error', message: str(msg.error.message ?? msg.error)};
  if (/^(multi_agent\/await\/resp|SUBAGENT_AWAIT_RESP)$/.test(type) && msg.error) return {code: str(msg.status), message: str(msg.error)};
  if (Array.isArray(msg.errors) && msg.errors.length) return {code: 'refused', message: msg.errors.map(str).join('; ')};
  return null;
}

// What of a message says most about it, by its type.
const titles = {
  'handshake/req': (m) => str(m.agent_id), 'handshake/resp': (m) => m.ok ? 'session open' : str(m.reason),
  'tool/call/req': (m) => `${str(m.tool_name)} ${json(m.arguments ?? {})}`, 'tool/call/resp': (m) => `${str(m.data?.tool_name)} ${str(m.data?.summary ?? m.data?.error) || json(m.data?.data)}`,
  'skill/call/req': (m) => `${str(m.name)} ${json(m.arguments ?? {})}`, 'skill/call/resp': (m) => `${str(m.name)} ${json(m.data ?? m.error)}`,
  'proc/spawn/req': (m) => Array.isArray(m.cmd) ? m.cmd.map(str).join(' ') : '', 'proc/spawn/resp': (m) => m.ok ? `${str(m.proc_id)}, pid ${str(m.pid)}` : str(m.error),
  'proc/read/event': (m) => `${str(m.stream_type)} ${str(m.data?.text ?? (m.data?.code !== undefined ? 'exit code ' + m.data.code : ''))}`,
  'proc/write/req': (m) => `${str(m.proc_id)} ${str(m.data)}`, 'proc/kill/req': (m) => `${str(m.proc_id)} ${str(m.signal)}`,
  'memory/store/req': (m) => (m.entries?.length === 1 ? '1 entry' : `${m.entries?.length ?? 0} entries`), 'memory/retrieve/req': (m) => str(m.query) || json(m.keys ?? ''), 'memory/retrieve/resp': (m) => `${m.entries?.length ?? 0} of ${str(m.total)} found`,
  'chain/req': (m) => `${str(m.chain_id)} ${m.nodes?.length ?? 0} nodes`, 'chain/event': (m) => `${str(m.node_id)} ${str(m.phase)} ${str(m.error)}`, 'chain/resp': (m) => m.success ? `${str(m.nodes_run)} nodes run` : str(m.error?.message),
  'error': (m) => `${str(m.code)}: ${str(m.message)}`, 'cancel': (m) => `request ${str(m.req_id)}`,
  'tool/list/resp': (m) => `${m.tools?.length ?? 0} tools`, 'learn/stats/resp': (m) => `${m.components?.length ?? 0} components`, 'mcp/server/list/resp': (m) => `${m.servers?.length ?? 0} servers`,
  'mcp/server/push': (m) => `${str(m.server_id)} ${str(m.method)}`, 'SUBAGENT_EVENT': (m) => `${str(m.subagent_id)} ${str(m.event)} ${str(m.content?.text ?? m.content?.summary)}`,
};

function event(m) {
  const d = m.data ?? {};
  return [str(m.kind), d.pct !== undefined ? str(d.pct) + ' %' : '', str(d.message), str(d.name)].filter(Boolean).join(' ');
}

const envelope = new Set(['a2e', 'version', 'type', 'id', 'ts', 'req_id', 'jsonrpc', 'method', 'auth_token', 'protocol_version', 'seq', 'error']);

function members(m) {
  const parts = [];
  for (const name of Object.keys(m)) {
    if (envelope.has(name) || m[name] === '' || m[name] === null) continue;
    parts.push(`${name} ${cut(str(m[name]), 60)}`);
    if (parts.length === 4) break;
  }
  return parts.join(', ');
}

const rpcID = (v) => v === undefined || v === null ? '' : typeof v + ':' + v;

function rpc(dir, msg) {
  const [me, you] = dir === 'in' ? ['rpc-agent:', 'rpc-host:'] : ['rpc-host:', 'rpc-agent:'];
  const p = msg.params ?? {};
  if (msg.method === undefined) {
    const d = {proto: 'json-rpc', type: msg.error ? 'error' : 'result', role: 'answer', key: you + rpcID(msg.id), bad: null};
    if (msg.error) d.bad = {code: str(msg.error.data?.reason ?? msg.error.code), message: str(msg.error.message)};
    else if (msg.result?.isError) d.bad = {code: 'isError', message: cut(json(msg.result.content), 400)};
    if (msg.id === null || msg.id === undefined) d.role = 'note';
    return d;
  }
  const d = {proto: 'json-rpc', type: str(msg.method), role: 'note', key: '', bad: null};
  if (msg.id !== undefined) {
    Object.assign(d, {role: 'request', key: me + rpcID(msg.id), keys: []});
    if (p._meta?.progressToken !== undefined) d.keys.push(me + 'progress:' + rpcID(p._meta.progressToken));
    if (typeof p.session_id === 'string') d.keys.push(me + 'session:' + p.session_id);
  } else if (msg.method === '$/cancelRequest' || msg.method === 'notifications/cancelled') {
    Object.assign(d, {role: 'event', key: me + rpcID(p.id ?? p.requestId)});
  } else if (msg.method === 'notifications/progress') {
    Object.assign(d, {role: 'event', key: you + 'progress:' + rpcID(p.progressToken)});
  } else if (msg.method === 'event') {
    if (typeof p.payload?.session_id === 'string') Object.assign(d, {role: 'event', key: you + 'session:' + p.payload.session_id});
  }
  return d;
}

function fleet(msg) {
  const id = str(msg.task?.task_id ?? msg.task_id);
  const d = {proto: 'fleet', type: msg.type, role: 'note', key: id && 'task:' + id, bad: null};
  if (msg.type === 'TASK_DISPATCH') d.role = 'request';
  else if (msg.type === 'TASK_RESULT') d.role = 'answer';
  else if (id) d.role = 'event';
  if (msg.type === 'TASK_RESULT' && (msg.status === 'error' || msg.status === 'blocked')) {
    d.bad = {code: str(msg.status), message: str(msg.error) || str(msg.blocked_reason) || str(msg.summary)};
  }
  return d;
}
