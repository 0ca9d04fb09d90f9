// The report of a session as a text: are its numbers those of the log, can nothing in a log become markup, does it stay
// small?
import { createHash } from 'node:crypto';
import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import fc from 'fast-check';
import { beforeAll, describe, expect, it } from 'vitest';
import {
  brief as briefText,
  bytesText as bytesOf,
  grouped as groupedText,
  unitBehind as unitOf,
} from '../../../native/index.ts';
import { defaultThresholds } from '../../../policy/index.ts';
import {
  type Entry,
  explain,
  makeCheckpointKeys,
  openWitnessLog,
  parseCheckpoint,
  readLog,
  sessionReport,
  signLog,
  verifyLog,
} from '../../../witness/index.ts';
import { collect } from '../../../witness/report/collect.ts';
import { reportHtml } from '../../../witness/report/html.ts';
import { Packer } from '../../../witness/report/pack.ts';
import { type ReportData, Table } from '../../../witness/report/page/data.ts';
import { bytesOverTime, History } from '../../../witness/report/page/history.ts';
import {
  brief,
  bytesText,
  entryId,
  explained,
  grouped,
  type Sources,
  unitBehind,
} from '../../../witness/report/page/words.ts';
import { pageScript } from '../../../witness/report/script.ts';
import { scratchFolders } from './folder.ts';
import { longSession } from './long-session.ts';
import { recordSession } from './session.ts';

const folder = scratchFolders();
let dir = '';
let seqs: number[] = [];

beforeAll(async () => {
  dir = folder();
  const log = await openWitnessLog({ dir, clock: () => Date.UTC(2026, 0, 31) });
  seqs = recordSession(log, 'first');
  recordSession(log, 'open', { situations: 2, close: false });
  await log.close();
});

const dataOf = (html: string): ReportData =>
  JSON.parse(/<script type="application\/json" id="data">(.*?)<\/script>/s.exec(html)![1]!) as ReportData;

const sourcesOf = (data: ReportData): Sources => ({
  data,
  decisions: new Table(data.decisions),
  situations: new Table(data.situations),
  trials: new Table(data.trials),
  canaries: new Table(data.canaries),
});

const historyOf = (data: ReportData): History => {
  const { situations, decisions } = sourcesOf(data);
  return new History(data, situations, decisions, new Table(data.changes));
};

/** The report of entries that no log holds. */
const htmlOf = (entries: Iterable<Entry>): string =>
  reportHtml(collect(entries), { verified: verifyLog(dir), replayed: null }, pageScript());

describe('figures', () => {
  it('are written as everywhere else', () => {
    fc.assert(
      fc.property(fc.double({ noNaN: true, noDefaultInfinity: true, min: -1e15, max: 1e15 }), (value) => {
        expect(brief(value)).toBe(briefText(value));
        expect(brief(value, 2)).toBe(briefText(value, 2));
        expect(grouped(value)).toBe(groupedText(value));
        expect(bytesText(Math.round(value))).toBe(bytesOf(Math.round(value)));
      }),
    );
    const units = Object.values(defaultThresholds(1).thresholds).map(({ unit }) => unit);
    for (const unit of ['places', ...units])
      for (const value of [0, 1, 2, 0.5]) expect(unitBehind(value, unit)).toBe(unitOf(value, unit));
  });

  it('come out of columns as they went in: whole numbers exactly, others to five digits', () => {
    const number = fc.oneof(fc.integer(), fc.maxSafeInteger(), fc.double({ noNaN: true, noDefaultInfinity: true }));
    fc.assert(
      fc.property(fc.array(fc.tuple(fc.maxSafeNat(), fc.option(number)), { minLength: 1 }), (rows) => {
        const packer = new Packer(['a+', 'b']);
        const small = rows.map(([a, b]): [number, number | null] => [a % 2 ** 40, b]);
        for (const row of small) packer.add(row);
        const table = new Table(packer.columns());
        expect(table.length).toBe(rows.length);
        expect([...table.of('a')]).toEqual(small.map(([a]) => a));
        for (const [i, [, b]] of small.entries()) {
          const back = table.of('b')[i]!;
          if (b === null) expect(back).toBeNaN();
          else expect(Math.abs(back - b)).toBeLessThanOrEqual(Number.isInteger(b) ? 0 : 1e-4 * Math.abs(b));
        }
      }),
    );
    expect(new Table(new Packer(['a']).columns()).length).toBe(0);
  });

  it('are those of the log', () => {
    const data = dataOf(sessionReport(dir, 'first'));
    const { decisions } = sourcesOf(data);
    const logged = [...readLog(dir, { session: 'first', kinds: ['decision'] })] as Entry<'decision'>[];
    expect(decisions.length).toBe(logged.length);
    expect(data.decisionCount).toBe(20);
    for (const [row, { seq, body }] of logged.entries()) {
      expect(decisions.of('seq')[row]).toBe(seq);
      expect(decisions.of('bytes')[row]).toBe(body.bytesBefore);
      expect(decisions.of('freed')[row]).toBe(body.bytesBefore - body.bytesAfter);
      expect(decisions.of('accepted')[row]).toBe(body.verdict.accepted ? 1 : 0);
      expect(decisions.of('epsilonTo')[row]).toBeCloseTo(body.decision.epsilonTo!, 6);
      expect(data.forms[decisions.of('to')[row]!]).toBe(body.decision.to);
    }
  });
});

describe('an explanation', () => {
  it('says of every decision what `audit explain` says', () => {
    const sources = sourcesOf(dataOf(sessionReport(dir, 'first')));
    for (const [row, seq] of seqs.entries()) {
      const told = new Map(explained(sources, row));
      const expected = new Map(explain(dir, seq).sentences.map(({ title, text }) => [title, text]));
      for (const title of ['verdict', 'bytes', 'later']) expect(told.get(title)).toBe(expected.get(title));
      expect(expected.get('why')).toContain(told.get('why')!.replace('Planned under rule', 'rule'));
      expect(expected.get('what')).toContain(
        told.get('what')!.slice('With '.length).replace('tokens in the cache, ', '').split(' ')[0]!,
      );
    }
  });

  it('names entries of other series as people read them', () => {
    expect([entryId(17), entryId(2 * 2 ** 32 + 17)]).toEqual(['17', '2:17']);
  });
});

describe('the history', () => {
  it('has the form of every page at every moment', () => {
    const data = dataOf(sessionReport(dir, 'first'));
    const history = historyOf(data);
    expect(history.frames.map(({ tokens }) => tokens)).toEqual([256, 384, 512, 640, 768, 900]);
    const nameAt = (frame: number, page: number, side: number): string =>
      data.forms[history.formsAt(frame)[history.cell(side, 0, page)]!]!;
    expect(nameAt(0, 0, 1)).toBe('rot4');
    expect(nameAt(0, 1, 1)).toBe('q8');
    expect(nameAt(5, 1, 1)).toBe('rot4');
    // Back again: what was done is undone.
    expect(nameAt(0, 1, 1)).toBe('q8');
    const points = bytesOverTime(new Table(data.situations), new Table(data.decisions));
    expect(points[0]).toMatchObject({ tokens: 256, bytes: 300_000 });
    expect(history.frames.at(-1)!.bytes).toBe(points.at(-1)!.bytes);
  });

  it('forgets pages that were taken back', () => {
    const entries = [...longSession(360)];
    const last = entries.findLast(({ kind }) => kind === 'situation') as Entry<'situation'>;
    const close = entries.pop()!;
    const { situation } = last.body;
    const back = { ...situation, index: situation.index + 1, tokens: 129, trials: [], outcomes: [] };
    entries.push({ ...last, seq: close.seq, body: { situation: back } });
    const data = collect(entries).data;
    const history = historyOf(data);
    const formOf = (frame: number, page: number): string =>
      data.forms[history.formsAt(frame)[history.cell(0, 0, page)]!]!;
    const end = history.frames.length - 1;
    expect([formOf(end - 1, 0), formOf(end - 1, 1)]).not.toContain('q8');
    expect(formOf(end, 0)).toBe(formOf(end - 1, 0));
    expect(formOf(end, 1)).toBe('q8');
  });
});

describe('the page', () => {
  it('allows one script and one style sheet, by their digests, and loads nothing', () => {
    const html = sessionReport(dir, 'first');
    const policy = /http-equiv="Content-Security-Policy" content="([^"]*)"/.exec(html)![1]!;
    const digest = (text: string): string => `'sha256-${createHash('sha256').update(text).digest('base64')}'`;
    const script = /<script type="module">(.*)<\/script>/s.exec(html)![1]!;
    const style = /<style>(.*?)<\/style>/s.exec(html)![1]!;
    expect(policy).toBe(
      `default-src 'none'; script-src ${digest(script)}; style-src ${digest(style)}; base-uri 'none'; form-action 'none'`,
    );
    expect(html).not.toMatch(/\b(?:src|srcset|action|data)=|@import|url\(/);
    expect([...html.matchAll(/href="([^"]*)"/g)].every(([, target]) => target!.startsWith('#'))).toBe(true);
    // The name of a vocabulary, which nobody fetches.
    expect([...html.matchAll(/https?:\/\/[^'"\s]*/g)].map(([url]) => url)).toEqual(['http://www.w3.org/2000/svg']);
  });

  it.each([
    '</script><script>alert(1)</script>',
    '<img src=x onerror=alert(1)>',
    '"><svg onload=alert(1)>',
    '<!--<script>',
    '&lt;b&gt; \u202e reversed',
  ])('shows a model named %s by its letters', (name) => {
    const html = htmlOf(longSession(10, name));
    expect(html).not.toContain(name);
    expect(html.match(/<\/?script/g)).toHaveLength(4);
    expect(html).not.toMatch(/<(?:img|svg)\b/);
    expect(html).not.toContain('\u202e');
    expect(html).toContain(
      `<h1>${[...name.replace('\u202e', '\\u{202e}')].map((c) => ('&<>"\''.includes(c) ? `&#${c.charCodeAt(0)};` : c)).join('')}</h1>`,
    );
    expect(dataOf(html).model).toBe(name.replace('\u202e', '\\u{202e}'));
  });

  it('says of what runs, of unknown policies and of unlisted decisions what it knows', () => {
    const html = sessionReport(dir, 'open');
    expect(html).toContain('has not ended, or was killed');
    expect(html).toContain('The policy is not built in');
    const few = collect(longSession(500), 100);
    expect(few.data.decisionCount).toBe(500);
    expect(new Table(few.data.decisions).length).toBe(100);
  });

  it('of a damaged log shows what stands before the damage', async () => {
    const damaged = folder();
    const log = await openWitnessLog({ dir: damaged });
    recordSession(log, 'first');
    recordSession(log, 'second');
    await log.close();
    const segment = join(damaged, '00000000.wal');
    const bytes = readFileSync(segment);
    bytes[bytes.length - 1000]! ^= 1;
    writeFileSync(segment, bytes);
    const html = sessionReport(damaged, 'first');
    expect(html).toContain('The log is not sound, so this page proves nothing');
    expect(html).toContain('NOT SOUND after');
    expect(() => sessionReport(damaged, 'third')).toThrow(/no session third/);
  });

  it('says whether the log has all that was signed', async () => {
    const signed = folder();
    const keyPath = join(folder(), 'audit.key');
    const key = makeCheckpointKeys(keyPath);
    const log = await openWitnessLog({ dir: signed });
    recordSession(log, 'first');
    await log.close();
    const [note] = signLog(signed, keyPath) as [string];
    const checkpoint = parseCheckpoint(note, [key], 'anchor.txt');
    expect(sessionReport(signed, 'first')).toContain('What this cannot know');
    const html = sessionReport(signed, 'first', { checkpoints: [checkpoint] });
    expect(html).toContain('It has all that was signed.');
    expect(html).toContain('They cover every entry.');
    const other = sessionReport(dir, 'first', { checkpoints: [checkpoint] });
    expect(other).toContain('NOT SOUND');
    expect(other).not.toContain('It has all that was signed.');
  });

  it('of a session whose key is gone there is none, and the error says why', async () => {
    const sealed = folder();
    const log = await openWitnessLog({ dir: sealed, encrypt: true });
    recordSession(log, 'gone');
    await log.close();
    rmSync(join(sealed, 'keys'), { recursive: true });
    expect(() => sessionReport(sealed, 'gone')).toThrow(expect.objectContaining({ code: 'sealed' }));
  });

  it('stays within 100 bytes for a decision with its trial', () => {
    const small = htmlOf(longSession(1000)).length;
    const large = htmlOf(longSession(100_000)).length;
    expect((large - small) / 99_000).toBeLessThan(100);
  });
});
