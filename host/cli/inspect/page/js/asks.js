// What the host asks its agent while the page is that agent: an approval of a chain, a form
// of an MCP server. Models are not ours to play; such questions are declined.

import {h, set, sync, json} from './dom.js';
import {form} from './form.js';

// asks returns the panel with the questions that are open.
export function asks(app) {
  const el = h('section.asks', {'aria-label': 'Questions of the host', hidden: true});
  return {el, update() {
    const open = app.ready() ? app.session.asks : [];
    el.hidden = open.length === 0;
    sync(el, open, (a) => a.msg.id, (a) => a.msg.type === 'mcp/elicit/req' ? question(app, a.msg) : other(app, a.msg));
  }};
}

async function answer(app, msg, fields, problem) {
  try {
    await app.session.send({a2e: '1.0', type: msg.type.replace(/\/req$/, '/resp'), id: 'page-' + msg.id, req_id: msg.id, ...fields});
  } catch (err) {
    set(problem, err.message);
  }
}

function question(app, msg) {
  const fields = form(msg.requested_schema ?? {type: 'object', properties: {}});
  const problem = h('p.problem', {role: 'status'});
  const respond = (action, content) => answer(app, msg, {action, content}, problem);
  return h('form.card', {onsubmit: (ev) => {
    ev.preventDefault();
    const value = fields.read();
    if (value.ok) respond('accept', value.value);
  }}, h('h3', null, `${msg.server_id || 'The host'} asks`), h('p', null, msg.message), msg.url ? h('p', null, 'Address: ', h('code', null, msg.url)) : null,
  fields.el, h('p.buttons', null, h('button.primary', null, 'Answer'), h('button', {type: 'button', onclick: () => respond('decline', {})}, 'Decline')), problem);
}

function other(app, msg) {
  const problem = h('p.problem', {role: 'status'});
  const answers = {'mcp/root/list/req': {roots: []}};
  const fields = answers[msg.type] ?? {error: 'the inspect page does not answer this', content: {}};
  return h('div.card', null, h('h3', null, `The host asks: ${msg.type}`), h('pre', null, json(msg).slice(0, 2000)),
    h('p.buttons', null, h('button', {type: 'button', onclick: () => answer(app, msg, fields, problem)}, 'Decline')), problem);
}
