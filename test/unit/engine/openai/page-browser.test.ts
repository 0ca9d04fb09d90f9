// The live page in headless Chromium, over an engine of the reference model that answers: empty, in use by a pointer
// and by keyboard alone, on a phone, in the dark, with keys, and over a log. Nothing shorter than a browser says
// whether its policy lets it run, whether it asks another origin, and what hostile texts become. Where there is no
// Chromium these tests are skipped.
import { createHash } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { createEngine, type Engine, type LiveView, serve } from '../../../../engine/index.ts';
import { logDir } from '../../../../engine/state/folder.ts';
import { openWitnessLog } from '../../../../witness/index.ts';
import { Chromium, chromiumPath } from '../../../suite/chromium.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { longSession } from '../../witness/long-session.ts';

const HOSTILE = '</script><script>window.broken = 1</script><img src=x onerror="window.broken = 2">';
const READY = 'document.documentElement.dataset.ready !== undefined';
const SHOTS = process.env['PALIMPSEST_TEST_SHOTS'];
const folder = scratchFolders();
const sha256 = (text: string): string => createHash('sha256').update(text).digest('hex');

let browser: Chromium;
let engine: Engine;
let view: LiveView;
let guarded: LiveView;
let told: LiveView;

const value = <T>(expression: string): Promise<T> => browser.evaluate(expression) as Promise<T>;
const textOf = (selector: string): Promise<string> => value(`document.querySelector('${selector}').textContent`);
const isSeen = (selector: string): Promise<boolean> => value(`document.querySelector('${selector}').checkVisibility()`);
const requested = (): string[] =>
  browser.heard('Network.requestWillBeSent').map(({ request }) => (request as { url: string }).url);

async function shot(name: string): Promise<void> {
  if (SHOTS !== undefined) writeFileSync(join(SHOTS, `${name}.png`), await browser.screenshot(true));
}

/** Writes letters as a keyboard does. */
const type = (text: string): Promise<unknown> => browser.send('Input.insertText', { text });

/** Presses Tab until an element that fits has the focus. */
async function tabTo(selector: string): Promise<void> {
  for (let presses = 0; presses < 60; presses++) {
    await browser.press('Tab');
    if (await value<boolean>(`document.activeElement.matches('${selector}')`)) return;
  }
  throw new Error(`Tab never comes to ${selector}`);
}

/** Waits until so many answers are there with their facts. */
const answered = (count: number): Promise<void> =>
  browser.until(`document.querySelectorAll('.cache button').length === ${count}`);

beforeAll(async () => {
  if (chromiumPath === null) return;
  const state = join(folder(), 'state');
  engine = await createEngine({ model: 'reference', threads: 1, stateDir: state, kvBudget: 2 ** 20 });
  const answers = { maxTokens: 32, modelName: HOSTILE };
  view = await serve(engine, { port: 0, requestsPerSecond: 10_000, answers });
  const keys = ['ann', 'bob'].map((name) => ({ name, sha256: sha256(`key-of-${name}`) }));
  guarded = await serve(engine, { port: 0, requestsPerSecond: 10_000, answers, keys });
  const written = join(folder(), 'state');
  const log = await openWitnessLog({ dir: logDir(written) });
  for (const { session, kind, body } of longSession(300, HOSTILE)) log.append(session, kind, body as never);
  await log.close();
  told = await serve(written, { port: 0, requestsPerSecond: 10_000 });
  browser = await Chromium.open();
});
afterAll(async () => {
  await browser?.close();
  for (const one of [view, guarded, told]) await one?.close();
  await engine?.close();
});

describe.skipIf(chromiumPath === null)('in a browser (needs Chromium)', () => {
  beforeEach(async () => {
    await browser.resize(1280, 900);
    await browser.media({ 'prefers-color-scheme': 'light' });
  });

  test('says what to do first, and asks nobody but its server', async () => {
    await browser.visit(`${view.url}/`, READY);
    await browser.until('document.getElementById("first").checkVisibility()');
    expect(await textOf('#base-url')).toBe(`baseURL: '${view.url}/v1'`);
    expect(await textOf('#curl')).toContain(`curl ${view.url}/v1/chat/completions`);
    expect(await textOf('#serving')).toBe(`serving ${HOSTILE}`);
    await browser.until('document.querySelectorAll("#figures div").length === 5');
    expect(requested().length).toBeGreaterThan(10);
    expect(requested().filter((url) => !url.startsWith(`${view.url}/`))).toEqual([]);
    expect(browser.complaints()).toEqual([]);
    expect(await value('window.broken')).toBeUndefined();
    await shot('empty');
    const page = await fetch(`${view.url}/`);
    const policy = page.headers.get('content-security-policy')!;
    expect(policy).toMatch(/default-src 'none'; script-src 'self'; style-src 'self'/);
    expect(policy).not.toContain('unsafe');
    expect((await fetch(`${view.url}/engine/serve/page/../reader.js`)).status).toBe(404);
    expect((await fetch(`${view.url}/engine/serve/page/%2e%2e%2freader.js`)).status).toBe(404);
  });

  test('by keyboard: a question is asked, its session is opened from the list, and its map is walked', async () => {
    await browser.visit(`${view.url}/`, READY);
    await tabTo('#question');
    await type(`${HOSTILE} Who kept the bees? `.repeat(30));
    await browser.press('Enter');
    await answered(1);
    await browser.until('document.querySelectorAll("#session-table tbody button").length === 1');
    expect(await textOf('.message.user .text')).toContain(HOSTILE);
    expect(await value('document.querySelectorAll("main img").length')).toBe(0);
    await type('And then?');
    await browser.press('Enter');
    await answered(2);
    // All that was said before is in the cache.
    const [cached, all] = await value<[number, number]>(
      `[...document.querySelectorAll('.cache')][1].textContent.match(/^([\\d,]+) of ([\\d,]+) prompt tokens/).slice(1).map((one) => Number(one.replaceAll(',', '')))`,
    );
    expect(cached).toBeGreaterThan(500);
    expect(all).toBeGreaterThan(cached);

    await browser.visit(`${view.url}/`, READY);
    await browser.until('document.querySelectorAll("#session-table tbody button").length > 0');
    expect(await isSeen('#first')).toBe(false);
    await tabTo('#session-table button');
    await browser.press('Enter');
    await browser.until('document.querySelectorAll("#session canvas").length === 2');
    expect(await textOf('#session-facts')).toContain('tokens: ');
    await tabTo('#map-k canvas');
    await browser.press('ArrowDown');
    await browser.press('ArrowRight');
    expect(await textOf('#cell')).toMatch(/^Layer 1, page 1, keys: \w+$/);
    // A cell has the colour of its tier, which the legend names.
    const inks = await value<number>(
      `(() => { const c = document.querySelector('#map-k canvas'); const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; const s = new Set(); for (let i = 0; i < d.length; i += 4) if (d[i + 3] === 255) s.add(d[i] << 16 | d[i + 1] << 8 | d[i + 2]); return [...s].filter((one) => [0x2566a8, 0x0f7b6c, 0xa5620a].includes(one)).length; })()`,
    );
    expect(inks).toBeGreaterThan(0);
    expect(browser.complaints()).toEqual([]);
    expect(await value('window.broken')).toBeUndefined();
  });

  test('where memory is short decisions come as they are made, with their reasons', async () => {
    await browser.visit(`${view.url}/`, READY);
    for (const [at, place] of ['wall', 'hill', 'shore'].entries()) {
      await browser.evaluate(
        `document.getElementById('new-chat').click(); document.getElementById('question').focus()`,
      );
      await type(`The old keeper counted the hives along the ${place} and went home. `.repeat(90));
      await browser.press('Enter');
      await browser.until(`document.getElementById('send').textContent === 'Ask'`);
      expect([at, await textOf('.cache')]).not.toEqual([at, expect.stringContaining('error')]);
    }
    await browser.until('document.querySelectorAll("#decision-list li").length > 3');
    expect(await textOf('#decision-list li .why')).toMatch(/: \S+ against \S+ of /);
    await browser.evaluate(`document.querySelector('#decision-list .seq button').click()`);
    await browser.until('document.querySelectorAll(".explained p b").length > 2');
    await browser.evaluate(`document.querySelector('#session-table tbody tr').click()`);
    await browser.until('document.querySelectorAll("#session canvas").length === 2');
    await browser.until(`document.querySelectorAll('#tier-bar span').length > 1`);
    await shot('light');
    await browser.media({ 'prefers-color-scheme': 'dark' });
    await browser.evaluate('new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))');
    await shot('dark');
    expect(browser.complaints()).toEqual([]);
  });

  test.each([
    [375, 'light'],
    [375, 'dark'],
    [820, 'light'],
  ])('%i pixels wide, %s: nothing is wider than the page, and texts can be read', async (width, scheme) => {
    await browser.resize(width, 800);
    await browser.media({ 'prefers-color-scheme': scheme });
    await browser.visit(`${view.url}/`, READY);
    await browser.until('document.querySelectorAll("#session-table tbody tr").length > 0');
    await browser.evaluate(`document.querySelector('#session-table tbody button').click()`);
    await browser.until('document.querySelectorAll("#session canvas").length === 2');
    expect(await value<number>('document.documentElement.scrollWidth')).toBeLessThanOrEqual(width);
    await shot(`${width}-${scheme}`);
    // WCAG 2.2: 4.5 to 1 between every colour of text and what it stands on.
    const worst = await value<number>(`(() => {
      const style = getComputedStyle(document.documentElement);
      const light = (name) => {
        const parts = [1, 3, 5].map((at) => parseInt(style.getPropertyValue(name).trim().slice(at, at + 2), 16) / 255);
        const [r, g, b] = parts.map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      const ratio = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      return Math.min(...['--ink', '--soft', '--accent'].flatMap((of) => ['--paper', '--card', '--wash'].map((on) => ratio(light(of), light(on)))));
    })()`);
    expect(worst).toBeGreaterThanOrEqual(4.5);
    expect(browser.complaints()).toEqual([]);
  });

  test('a key is asked for, and shows its own answers alone', async () => {
    const ask = async (name: string): Promise<string> => {
      const answer = await fetch(`${guarded.url}/v1/chat/completions`, {
        method: 'POST',
        headers: { 'content-type': 'application/json', authorization: `Bearer key-of-${name}` },
        body: JSON.stringify({ messages: [{ role: 'user', content: `Is ${name} here?` }], max_tokens: 4 }),
      });
      return ((await answer.json()) as { palimpsest: { session: string } }).palimpsest.session;
    };
    const [ann, bob] = [await ask('ann'), await ask('bob')];
    const as = (name: string, path: string): Promise<Response> =>
      fetch(guarded.url + path, { headers: { authorization: `Bearer key-of-${name}` } });
    for (const of of ['', '/map']) {
      // The log is looked at some times a second.
      while ((await as('ann', `/v1/sessions/${ann}${of}`)).status === 404);
      expect((await as('ann', `/v1/sessions/${ann}${of}`)).status).toBe(200);
      expect((await as('ann', `/v1/sessions/${bob}${of}`)).status).toBe(403);
    }
    expect((await as('ann', `/v1/decisions?session=${ann}`)).status).toBe(200);
    const followed = await as('ann', `/v1/decisions/stream?session=${ann}`);
    expect(followed.status).toBe(200);
    await followed.body!.cancel();
    for (const path of [
      `/v1/decisions?session=${bob}`,
      `/v1/decisions/stream?session=${bob}`,
      '/v1/decisions',
      '/v1/decisions/stream',
      '/v1/sessions',
    ])
      expect([path, (await as('ann', path)).status]).toEqual([path, 403]);

    await browser.visit(`${guarded.url}/`, 'document.getElementById("key-dialog").open');
    await shot('key');
    expect(await isSeen('#wrong-key')).toBe(false);
    await type('key-of-nobody');
    await browser.press('Enter');
    await browser.until('document.getElementById("wrong-key").checkVisibility()');
    await type('key-of-ann');
    await browser.press('Enter');
    await browser.until(READY);
    await browser.until('document.querySelectorAll("#session-table tbody button").length === 1');
    expect(await value('document.querySelector("#session-table tbody button").title')).toBe(ann);
    // What all have in common is not told.
    expect(await textOf('#figures')).not.toMatch(/Queue|Price/);
    expect(await value('Object.entries(localStorage).length + document.cookie.length')).toBe(0);
  });

  test('over a log it shows what the log knows', async () => {
    await browser.visit(`${told.url}/`, READY);
    await browser.until('document.querySelectorAll("#session-table tbody tr").length === 1');
    expect(await isSeen('#chat')).toBe(false);
    await browser.evaluate(`document.querySelector('#session-table tbody button').click()`);
    await browser.until('document.querySelectorAll("#session canvas").length === 2');
    await browser.until('document.querySelectorAll("#decision-list li").length === 40');
    expect(await textOf('#session-facts')).toContain(HOSTILE);
    expect(await value('document.querySelectorAll("main img").length')).toBe(0);
    expect(await value('window.broken')).toBeUndefined();
    expect(requested().filter((url) => !url.startsWith(`${told.url}/`))).toEqual([]);
    expect(browser.complaints()).toEqual([]);
    await shot('log');
  });

  test('everything that can be used has a name', async () => {
    await browser.visit(`${view.url}/`, READY);
    await browser.until('document.querySelectorAll("#session-table tbody tr").length > 0');
    await browser.evaluate(`document.querySelector('#session-table tbody button').click()`);
    await browser.until('document.querySelectorAll("#session canvas").length === 2');
    const { nodes } = (await browser.send('Accessibility.getFullAXTree')) as {
      nodes: { ignored: boolean; role?: { value: string }; name?: { value: string } }[];
    };
    const shown = nodes.filter(({ ignored }) => !ignored);
    const named = ['button', 'textbox', 'application', 'image', 'region', 'link', 'table', 'log'];
    expect(
      shown.filter(({ role, name }) => named.includes(role?.value ?? '') && role?.value !== 'table' && !name?.value),
    ).toEqual([]);
    expect(shown.filter(({ role }) => role?.value === 'application')).toHaveLength(2);
  });
});
