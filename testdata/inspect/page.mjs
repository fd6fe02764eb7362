// Drives the page of `a2e inspect` in a headless Chromium: node page.mjs LIVE RECORD HOSTILE BIG,
// the addresses of a page with a host of its own, of a session's record, of one made to do
// harm, and of one with 100,000 messages. It says what is wrong and ends with 1. Where
// A2E_SHOTS names a folder, it keeps pictures there.

import assert from 'node:assert/strict';
import {readFileSync} from 'node:fs';
import {createRequire} from 'node:module';
import {chromium} from 'playwright-core';

const [live, record, hostile, big] = process.argv.slice(2);
const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const browser = await chromium.launch({executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: ['--no-sandbox', '--headless=new', '--disable-dev-shm-usage'], timeout: 120000});
const wrong = [];

// open opens a page of which every error counts.
async function open(url, {width = 1280, height = 860, scheme = 'light'} = {}) {
  const context = await browser.newContext({viewport: {width, height}, colorScheme: scheme, reducedMotion: 'reduce'});
  await context.addInitScript(() => addEventListener('securitypolicyviolation', (e) => console.error(`CSP: ${e.violatedDirective} ${e.blockedURI} ${e.sourceFile}`)));
  const page = await context.newPage();
  page.setDefaultTimeout(Number(process.env.A2E_PATIENCE ?? 120000));
  page.on('console', (m) => ['error', 'warning'].includes(m.type()) && wrong.push(`${url}: console: ${m.text()}`));
  page.on('pageerror', (e) => wrong.push(`${url}: ${e.stack}`));
  page.on('request', (r) => new URL(r.url()).origin === new URL(url).origin || wrong.push(`${url} asks for ${r.url()}`));
  await page.goto(url);
  return page;
}

const to = (page, hash) => page.evaluate((h) => { location.hash = h; }, hash);
const until = (page, f, arg) => page.waitForFunction(f, arg, {polling: 100});
const has = (page, where, text) => page.locator(where).filter({hasText: text}).first().waitFor();
const shot = (page, name) => process.env.A2E_SHOTS && page.screenshot({path: `${process.env.A2E_SHOTS}/${name}.png`});

// accessible holds the page against all rules of axe, in both colours.
async function accessible(page, name, schemes = ['light', 'dark']) {
  for (const scheme of schemes) {
    await page.emulateMedia({colorScheme: scheme});
    await page.evaluate(axe);
    const {violations} = await page.evaluate(() => globalThis.axe.run());
    for (const v of violations) wrong.push(`axe, ${name}, ${scheme}: ${v.id}: ${v.help}: ${v.nodes.slice(0, 3).map((n) => n.html.slice(0, 160) + ' ' + (n.any[0]?.message ?? '')).join('\n  ')}`);
  }
  await page.emulateMedia({colorScheme: 'light'});
}

// narrow holds that nothing is wider than a telephone.
async function narrow(page, name) {
  const [is, may] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
  if (is > may) wrong.push(`${name}: ${is} px wide in a window of ${may}`);
}

const steps = {
  async 'a tool is called by its form'() {
    const page = await open(live + '#/tools/grep');
    await has(page, '#status', 'connected');
    await has(page, '.pane h3', 'grep');
    await page.click('button:text-is("Call")');
    await has(page, '.problem', 'required');
    assert.equal(await page.evaluate(() => document.activeElement.getAttribute('aria-invalid')), 'true', 'the first wrong field has no focus');
    await page.getByLabel('pattern', {exact: false}).first().fill('x');
    await page.getByLabel('limit', {exact: false}).fill('many');
    await page.click('button:text-is("Call")');
    await has(page, '.problem', 'a whole number');
    await to(page, '#/tools/echo');
    await has(page, '.pane h3', 'echo');
    await page.locator('.pane textarea').first().fill('<b>seen</b>');
    await page.keyboard.press('Control+Enter');
    await has(page, '.result .badge.ok', 'done');
    await has(page, '.result .json', '<b>seen</b>');
    await to(page, '#/tools/run_command');
    await has(page, '.pane h3', 'run_command');
    for (const word of ['sh', '-c', 'echo out; echo err >&2; exit 3']) {
      await page.click('fieldset >> text=Add an item');
      await page.keyboard.type(word);
    }
    await page.click('button:text-is("Call")');
    await has(page, '.result .badge.bad', 'failed');
    await has(page, '.result .output', 'out');
    await has(page, '.result .stderr', 'err');
    await has(page, '.result .failure', 'exit status 3');
    await has(page, 'table', 'run_command');
    await accessible(page, 'tools');
    await shot(page, 'tools');
    await page.context().close();
  },

  async 'a process has output, takes input and is killed'() {
    const page = await open(live + '#/processes');
    await has(page, '#status', 'connected');
    await page.getByLabel('Program and arguments').fill('sh -c "echo ready; echo odd >&2; read x; echo \\"<i>$x\\"; sleep 600"');
    await page.keyboard.press('Enter');
    await has(page, '.output', 'ready');
    await has(page, '.output .stderr', 'odd');
    await has(page, '.pane .badge', 'running');
    await page.getByLabel('Input for the process').fill('Ada');
    await page.keyboard.press('Enter');
    await has(page, '.output', '<i>Ada');
    await page.click('button:text-is("Kill")');
    await has(page, '.pane .badge', 'killed');
    await page.context().close();
  },

  async 'a chain lights up, and asks'() {
    const page = await open(live + '#/chains');
    await has(page, '#status', 'connected');
    await page.click('summary:has-text("Run a chain")');
    await page.fill('#chain-nodes', JSON.stringify([{node_id: 'list', kind: 'tool', name: 'list_dir', input: {path: '.'}}, {node_id: 'gone', kind: 'tool', name: 'read_file', input: {path: 'none'}, catch: 'mend'},
      {node_id: 'mend', kind: 'tool', name: 'echo', input_map: {text: 'error.code'}}, {node_id: 'go', kind: 'approve', message: 'May it go on?', deps: ['list']},
      {node_id: 'each', kind: 'map', items_path: "['a', 'b']", map_node: 'say', deps: ['go']}, {node_id: 'say', kind: 'tool', name: 'echo', input_map: {text: 'item'}}]));
    await page.click('form button:text-is("Run")');
    const node = (id, tone) => until(page, ([i, t]) => [...document.querySelectorAll('.node')].some((n) => n.querySelector('title').textContent === i && n.classList.contains(t)), [id, tone]);
    await node('list', 'ok');
    await node('gone', 'bad');
    await node('go', 'run');
    await has(page, '.card', 'May it go on?');
    await accessible(page, 'a chain that asks');
    await shot(page, 'chain-asks');
    await page.locator('.card select').selectOption({label: 'true'});
    await page.click('.card button:text-is("Answer")');
    for (const id of ['go', 'each', 'say', 'mend']) await node(id, 'ok');
    await node('gone', 'warn');
    await has(page, '.pane .badge.ok', 'done in');
    await has(page, '.pane table', '2 runs');
    assert.equal(await page.locator('.edge').count(), 4);
    await shot(page, 'chain');
    await page.context().close();
  },

  async 'a chain as YAML, and a saved one'() {
    const page = await open(live + '#/chains');
    await has(page, '#status', 'connected');
    await page.click('summary:has-text("Run a chain")');
    await page.getByLabel('Saved chain').selectOption('greet');
    await until(page, () => document.querySelector('#chain-nodes').value.startsWith('# says hello'));
    await page.fill('#chain-input', 'name: Ada');
    await accessible(page, 'a saved chain');
    await page.click('form button:text-is("Run")');
    await has(page, '.pane .badge.ok', 'done in');
    await has(page, '.pane td', 'hello');
    await page.click('.pane a:has-text("its request")');
    await has(page, '.detail .json', 'Ada');
    await to(page, '#/chains');
    await page.click('summary:has-text("Run a chain")');
    await page.fill('#chain-nodes', 'nodes:\n- {node_id: a\n');
    await page.click('form button:text-is("Run")');
    await has(page, '.starter .problem', 'not valid YAML');
    await page.fill('#chain-nodes', '- {node_id: short, kind: tool, name: echo, input: {text: list of nodes}}');
    await page.fill('#chain-input', '');
    await page.click('form button:text-is("Run")');
    await has(page, '.pane td', 'short');
    await page.context().close();
  },

  async 'memory is searched, weights are drawn'() {
    const page = await open(live + '#/memory');
    await has(page, '#status', 'connected');
    await has(page, 'h2', 'Memory');
    const send = (msg) => page.evaluate((m) => fetch('api/send', {method: 'POST', headers: {'Content-Type': 'application/json'}, body: JSON.stringify(m)}).then((r) => r.status), msg);
    assert.equal(await send({type: 'memory/init/req', id: 'test-1'}), 204);
    await has(page, '#total', 'messages');
    await page.getByRole('button', {name: 'Search'}).click();
    await has(page, 'p', '0 of 0 found');
    await send({type: 'memory/store/req', id: 'test-2', memory_id: 'mem_e952e9ec20f000fce84246c7', entries: [{key: {fact: 1}, content: 'Staging is <u>deployed</u> from eu-west', tags: ['ops'], tier: 'semantic'}, {key: {fact: 2}, content: 'Lunch is at noon', tier: 'semantic'}]});
    await has(page, 'table', 'Lunch is at noon');
    await page.getByLabel('Query').fill('stagng deployment');
    await page.keyboard.press('Enter');
    await has(page, '.scroll[aria-label="Entries found"] td', 'Staging is <u>deployed</u>');
    await accessible(page, 'memory');

    for (const [i, score] of [0.5, -0.25, 1].entries()) {
      await send({type: 'learn/feedback/req', id: `test-f${i}`, feedbacks: [{polarity: 'positive', score, rated_turn: {prompt: '', response: '', model: 'echo', version: ''}}]});
      await send({type: 'learn/feedback/req', id: `test-g${i}`, feedbacks: [{polarity: 'positive', score: -score, rated_turn: {prompt: '', response: '', model: 'grep', version: ''}}]});
      await send({type: 'learn/adapt/req', id: `test-a${i}`, strategy: 'ucb1'});
    }
    await to(page, '#/learning');
    await has(page, 'table', 'echo');
    const plots = () => page.locator('figure.plot:visible canvas[role="img"]');
    await until(page, () => document.querySelectorAll('figure.plot:not([hidden]) canvas[role="img"]').length >= 2);
    assert.match(await plots().first().getAttribute('aria-label'), /components, \d+ points/);
    const inked = await plots().first().evaluate((c) => c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some((v) => v !== 0));
    assert.ok(inked, 'the plot is empty');
    await accessible(page, 'learning');
    await shot(page, 'learning');
    await page.context().close();
  },

  async 'fourteen components are told apart, also on a telephone'() {
    const page = await open(live + '#/learning');
    await has(page, '#status', 'connected');
    const send = (msg) => page.evaluate((m) => fetch('api/send', {method: 'POST', headers: {'Content-Type': 'application/json'}, body: JSON.stringify(m)}).then((r) => r.status), msg);
    for (let round = 0; round < 3; round++) {
      for (let arm = 1; arm <= 14; arm++) {
        const score = Math.sin(arm * (round + 1)) * 0.9;
        await send({type: 'learn/feedback/req', id: `arm-${arm}-${round}`, feedbacks: [{polarity: score < 0 ? 'negative' : 'positive', score, rated_turn: {prompt: '', response: '', model: `arm-${arm}`, version: ''}}]});
      }
      await send({type: 'learn/adapt/req', id: `arms-${round}`, strategy: 'ucb1'});
    }
    await page.click('button:text-is("Ask again")');
    const named = (figure) => page.locator('figure.plot:visible').nth(figure).locator('.u-series:not(:first-child)');
    await until(page, () => [...document.querySelectorAll('figure.plot:not([hidden])')].every((f) => f.querySelectorAll('.u-series:not(:first-child)').length >= 14));
    for (const name of await named(1).all()) assert.match(await name.textContent(), /arm-\d+.*-?\d\.\d{3}|echo|grep/, 'a line has no value');
    const looks = await named(1).locator('.u-marker').evaluateAll((all) => all.map((m) => m.style.borderColor + m.style.borderStyle + m.style.background));
    assert.equal(new Set(looks).size, looks.length, `two lines look alike: ${looks}`);
    await accessible(page, 'fourteen components');
    await shot(page, 'learning-14');
    await page.setViewportSize({width: 400, height: 800});
    await narrow(page, 'learning, 400 px');
    await shot(page, 'learning-14-narrow');
    await to(page, '#/mcp');
    await has(page, 'table', 'broken');
    const [is, may] = await page.locator('.scroll:visible').first().evaluate((el) => [el.scrollWidth, el.clientWidth]);
    assert.ok(is <= may, `the table of MCP servers is ${is} px wide in ${may}`);
    await narrow(page, 'MCP, 400 px');
    await accessible(page, 'MCP, 400 px');
    await shot(page, 'mcp-narrow');
    await page.context().close();
  },

  async 'the timeline by keyboard'() {
    const page = await open(live);
    await has(page, '#status', 'connected');
    await page.locator('#status').waitFor();
    await has(page, '.row.request', 'req');
    await page.keyboard.press('/');
    await page.keyboard.type('grease-that-is-not-there');
    await has(page, '.shown', '0 shown');
    await page.keyboard.press('Escape');
    await page.keyboard.press('/');
    await page.keyboard.type('run_command');
    await has(page, '.shown', 'shown');
    await page.keyboard.press('Enter');
    await page.locator('.detail h3').waitFor();
    const first = await page.locator('.detail h3').textContent();
    await page.keyboard.press('j');
    await until(page, (h) => document.querySelector('.detail h3').textContent !== h || location.hash, first);
    assert.match(await page.evaluate(() => document.querySelector('.list').getAttribute('aria-activedescendant')), /^row-/);
    await page.keyboard.press('k');
    await page.keyboard.press('Escape');
    await page.locator('.detail').waitFor({state: 'hidden'});
    await page.getByLabel('Filter by text').fill('');
    await page.getByLabel('errors only').check();
    await until(page, () => [...document.querySelectorAll('.row:not([hidden])')].every((r) => r.matches('.bad, .minor')));
    await page.getByLabel('errors only').uncheck();
    // everything can be reached by Tab, and shows that it is
    for (let i = 0, seen = new Set(); i < 40; i++) {
      await page.keyboard.press('Tab');
      const at = await page.evaluate(() => {
        const el = document.activeElement;
        return el === document.body ? '' : `${el.outerHTML.slice(0, 60)} ${getComputedStyle(el).outlineStyle}`;
      });
      if (at === '' || seen.has(at)) break;
      if (at.endsWith(' none')) wrong.push(`no focus is seen at ${at}`);
      seen.add(at);
    }
    await page.context().close();
  },

  async 'the host is stopped and started'() {
    const page = await open(live + '#/tools');
    await has(page, '#status', 'connected');
    await page.click('button:text-is("Stop the host")');
    await has(page, '#status', 'the host ended');
    await page.click('button:text-is("Start the host")');
    await has(page, '#status', 'connected');
    await to(page, '#/tools/echo');
    await page.locator('.pane textarea').first().fill('again');
    await page.click('button:text-is("Call")');
    await has(page, '.result .badge.ok', 'done');
    await page.context().close();
  },

  async 'a record, matched'() {
    const page = await open(record);
    await has(page, '#status', 'record, complete');
    await has(page, '.row.request', 'tool/call/req');
    await page.locator('.row.request', {hasText: 'tool/call/req'}).first().click();
    await has(page, '.detail .related', 'Latency');
    await has(page, '.detail .related a', 'tool/call/resp');
    await accessible(page, 'a record');
    await shot(page, 'record');
    for (const [view, text] of [['tools', 'echo'], ['processes', 'from the process'], ['chains', 'done in'], ['memory', 'Staging'], ['learning', 'echo'], ['agents', 'COMPLETED'], ['agents', 'done'], ['errors', 'unknown_tool'], ['mcp', 'broken']]) {
      await to(page, '#/' + view);
      await has(page, 'main', text);
    }
    await page.context().close();
  },

  async 'a record that means harm'() {
    for (const scheme of ['light', 'dark']) {
      const page = await open(hostile, {scheme, width: scheme === 'dark' ? 360 : 1280, height: 780});
      await has(page, '#status', 'record, complete');
      for (const view of ['timeline', 'tools', 'processes', 'chains', 'memory', 'mcp', 'learning', 'agents', 'errors']) {
        await to(page, '#/' + view);
        await until(page, (v) => document.querySelector(`nav a[data-view="${v}"]`).getAttribute('aria-current') === 'page', view);
        await until(page, () => document.querySelector('main').textContent.includes('<img src=x'));
        await narrow(page, `${view}, ${scheme}`);
        await shot(page, `hostile-${view}-${scheme}`);
        if (scheme === 'dark') await accessible(page, `${view}, narrow`, ['dark']);
      }
      for (let n = scheme === 'dark' ? 1 : 2; n <= 57; n += 2) {
        await to(page, '#/timeline/' + n);
        await until(page, (k) => document.querySelector('.detail .meta')?.textContent.includes(`number ${k} `), n);
      }
      const harm = await page.evaluate(() => [window.canary, ({}).polluted, document.querySelectorAll('main img, main script, main iframe').length]);
      assert.deepEqual(harm, [undefined, undefined, 0], 'something of the record became a part of the page');
      await page.context().close();
    }
  },

  async 'a hundred thousand messages'() {
    const page = await open(big);
    const began = Date.now();
    await has(page, '#total', '100,000 messages');
    await has(page, '#status', 'record, complete');
    if (process.env.A2E_SHOTS) console.log(`100,000 messages were there after ${Date.now() - began} ms`);
    assert.ok(await page.locator('.row:visible').count() > 10);
    assert.ok(await page.locator('.row').count() < 200, 'rows out of view are elements');
    await page.locator('.list').focus();
    await page.keyboard.press('End');
    await until(page, () => location.hash.endsWith('/100000') && [...document.querySelectorAll('.row:not([hidden])')].some((r) => r.getAttribute('aria-posinset') === '100000'));
    await page.keyboard.press('/');
    await page.keyboard.type('file777.');
    await has(page, '.shown', /^\d+ shown/);
    await shot(page, 'big');
    await page.context().close();
  },
};

try {
  for (const [name, step] of Object.entries(steps)) {
    if (process.env.A2E_STEP && !name.includes(process.env.A2E_STEP)) continue;
    try {
      await step();
    } catch (err) {
      wrong.push(`${name}: ${err.stack}`);
    }
  }
} finally {
  await browser.close();
}
for (const w of [...new Set(wrong)].slice(0, 30)) console.log(w);
process.exitCode = wrong.length ? 1 : 0;
