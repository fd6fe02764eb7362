// The page as an agent: it shakes hands with a host that this server runs, asks, and waits
// for answers, which come by the stream like everything else.

const refused = (code, message, msg) => Object.assign(new Error(message), {code, msg});

export class Session {
  state = 'off';      // off, connecting, ready, refused, ended
  reason = '';
  caps = new Set();   // capabilities that the host accepted
  asks = [];          // questions of the host that wait for the user: entries with their message
  #prefix = 'page-' + Array.from(crypto.getRandomValues(new Uint8Array(4)), (b) => b.toString(16).padStart(2, '0')).join('') + '-';
  #count = 0;
  #waiting = new Map(); // id → {resolve, reject, onEvent}
  #caughtUp = false;

  constructor(app) {
    this.app = app;
    app.log.on((e, msg) => this.#take(e, msg));
  }

  // caughtUp is called when the stream has brought what was there before the page.
  caughtUp() {
    this.#caughtUp = true;
    if (this.state === 'off' && this.app.live()) this.connect();
  }

  // connect opens a session; token is for hosts that ask for one.
  async connect(token = '') {
    this.#become('connecting');
    try {
      await this.ask('handshake/req', {agent_id: 'inspect', agent_caps: [], auth_token: token});
    } catch (err) {
      if (this.state === 'connecting') this.#become(err.code === 'ended' ? 'ended' : 'refused', err.message);
    }
  }

  // ask sends a request and returns its answer; an error is thrown with its code. The
  // promise has the id, for cancel.
  ask(type, fields, onEvent) {
    const id = this.#prefix + ++this.#count;
    const answer = this.#wait(id, {a2e: '1.0', type, id, ...fields}, onEvent);
    answer.id = id;
    return answer;
  }

  // call is ask for JSON-RPC.
  call(method, params) {
    const id = this.#prefix + ++this.#count;
    return this.#wait(id, {jsonrpc: '2.0', id, method, params});
  }

  async #wait(id, msg, onEvent) {
    const answer = new Promise((resolve, reject) => this.#waiting.set(id, {resolve, reject, onEvent}));
    answer.catch(() => {}); // the send may fail first
    try {
      await this.send(msg);
    } catch (err) {
      this.#waiting.delete(id);
      throw err;
    }
    return answer;
  }

  // send sends one message.
  async send(msg) {
    const answer = await post('api/send', JSON.stringify(msg));
    if (!answer.ok) throw refused('send', await reasonOf(answer), null);
  }

  // control starts or stops the host.
  async control(what) {
    const answer = await post('api/' + what, '');
    if (!answer.ok) throw refused(what, await reasonOf(answer), null);
  }

  // json makes a value of YAML or JSON.
  async json(text) {
    try {
      return JSON.parse(text);
    } catch { /* YAML, or wrong: the server says where */ }
    const answer = await post('api/json', text);
    const {value, error} = await answer.json();
    if (error) throw refused('yaml', error, null);
    return value;
  }

  // saved lists the names of the saved chains; with a name it is the text of that one.
  async saved(name = '') {
    const answer = await fetch('api/chains?name=' + encodeURIComponent(name));
    if (!answer.ok) throw refused('chains', await reasonOf(answer), null);
    const {chains, text} = await answer.json();
    return name ? text : chains;
  }

  // answered takes a question of the host off the list.
  answered(id) {
    this.asks = this.asks.filter((a) => a.msg.id !== id);
    this.app.changed();
  }

  #take(e, msg) {
    if (e.dir === 'host') return this.#host(e);
    if (e.type === 'handshake/resp') this.#shook(msg);
    if (e.dir === 'out' && e.role === 'request' && e.proto === 'a2e') {
      this.asks.push({e, msg});
      if (this.asks.length > 20) this.asks.shift();
    }
    if (e.dir === 'in' && e.role === 'answer' && msg?.req_id) this.answered(msg.req_id);
    if (e.dir !== 'out' || msg === undefined) return;
    const id = msg?.jsonrpc ? msg.id : msg?.req_id;
    const waits = this.#waiting.get(id);
    if (!waits) return;
    if (e.role === 'event') return waits.onEvent?.(msg, e);
    this.#waiting.delete(id);
    if (msg.type === 'error') waits.reject(refused(msg.code, msg.message, msg));
    else if (msg.jsonrpc && msg.error) waits.reject(refused(msg.error.code, msg.error.message, msg));
    else waits.resolve(msg);
  }

  #shook(msg) {
    if (msg.ok === true) {
      this.caps = new Set((msg.accepted_caps ?? []).filter((c) => c?.enabled).map((c) => c.capability));
      this.#become('ready');
    } else if (this.state !== 'ready') this.#become('refused', String(msg.reason || 'the host refused the session'));
  }

  #host(e) {
    this.asks = [];
    for (const waits of this.#waiting.values()) waits.reject(refused('ended', 'the host has ended', null));
    this.#waiting.clear();
    if (e.type === 'host ended') return this.#become('ended', e.title);
    this.#become('off');
    if (this.#caughtUp && this.app.live()) queueMicrotask(() => this.state === 'off' && this.connect());
  }

  #become(state, reason = '') {
    this.state = state;
    this.reason = reason;
    this.app.changed();
  }
}

const post = (path, body) => fetch(path, {method: 'POST', headers: {'Content-Type': 'application/json'}, body});

async function reasonOf(answer) {
  try {
    return (await answer.json()).error || `the server answered ${answer.status}`;
  } catch {
    return `the server answered ${answer.status}`;
  }
}
