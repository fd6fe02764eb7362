// Reading the stream: lines as they come, again after a break, from where it stopped.

// follow reads api/stream?after=N until the record's end. hooks: after() gives N, line(text)
// takes a line and may return {end} or {beat}, state(text, ok) says how the connection is.
export async function follow(hooks) {
  for (let tries = 0; ; tries++) {
    try {
      const answer = await fetch(`api/stream?after=${hooks.after()}`, {cache: 'no-store'});
      if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
      hooks.state('', true);
      if (await read(answer.body.getReader(), (line) => {
        tries = 0;
        return hooks.line(line);
      })) return;
      throw new Error('the stream ended');
    } catch (err) {
      hooks.state(`Connection lost (${err.message}); trying again`, false);
      await new Promise((go) => setTimeout(go, Math.min(5000, 250 * 2 ** tries)));
    }
  }
}

// read takes lines until one says that it is the last. It pauses now and then, so that the
// page stays alive while a long record comes in.
async function read(reader, line) {
  const decoder = new TextDecoder();
  let parts = [];
  let since = performance.now();
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return false;
    const text = decoder.decode(value, {stream: true});
    let from = 0;
    for (let to; (to = text.indexOf('\n', from)) >= 0; from = to + 1) {
      parts.push(text.slice(from, to));
      const whole = parts.length === 1 ? parts[0] : parts.join('');
      parts = [];
      if (whole === '{"reset":true}') { // another record has the name now
        location.reload();
        return new Promise(() => {});
      }
      if (whole && line(whole)?.end) return true;
      if (performance.now() - since > 40) {
        await pause();
        since = performance.now();
      }
    }
    if (from < text.length) parts.push(text.slice(from));
  }
}

const channel = new MessageChannel();
const waiting = [];
channel.port1.onmessage = () => waiting.shift()();

// pause lets the page do what it has to do; unlike a timeout it is not held up in a hidden tab.
const pause = () => new Promise((go) => {
  waiting.push(go);
  channel.port2.postMessage(0);
});
