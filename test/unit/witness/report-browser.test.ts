// The report of a session in headless Chromium: does it load nothing, fit a phone, print, work by keyboard and say what
// it shows, and does it keep its element count with 100,000 decisions? Where there is no Chromium these tests are
// skipped.
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Entry, EntryBodies } from '../../../witness/index.ts';
import { collect } from '../../../witness/report/collect.ts';
import { reportHtml } from '../../../witness/report/html.ts';
import { pageScript } from '../../../witness/report/script.ts';
import { Chromium, chromiumPath } from '../../suite/chromium.ts';
import { scratchFolders } from './folder.ts';
import { longSession } from './long-session.ts';

const folder = scratchFolders();
const READY = 'document.documentElement.dataset.ready !== undefined';
const HOSTILE = '</script><script>window.broken = 1</script><img src=x onerror="window.broken = 2">';
const LONG = 100_000;
const VERIFIED = {
  ok: true,
  logId: 'a'.repeat(32),
  segments: 1,
  entries: 1000,
  unopened: 0,
  headHash: 'b'.repeat(64),
  problem: null,
  tornBytes: 0,
  series: [],
  foreign: [],
};

let browser: Chromium;
let dir = '';
const urls = new Map<string, string>();

function put(name: string, entries: Iterable<Entry>): void {
  const path = join(dir, `${name}.html`);
  writeFileSync(path, reportHtml(collect(entries), { verified: VERIFIED, replayed: null }, pageScript()));
  urls.set(name, pathToFileURL(path).href);
}

const visit = (name: string): Promise<void> => browser.visit(urls.get(name)!, READY);
/** What a log may say and no engine would: more layers, pages and tokens than anybody could draw. */
function* vast(): Generator<Entry> {
  for (const entry of longSession(10)) {
    const put = <K extends keyof EntryBodies>(part: Partial<EntryBodies[K]>): Entry => ({
      ...entry,
      body: { ...entry.body, ...part } as EntryBodies[K],
    });
    if (entry.kind === 'open') yield put<'open'>({ shape: { layers: 4096, queryHeads: 9, kvHeads: 3, headDim: 64 } });
    else if (entry.kind === 'situation') {
      const { situation } = entry.body as EntryBodies['situation'];
      yield put<'situation'>({ situation: { ...situation, tokens: Number.MAX_SAFE_INTEGER } });
    } else if (entry.kind === 'decision') {
      const { decision } = entry.body as EntryBodies['decision'];
      yield put<'decision'>({ decision: { ...decision, layer: 4095, page: 2 ** 31 - 1, price: 1e300 } });
    } else yield entry;
  }
}

const number = async (expression: string): Promise<number> => (await browser.evaluate(expression)) as number;
const text = async (expression: string): Promise<string> => (await browser.evaluate(expression)) as string;
const LIST = 'document.getElementById("list")';
const frameDrawn = 'new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)))';

beforeAll(async () => {
  if (chromiumPath === null) return;
  dir = folder();
  mkdirSync(dir, { recursive: true });
  put('short', longSession(1200));
  put('hostile', longSession(1200, HOSTILE));
  put('long', longSession(LONG));
  put('empty', [...longSession(1)].slice(0, 1));
  put('vast', vast());
  browser = await Chromium.open();
});
afterAll(async () => {
  await browser?.close();
});

describe.skipIf(chromiumPath === null)('in a browser (needs Chromium)', () => {
  test.each(['short', 'hostile', 'long', 'empty', 'vast'])(
    'the %s report loads nothing else and complains of nothing',
    async (name) => {
      await visit(name);
      expect(browser.heard('Network.requestWillBeSent').map(({ request }) => (request as { url: string }).url)).toEqual(
        [urls.get(name)],
      );
      expect(browser.complaints()).toEqual([]);
      expect(await browser.evaluate('window.broken')).toBeUndefined();
    },
  );

  test('a hostile model name is shown, everywhere, by its letters', async () => {
    await visit('hostile');
    expect(await text('document.querySelector("h1").textContent')).toBe(HOSTILE);
    expect(await number('document.querySelectorAll("img").length')).toBe(0);
  });

  test.each([
    [360, 'light'],
    [360, 'dark'],
    [820, 'light'],
    [1400, 'dark'],
  ])('%i pixels wide, %s: nothing is wider than the page', async (width, scheme) => {
    await browser.resize(width, 800);
    await browser.media({ 'prefers-color-scheme': scheme });
    await visit('short');
    expect(await number('document.documentElement.scrollWidth')).toBeLessThanOrEqual(width);
    await browser.evaluate(
      'document.querySelectorAll("details").forEach((one) => (one.open = true)); document.querySelector("#list .rows .row").click()',
    );
    expect(await number('document.documentElement.scrollWidth')).toBeLessThanOrEqual(width);
    // WCAG 2.2, contrast of text: 4.5 to 1 between every colour of text and what it stands on.
    const worst = await number(`(() => {
      const style = getComputedStyle(document.documentElement);
      const light = (name) => {
        const parts = [1, 3, 5].map((at) => parseInt(style.getPropertyValue(name).trim().slice(at, at + 2), 16) / 255);
        const [r, g, b] = parts.map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      const ratio = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      const pairs = ['--ink', '--soft', '--accent'].flatMap((of) => ['--paper', '--wash'].map((on) => ratio(light(of), light(on))));
      return Math.min(...pairs, ratio(light('--ink'), light('--fill')));
    })()`);
    expect(worst).toBeGreaterThanOrEqual(4.5);
    await browser.resize(1200, 900);
    await browser.media({});
  });

  test('of 100,000 decisions only those in view are elements, at the beginning, in the middle and at the end', async () => {
    await visit('long');
    expect(await text('document.getElementById("count").textContent')).toBe('100,000 decisions');
    for (const share of [0, 0.5, 1]) {
      await browser.evaluate(`${LIST}.scrollTop = ${share} * ${LIST}.scrollHeight; ${frameDrawn}`);
      expect(await number('document.querySelectorAll("#list .rows .row").length')).toBeLessThan(80);
      // The rows that exist fill what is seen.
      const [top, bottom, seen] = (await browser.evaluate(`(() => {
        const rows = document.querySelectorAll('#list .rows .row');
        const view = ${LIST}.getBoundingClientRect();
        return [rows[0].getBoundingClientRect().top - view.top - rows[0].offsetHeight, rows[rows.length - 1].getBoundingClientRect().bottom - view.bottom, view.height];
      })()`)) as [number, number, number];
      expect(seen).toBeGreaterThan(100);
      expect(top).toBeLessThanOrEqual(1);
      expect(bottom).toBeGreaterThanOrEqual(share === 1 ? -1 : 0);
    }
    const last = [...longSession(LONG)].findLast(({ kind }) => kind === 'decision')!;
    expect(await text('document.querySelector("#list .rows .row:last-child .c0").textContent')).toBe(String(last.seq));
  });

  test('filters let through what the log says, each and together', async () => {
    await visit('long');
    const decisions = [...longSession(LONG)].filter(({ kind }) => kind === 'decision') as Entry<'decision'>[];
    const count = (keep: (body: Entry<'decision'>['body']) => boolean): number =>
      decisions.filter(({ body }) => keep(body)).length;
    const ask = (name: string, value: string): Promise<unknown> =>
      browser.evaluate(
        `(() => { const field = document.getElementById('ask-${name}'); field.value = ${JSON.stringify(value)}; field.dispatchEvent(new Event('input')); })()`,
      );
    const shown = async (): Promise<number> =>
      Number((await text('document.getElementById("count").textContent')).split(' ')[0]!.replaceAll(',', ''));
    await ask('outcome', '0');
    expect(await shown()).toBe(count(({ verdict }) => !verdict.accepted));
    await ask('layer', '7');
    expect(await shown()).toBe(count(({ verdict, decision }) => !verdict.accepted && decision.layer === 7));
    await ask('outcome', '');
    await ask('side', '1');
    expect(await shown()).toBe(count(({ decision }) => decision.side === 'v' && decision.layer === 7));
    await ask('page', '3');
    expect(await shown()).toBe(
      count(({ decision }) => decision.side === 'v' && decision.layer === 7 && decision.page === 3),
    );
    await browser.evaluate('document.querySelector("#filters button").click()');
    await browser.until('document.getElementById("count").textContent === "100,000 decisions"');
    await ask('reason', 'trial-again');
    expect(await shown()).toBe(count(({ verdict }) => verdict.because.rule === 'trial-again'));
  });

  test('the list, the map and the scrubber work by keyboard, and tell what they do', async () => {
    await visit('short');
    await browser.evaluate(`${LIST}.focus()`);
    for (let i = 0; i < 3; i++) await browser.press('ArrowDown');
    await browser.press('Enter');
    const chosen = await text('document.querySelector("#list [aria-selected=true] .c0").textContent');
    expect(await text('document.activeElement.textContent')).toBe(`Decision ${chosen}`);
    expect(await text('document.getElementById("detail").textContent')).toContain('in the cache, the');
    await browser.evaluate('document.querySelector("#detail button").click()');
    expect(await text('document.activeElement.id')).toBe('list');
    await browser.press('End');
    expect(await text(`${LIST}.getAttribute('aria-activedescendant')`)).toBe('row-1199');

    await browser.evaluate('document.getElementById("scrubber").focus()');
    await browser.press('Home');
    const first = await text('document.getElementById("moment").textContent');
    await browser.press('ArrowRight');
    expect(await text('document.getElementById("moment").textContent')).not.toBe(first);
    expect(await text('document.getElementById("scrubber").ariaValueText')).toBe(
      await text('document.getElementById("moment").textContent'),
    );

    await browser.evaluate('document.querySelector("#map-k canvas").focus()');
    await browser.press('ArrowDown');
    expect(await text('document.getElementById("live").textContent')).toMatch(/^Layer 1, page 0, keys: /);
    await browser.press('Enter');
    expect(await text('document.getElementById("count").textContent')).toMatch(/ of 1,200 decisions$/);
  });

  test('what became of the quality of layers and of budgets stands in a table and on the memory chart', async () => {
    await visit('short');
    expect(
      await browser.evaluate(
        '[...document.querySelectorAll("#happenings tbody tr")].map((row) => [...row.cells].map((cell) => cell.textContent))',
      ),
    ).toEqual([
      ['640', '3', 'degraded', "measured over promised error: severity 2.5 against 2 of 'quality.degraded'"],
      ['640', 'all', '', 'The divergence budget gave way to the byte budget, which is ranked before it.'],
    ]);
    expect(await number('document.querySelectorAll("#memory-chart .mark").length')).toBe(2);
  });

  test('play runs to the end and stops', async () => {
    await visit('short');
    await browser.evaluate('document.getElementById("play").click()');
    await browser.until('document.getElementById("play").textContent === "Play"');
    expect(
      await browser.evaluate('document.getElementById("scrubber").value === document.getElementById("scrubber").max'),
    ).toBe(true);
  });

  test('everything that can be used or seen has a name', async () => {
    await visit('short');
    const { nodes } = (await browser.send('Accessibility.getFullAXTree')) as {
      nodes: { ignored: boolean; role?: { value: string }; name?: { value: string } }[];
    };
    const shown = nodes.filter(({ ignored }) => !ignored);
    const roles = new Set(shown.map(({ role }) => role?.value));
    for (const role of ['banner', 'main', 'navigation', 'region', 'heading', 'grid', 'slider', 'application', 'button'])
      expect(roles).toContain(role);
    const nameless = shown.filter(
      ({ role, name }) =>
        ['button', 'slider', 'combobox', 'spinbutton', 'grid', 'application', 'image', 'region', 'link'].includes(
          role?.value ?? '',
        ) && !name?.value,
    );
    expect(nameless).toEqual([]);
    // Headings go down one level at a time.
    const levels = (await browser.evaluate(
      '[...document.querySelectorAll("h1, h2, h3")].map((one) => Number(one.tagName[1]))',
    )) as number[];
    expect(levels.filter((level) => level === 1)).toHaveLength(1);
    expect(levels.every((level, i) => i === 0 || level <= levels[i - 1]! + 1)).toBe(true);
  });

  test('print has the charts, the map at four moments and the first hundred decisions, in ink on white', async () => {
    await browser.media({ 'prefers-color-scheme': 'dark' });
    await visit('short');
    await browser.media({ 'prefers-color-scheme': 'dark' }, 'print');
    const shown = (selector: string): Promise<number> =>
      number(`[...document.querySelectorAll('${selector}')].filter((one) => one.checkVisibility()).length`);
    expect(await shown('svg.chart')).toBe(4);
    expect(await shown('#printed-maps canvas')).toBe(8);
    expect(await shown('table.print-only tbody tr')).toBe(100);
    expect(await shown('#list, #filters, #scrubber, nav')).toBe(0);
    expect(await text('getComputedStyle(document.body).color')).toBe('rgb(0, 0, 0)');
    const corner = await browser.evaluate(
      '[...document.querySelector("#printed-maps canvas").getContext("2d").getImageData(60, 12, 1, 1).data]',
    );
    // Eight bits are dark on paper, and light on a dark screen.
    expect((corner as number[])[0]).toBeLessThan(100);
    expect((await browser.pdf()).subarray(0, 5).toString()).toBe('%PDF-');
    await browser.media({});
  });
});
