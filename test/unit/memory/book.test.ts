/** The threshold book: defaults without evidence, cautious values with little, the log as the truth behind it. */

import { createHash } from 'node:crypto';
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterAll, describe, expect, test } from 'vitest';
import {
  adaptedDigest,
  C_DEFAULT,
  type Experience,
  experiencesOf,
  fingerprint,
  formatThresholdFile,
  importThresholds,
  type LoggedEntry,
  lawConstant,
  openThresholdBook,
  sessionOf,
  startPrice,
  toThresholdFile,
} from '../../../memory/index.ts';
import { KvError } from '../../../native/index.ts';
import { seeded } from '../../random.ts';
import { estimate, from } from './threshold-data.ts';

const root = mkdtempSync(join(tmpdir(), 'palimpsest-book-'));
afterAll(() => rmSync(root, { recursive: true, force: true }));
let folders = 0;
const fresh = (): string => join(root, String(folders++));

const here = fingerprint({ layers: 2, queryHeads: 4, kvHeads: 2, headDim: 64, tokens: 4096, pressure: 0.25 });
const query = { modelDigest: 'm1', family: 'llama', fingerprint: here, layers: 2 };
const learned = (seq: number, change: Partial<Experience> = {}): Experience => ({
  seq,
  session: `s${seq}`,
  modelDigest: 'm1',
  family: 'llama',
  fingerprint: here,
  priceThreshold: 1e-8,
  gains: { k: [1, 1], v: [1, 1] },
  c: 4,
  effectiveBits: 4,
  meanKld: null,
  predictedKld: 0.02,
  tokens: 4096,
  ...change,
});
const noEntries = (): LoggedEntry[] => [];

/** The two log entries of a session, as the log holds them. */
function sessionEntries(
  seq: number,
  change: { policy?: string; reason?: string; session?: string; body?: object } = {},
): LoggedEntry[] {
  const e = learned(seq);
  const session = change.session ?? e.session;
  const open = {
    model: { name: 'x', digest: 'm1', architecture: 'llama' },
    policy: { id: change.policy ?? 'price', version: 1 },
  };
  const close = {
    ...e,
    kvBytes: 1,
    kvBytesF16: 4,
    decisions: 3,
    refused: 1,
    reason: change.reason ?? 'done',
    ...change.body,
  };
  return [
    { seq: seq - 1, session, kind: 'open', body: open },
    { seq, session, kind: 'close', body: close },
  ];
}

/** The same of a session that taught this. */
const taught = (seq: number, change: Partial<Experience> = {}): [LoggedEntry, LoggedEntry] => {
  const { modelDigest: digest, family: architecture } = learned(seq, change);
  const [open, close] = sessionEntries(seq, { body: change });
  return [{ ...open!, body: { ...(open!.body as object), model: { digest, architecture } } }, close!];
};

/** The ids of two versions of one pack. */
const BLOCK6 = `pack:block6@${'a'.repeat(12)}`;
const LATER = `pack:block6@${'b'.repeat(12)}`;

/** The same of a session that had pages in a pack. */
const besidePack = (seq: number, id: string, change: Partial<Experience> = {}): [LoggedEntry, LoggedEntry] => {
  const [open, close] = taught(seq, change);
  return [{ ...open, body: { ...(open.body as object), context: { pack: { id, pageBytes: 64 } } } }, close];
};

/** Other payloads in a saved index, with digests that are right for them. */
function forge(dir: string, payloads: string): void {
  const sha256 = (text: string): string => createHash('sha256').update(text).digest('hex');
  const path = join(dir, 'manifest.json');
  const { body } = JSON.parse(readFileSync(path, 'utf8')) as { body: { payloads: object } };
  const file = readdirSync(dir).find((name) => name.endsWith('.jsonl'))!;
  writeFileSync(join(dir, file), payloads);
  body.payloads = { file, bytes: Buffer.byteLength(payloads), sha256: sha256(payloads) };
  writeFileSync(path, `${JSON.stringify({ body, sha256: sha256(JSON.stringify(body)) })}\n`);
}

describe('estimates', () => {
  test('no evidence gives the defaults exactly', () => {
    expect(startPrice([])).toBe(0);
    expect(lawConstant([])).toBe(C_DEFAULT);
  });

  // One session: about half of what it ended with; many equal ones: close to it, and never above.
  test('the start price grows with evidence and stays under what was learned', () => {
    const at = (n: number): number => startPrice(Array.from({ length: n }, () => ({ value: 1e-8, weight: 1 })));
    expect(at(1)).toBeGreaterThan(0.35e-8);
    expect(at(1)).toBeLessThan(0.5e-8);
    for (let n = 2; n <= 64; n *= 2) expect(at(n)).toBeGreaterThan(at(n / 2));
    expect(at(64)).toBeGreaterThan(0.95e-8);
    expect(at(64)).toBeLessThan(1e-8);
  });

  test('spread makes the start price more cautious, sessions that ended at 0 pull it down', () => {
    const agree = startPrice([1e-8, 1e-8, 1e-8].map((value) => ({ value, weight: 1 })));
    const differ = startPrice([1e-9, 1e-8, 1e-7].map((value) => ({ value, weight: 1 })));
    const withZero = startPrice([1e-8, 1e-8, 1e-8, 0].map((value) => ({ value, weight: 1 })));
    expect(differ).toBeLessThan(agree);
    expect(withZero).toBeLessThan(agree);
  });

  // c moves towards what was measured, from above: the cautious end of c is the high one.
  test('c follows evidence slowly and from above', () => {
    const at = (value: number, n: number): number =>
      lawConstant(Array.from({ length: n }, () => ({ value, weight: 1 })));
    expect(at(2, 1)).toBeLessThan(4);
    expect(at(2, 1)).toBeGreaterThan(2.5);
    expect(at(2, 50)).toBeGreaterThan(2);
    expect(at(2, 50)).toBeLessThan(2.3);
    expect(at(8, 50)).toBeGreaterThan(8);
    expect(at(1e9, 1)).toBeLessThan(40);
  });

  test('every estimate is finite and in range for any samples', () => {
    const samples = fc.array(
      fc.record({
        value: fc.oneof(fc.constant(0), fc.double({ min: 1e-300, max: 1e300, noNaN: true })),
        weight: fc.double({ min: 0, max: 1, noNaN: true }),
      }),
      { maxLength: 12 },
    );
    fc.assert(
      fc.property(samples, (s) => {
        const price = startPrice(s);
        const largest = Math.max(0, ...s.map((x) => x.value));
        expect(Number.isFinite(price) && price >= 0 && price <= largest * (1 + 1e-9)).toBe(true);
        expect(lawConstant(s)).toBeGreaterThan(0.3);
        expect(lawConstant(s)).toBeLessThan(50);
      }),
      { seed: 77, numRuns: 500 },
    );
  });
});

describe('lookup', () => {
  test('an empty book gives the defaults it was handed', async () => {
    const book = await openThresholdBook({ dir: null, logId: 'a', entries: noEntries });
    const { thresholds, neighbours } = await book.lookup(query);
    expect(neighbours).toEqual([]);
    expect(thresholds).toEqual({ version: 1, thresholds: {}, gains: { k: [1, 1], v: [1, 1] }, c: 4 });
  });

  // Ten sessions of this model, one far away in pressure: the near ones decide, and the evidence names them.
  test('the nearest sessions of the same model decide', async () => {
    const book = await openThresholdBook({ dir: null, logId: 'a', entries: noEntries });
    for (let i = 1; i <= 7; i++) await book.record(...taught(i));
    const relaxed = fingerprint({ layers: 2, queryHeads: 4, kvHeads: 2, headDim: 64, tokens: 4096, pressure: null });
    await book.record(...taught(90, { priceThreshold: 1, fingerprint: relaxed }));
    await book.record(...taught(91, { modelDigest: 'm2', priceThreshold: 1e-3 }));
    await book.record(...taught(92, { modelDigest: 'm3', family: 'qwen2', priceThreshold: 1e-3 }));
    const { thresholds, neighbours } = await book.lookup(query);
    const price = thresholds.thresholds['price.start']!;
    expect(price.origin).toBe('learned');
    expect(price.value).toBeGreaterThan(0.7e-8);
    expect(price.value).toBeLessThan(1e-8);
    expect(price.samples).toBe(7);
    expect(price.evidence).toEqual([1, 2, 3, 4, 5, 6, 7]);
    expect(neighbours).toHaveLength(8);
    expect(neighbours[0]).toEqual({ session: 's1', distance: 0, seq: 1 });
    expect(thresholds.c).toBe(4);
  });

  test('what errors in layers cost is told by those that measured it, each layer and side once', async () => {
    const cost = { layer: 1, side: 'v', cost: 4, rows: 8 } as const;
    const book = await openThresholdBook({ dir: null, logId: 'a', entries: noEntries });
    await book.record(...taught(1));
    await book.record(...taught(2, { costs: [cost] }));
    const { sources, law } = (await book.lookup(query)).thresholds;
    expect(sources!.law).toEqual({
      origin: 'learned',
      source: 'what 1 session found errors in single layers to cost',
      samples: 1,
      evidence: [2],
    });
    expect(law!.coefficient.v.map(({ samples }) => samples)).toEqual([0, 1]);
    for (const twice of [[cost, cost], new Array(4096).fill(cost)])
      expect(sessionOf(...taught(3, { costs: twice }), 'a', here.length)!.payload).toMatchObject({
        teaches: false,
        probed: false,
        experience: null,
      });
  });

  test('of a model with adapters sessions with the same are asked first, then those without, then those with others', async () => {
    const adapters = [{ digest: 'a'.repeat(64), scale: 0.5 }];
    const adapted = (seq: number, priceThreshold: number, others: object[] | undefined): [LoggedEntry, LoggedEntry] => {
      const [open, close] = taught(seq, { priceThreshold });
      return [{ ...open, body: { ...(open.body as object), adapters: others } }, close];
    };
    const modelDigest = adaptedDigest('m1', adapters);
    expect([adaptedDigest('m1', []), adaptedDigest('m1')]).toEqual(['m1', 'm1']);
    expect(adaptedDigest('m1', [{ ...adapters[0]!, scale: 1 }])).not.toBe(modelDigest);
    const asked = { ...query, modelDigest, plainDigest: 'm1' };
    const price = async (
      sessions: readonly (readonly [LoggedEntry, LoggedEntry])[],
      who: typeof asked | typeof query,
    ) => {
      const book = await openThresholdBook({ dir: null, logId: 'l', entries: noEntries });
      for (const [open, close] of sessions) await book.record(open, close);
      const { thresholds, neighbours } = await book.lookup(who);
      await book.close();
      return { value: thresholds.thresholds['price.start']?.value, seqs: neighbours.map(({ seq }) => seq) };
    };
    const own = adapted(2, 1e-8, adapters);
    const plain = adapted(4, 1e-8, undefined);
    const other = adapted(6, 1e-8, [{ digest: 'b'.repeat(64), scale: 1 }]);
    const near = await price([other, plain, own], asked);
    expect(near.seqs).toEqual([2, 4, 6]);
    expect((await price([other, plain, own], query)).seqs[0]).toBe(4);
    // One session is believed the more the nearer its weights are.
    const [same = 0, without = 0, strange = 0] = await Promise.all(
      [adapters, undefined, [{ digest: 'b'.repeat(64), scale: 1 }]].map(
        async (others) => (await price([adapted(8, 1e-8, others)], asked)).value,
      ),
    );
    expect(same).toBeGreaterThan(without);
    expect(without).toBeGreaterThan(strange);
    expect(strange).toBeGreaterThan(0);
  });

  test('of a session with a pack those with exactly that pack are asked first, and others count half', async () => {
    const book = await openThresholdBook({ dir: null, logId: 'a', entries: noEntries });
    for (let i = 1; i <= 8; i++) await book.record(...taught(i, { priceThreshold: 1e-8 }));
    await book.record(...besidePack(9, LATER, { priceThreshold: 1e-8 }));
    const farther = here.map((x, axis) => (axis === 0 ? x + 0.1 : x));
    await book.record(...besidePack(10, BLOCK6, { priceThreshold: 4e-8, fingerprint: farther }));
    const startOf = async (pack?: string) =>
      (await book.lookup({ ...query, pack })).thresholds.thresholds['price.start']!;
    const [plain, same, later] = [await startOf(), await startOf(BLOCK6), await startOf(LATER)];
    // The nearest eight have no pack; the one with the pack is farther away and is asked nevertheless.
    expect(plain.evidence).toEqual([1, 2, 3, 4, 5, 6, 7, 8]);
    expect(same.evidence).toContain(10);
    expect(same.evidence).not.toContain(9);
    expect(later.evidence).toContain(9);
    expect(same.value).toBeGreaterThan(later.value);
    // Seven that count half are worth less than eight that count whole.
    expect(later.value).toBeLessThan(plain.value);
    await book.close();
  });

  test('another model of the family helps a little, a foreign one not at all', async () => {
    const book = await openThresholdBook({ dir: null, logId: 'a', entries: noEntries });
    await book.record(...taught(1, { modelDigest: 'm2' }));
    await book.record(...taught(2, { modelDigest: 'm3', family: 'qwen2' }));
    const { thresholds, neighbours } = await book.lookup(query);
    expect(neighbours.map((n) => n.seq)).toEqual([1]);
    const price = thresholds.thresholds['price.start']!.value;
    expect(price).toBeGreaterThan(0);
    expect(price).toBeLessThan(0.25e-8);
  });

  test('compared sessions teach c, with their evidence', async () => {
    const book = await openThresholdBook({ dir: null, logId: 'a', entries: noEntries });
    for (let i = 1; i <= 5; i++) await book.record(...taught(i, { meanKld: 0.01 }));
    const { thresholds } = await book.lookup(query);
    expect(thresholds.c).toBeLessThan(3);
    expect(thresholds.c).toBeGreaterThan(2);
    expect(thresholds.thresholds['law.c']).toMatchObject({
      value: thresholds.c,
      samples: 5,
      evidence: [1, 2, 3, 4, 5],
    });
    expect(thresholds.gains).toEqual({ k: [1, 1], v: [1, 1] });
  });

  test('bad fingerprints are refused, and sessions that make no sense teach nothing', async () => {
    const book = await openThresholdBook({ dir: null, logId: 'a', entries: noEntries });
    await expect(book.lookup({ ...query, fingerprint: [1] })).rejects.toThrow(KvError);
    await expect(book.lookup({ ...query, layers: -1 })).rejects.toThrow(KvError);
    for (const change of [
      { priceThreshold: Number.NaN },
      { c: 0 },
      { fingerprint: [1] },
      { fingerprint: here.map(() => Number.NaN) },
      { meanKld: Infinity },
    ]) {
      await book.record(...taught(1, change));
    }
    await expect(book.record(...taught(2 ** 53))).rejects.toMatchObject({ code: 'bad-argument' });
    expect(await book.count()).toBe(0);
  });
});

describe('the log is the truth', () => {
  test('experiences are read from entries; failed, foreign and unfinished sessions teach nothing', () => {
    const entries = [
      ...sessionEntries(2),
      ...sessionEntries(4, { reason: 'error' }),
      ...sessionEntries(6, { policy: 'uniform' }),
      ...sessionEntries(8, { body: { fingerprint: [1, 2] } }),
      ...sessionEntries(10, { reason: 'aborted' }),
      sessionEntries(12)[0]!,
      sessionEntries(14)[1]!,
    ];
    expect([...experiencesOf(entries)].map((e) => e.seq)).toEqual([2, 10]);
    expect([...experiencesOf(entries)][0]).toEqual(learned(2));
  });

  // Writes a book, closes it, and opens it over logs that are longer, damaged beside it, and foreign.
  test('a book opens as saved, catches up with the log, and is rebuilt when its files are wrong', async () => {
    const dir = fresh();
    const log = [...sessionEntries(2), ...sessionEntries(4)];
    const open = (logId = 'a') =>
      openThresholdBook({ dir, logId, entries: (known) => log.filter((e) => e.seq >= Math.max(0, ...known)) });
    const first = await open();
    expect([await first.count(), first.seqs.at(-1)]).toEqual([2, 4]);
    await first.record(...taught(6));
    await first.close();
    log.push(...sessionEntries(6));

    // Two sessions that overlapped: the second began before the last one known had ended.
    log.splice(4, 0, { ...sessionEntries(9)[0]!, seq: 5 });
    log.push(sessionEntries(9)[1]!);
    const second = await open();
    expect([second.rebuilt, await second.count(), second.seqs.at(-1)]).toEqual([null, 4, 9]);
    await second.close();

    const file = readdirSync(join(dir, 'experiences')).find((name) => name.endsWith('.hnsw'))!;
    writeFileSync(join(dir, 'experiences', file), 'broken');
    const third = await open();
    expect(third.rebuilt).toContain(file);
    expect(await third.count()).toBe(4);
    await third.close();
    expect((await open('b')).rebuilt).toContain('log a');
  });
});

// 4,000 sessions of forty kinds of work: a book that was saved on the way and caught up in between, and one that is
// made of the log at once.
test('a book made again from the log gives the same answers', async () => {
  const dir = fresh();
  const seed = 77;
  const next = seeded(seed);
  const kinds = Array.from({ length: 40 }, () => here.map(() => next()));
  const print = (): number[] => kinds[Math.floor(next() * 40)]!.map((x) => Math.round((x + 0.1 * next()) * 1e6) / 1e6);
  const log: LoggedEntry[] = [];
  for (let n = 1; n <= 4000; n++) {
    const change = { fingerprint: print(), modelDigest: `m${n % 3}`, priceThreshold: 1e-9 * (1 + next()) };
    log.push(...taught(2 * n, change));
  }
  let known = 0;
  const entries = (seqs: readonly number[]) => log.slice(0, known).filter(({ seq }) => seq >= Math.max(0, ...seqs));
  for (known = 1000; known <= 8000; known += 1000)
    await (await openThresholdBook({ dir, logId: 'a', entries })).close();
  known = 8000;
  const grown = await openThresholdBook({ dir, logId: 'a', entries });
  const again = await openThresholdBook({ dir: null, logId: 'a', entries: () => log });
  expect([grown.rebuilt, await grown.count(), await again.count()]).toEqual([null, 4000, 4000]);
  for (let i = 0; i < 100; i++) {
    const where = { ...query, modelDigest: `m${i % 3}`, fingerprint: print() };
    expect(await grown.nearestSessions(where.fingerprint, 10), `seed ${seed}, query ${i}`).toEqual(
      await again.nearestSessions(where.fingerprint, 10),
    );
    expect(await grown.lookup(where)).toEqual(await again.lookup(where));
  }
});

describe('a saved book', () => {
  /** A log of sessions that end at these seqs, and a book that was saved from it. */
  async function saved(...seqs: number[]) {
    const dir = fresh();
    const open = (log: readonly LoggedEntry[]) =>
      openThresholdBook({ dir, logId: 'a', entries: (known) => log.filter((e) => e.seq >= Math.max(0, ...known)) });
    const log = seqs.flatMap((seq) => sessionEntries(seq));
    await (await open(log)).close();
    return { dir, log, open };
  }

  // A log that was cut, and one that was cut and went on: no evidence may cite an entry that is not there.
  test('is read again when the log shrank or went on differently', async () => {
    const { log, open } = await saved(2, 4, 6, 8);
    const cut = await open(log.slice(0, 4));
    expect([cut.rebuilt, cut.seqs]).toEqual([expect.stringContaining('s8 that ended with entry 8'), [2, 4]]);
    expect((await cut.lookup(query)).thresholds.thresholds['price.start']!.evidence).toEqual([2, 4]);
    await cut.close();
    const other = [...log.slice(0, 2), ...sessionEntries(4, { session: 'another' }), ...sessionEntries(10)];
    const on = await open(other);
    expect([on.rebuilt, on.seqs]).toEqual([expect.stringContaining('s4 that ended with entry 4'), [2, 4, 10]]);
    await on.close();
    expect((await open(other)).rebuilt).toBeNull();
  });

  // Payloads of a wrong kind under right digests, as somebody who can compute a digest would leave them.
  test('with nonsense under right digests is read again, and never a TypeError', async () => {
    const { payload: good } = sessionOf(...taught(2), 'a', here.length)!;
    const nonsense: unknown[] = [
      ...[null, 1, 'x', [], {}, ['a'], ['a', 2], ['a', 2, null], [0, 2, good], ['a', -1, good], ['a', 1.5, good]],
      ...[
        { ...good, tokens: -1 },
        { ...good, modelDigest: null },
        { ...good, teaches: false },
        { ...good, formats: 7 },
      ].map((payload) => ['a', 2, payload]),
      ...[{ fingerprint: [1, 2] }, { gains: { k: 'x', v: [] } }, { meanKld: 'x' }, { seq: 1.5 }].map((change) => [
        'a',
        2,
        { ...good, experience: { ...learned(2), ...change } },
      ]),
    ];
    for (const line of nonsense) {
      const { dir, log, open } = await saved(2);
      forge(join(dir, 'experiences'), `${JSON.stringify(line)}\n`);
      const book = await open(log);
      expect(book.rebuilt, JSON.stringify(line)).toContain('payloads');
      expect(await book.nearestSessions(here, 3)).toEqual([{ id: { log: 'a', seq: 2 }, distance: 0, payload: good }]);
      await book.close();
    }
  });

  // 1,100 sessions of a model: the last hundred, far from the origin, ended at another price.
  test('exports what all sessions of a model say, however many and far away', async () => {
    const far = fingerprint({ layers: 2, queryHeads: 64, kvHeads: 64, headDim: 256, tokens: 1e6, pressure: 0.01 });
    const late = Array.from({ length: 100 }, (_, i) => ({
      fingerprint: far,
      seq: 2 * (1001 + i),
      priceThreshold: 1e-4,
    }));
    const book = await openThresholdBook({
      dir: null,
      logId: 'a',
      entries: () => [
        ...Array.from({ length: 1000 }, (_, i) => sessionEntries(2 * (i + 1))).flat(),
        ...late.flatMap((body) => sessionEntries(body.seq, { body })),
      ],
    });
    const shape = { layers: 2, queryHeads: 4, kvHeads: 2, headDim: 64 };
    const { thresholds } = await book.exportFile({ modelDigest: 'm1', shape, family: 'llama' }, null);
    expect(thresholds['price.start']).toMatchObject({ samples: 1100 });
  });
});

describe('a law that comes with the package', () => {
  const shipped = from('calibrated', 9);
  const target = { modelDigest: shipped.model.digest, shape: shipped.model.shape, family: 'llama', shipped };
  const session = (seq: number): [LoggedEntry, LoggedEntry] =>
    taught(seq, { modelDigest: target.modelDigest, text: estimate(2, 0.3, 1) });

  // What sessions learned stands beside it: it is told in relation to that law, and is no evidence for it.
  test('is a part of what is exported, however often, and still holds where that is imported', async () => {
    const book = await openThresholdBook({ dir: null, logId: 'a', entries: noEntries });
    for (const seq of [2, 4, 6]) await book.record(...session(seq));
    const file = await book.exportFile(target, null);
    expect(file.parts).toHaveLength(2);
    const [own] = file.parts.filter(
      ({ evidence }) => evidence.sessions === 3 && evidence.logs[0]?.logId !== 'calibrated',
    );
    for (const side of ['k', 'v'] as const) {
      expect(own!.law!.coefficient[side].map(({ samples }) => samples)).toEqual([0, 0]);
      expect(file.law!.coefficient[side][0]).toEqual(shipped.law!.coefficient[side][0]);
    }
    expect(own!.law!.text.samples).toBe(3);
    expect(file.law!.text.samples).toBe(shipped.law!.text.samples + 3);

    const dir = fresh();
    importThresholds(dir, file, target);
    const pupil = await openThresholdBook({ dir, logId: 'b', entries: noEntries });
    expect(formatThresholdFile(await pupil.exportFile(target, null))).toBe(formatThresholdFile(file));
    const { thresholds } = await pupil.lookup({ ...query, modelDigest: target.modelDigest });
    expect(thresholds.law!.coefficient).toEqual(file.law!.coefficient);
    await pupil.record(...session(8));
    const again = await pupil.exportFile(target, null);
    expect(again.parts).toHaveLength(3);
    expect(again.law!.coefficient.k[0]).toEqual(shipped.law!.coefficient.k[0]);
    for (const one of [book, pupil]) await one.close();
  });

  test('is left out where sessions learned nothing that it is needed for', async () => {
    const book = await openThresholdBook({ dir: null, logId: 'a', entries: noEntries });
    await book.record(...taught(2, { modelDigest: target.modelDigest }));
    expect(await book.exportFile(target, null)).toMatchObject({ law: null, parts: [] });
    await book.close();
  });
});

describe('imported thresholds', () => {
  const target = { modelDigest: 'm1', shape: { layers: 2, queryHeads: 4, kvHeads: 2, headDim: 64 } };
  test('stand where nothing was learned, and are exported again byte for byte', async () => {
    const teacher = await openThresholdBook({ dir: null, logId: 'teacher', entries: noEntries });
    for (let i = 1; i <= 4; i++) await teacher.record(...taught(i, { meanKld: 0.01, gains: { k: [2, 1], v: [1, 1] } }));
    const learnedThere = await teacher.exportFile(
      { ...target, family: 'llama' },
      { id: 'teacher', acknowledgedSeq: 4 },
    );
    const exported = { ...learnedThere, gains: { k: [2, 1], v: [0.5, 1] } };

    const dir = fresh();
    const open = () => openThresholdBook({ dir, logId: 'pupil', entries: noEntries });
    const pupil = await open();
    await pupil.close();
    expect(() => importThresholds(dir, exported, { ...target, modelDigest: 'm2' })).toThrow(KvError);
    importThresholds(dir, exported, target);

    const again = await open();
    expect(formatThresholdFile(await again.exportFile({ ...target, family: 'llama' }, null))).toBe(
      formatThresholdFile(exported),
    );
    const { thresholds } = await again.lookup(query);
    expect(thresholds.thresholds['price.start']).toMatchObject({ origin: 'file', samples: 4 });
    expect(thresholds.gains).toEqual(exported.gains);
    expect(thresholds.c).toBe(exported.c);

    // Fewer samples of its own do not outweigh the file; as many do.
    for (let i = 1; i <= 3; i++) await again.record(...taught(i));
    expect((await again.lookup(query)).thresholds.thresholds['price.start']!.origin).toBe('file');
    await again.record(...taught(4));
    expect((await again.lookup(query)).thresholds.thresholds['price.start']!.origin).toBe('learned');
  });

  // What is learned beside pages in a pack is of that pack, version and all.
  test('of sessions with a pack are used by sessions with exactly that pack, and by no others', async () => {
    const teacher = await openThresholdBook({ dir: null, logId: 'teacher', entries: noEntries });
    for (let i = 1; i <= 4; i++) await teacher.record(...besidePack(i, BLOCK6, { priceThreshold: 5e-8 }));
    for (let i = 5; i <= 7; i++) await teacher.record(...taught(i));
    const plain = await teacher.exportFile({ ...target, family: 'llama' }, null);
    expect(plain.evidence.sessions).toBe(3);
    expect(plain.model).not.toHaveProperty('pack');
    const ofPack = await teacher.exportFile({ ...target, family: 'llama', pack: BLOCK6 }, null);
    expect(ofPack).toMatchObject({ model: { pack: BLOCK6 }, evidence: { sessions: 4 } });
    expect((await teacher.exportFile({ ...target, family: 'llama', pack: LATER }, null)).evidence.sessions).toBe(0);

    const dir = fresh();
    for (const pack of [undefined, LATER])
      expect(() => importThresholds(dir, ofPack, { ...target, pack })).toThrow(/rests on sessions with pack:block6@/);
    importThresholds(dir, ofPack, { ...target, pack: BLOCK6 });
    const pupil = await openThresholdBook({ dir, logId: 'pupil', entries: noEntries });
    const startOf = async (pack?: string) =>
      (await pupil.lookup({ ...query, pack })).thresholds.thresholds['price.start']?.origin;
    expect(await startOf(BLOCK6)).toBe('file');
    for (const pack of [undefined, LATER]) expect(await startOf(pack)).not.toBe('file');
    // What holds without a pack holds beside one that nothing is known of, and never in place of what is known.
    importThresholds(dir, plain, target);
    for (const pack of [undefined, LATER]) expect(await startOf(pack)).toBe('file');
    const { thresholds } = await pupil.lookup({ ...query, pack: BLOCK6 });
    expect(thresholds.thresholds['price.start']!.value).toBe(ofPack.thresholds['price.start']!.value);
    expect(formatThresholdFile(await pupil.exportFile({ ...target, family: 'llama', pack: BLOCK6 }, null))).toBe(
      formatThresholdFile(ofPack),
    );
    for (const one of [teacher, pupil]) await one.close();
  });

  // What a session logs as its gains is what it was started with. Were that evidence, an imported 2 would be √2 after
  // one session.
  test('gains survive the sessions that were started with them', async () => {
    const dir = fresh();
    const book = await openThresholdBook({ dir, logId: 'a', entries: noEntries });
    const gains = { k: [2, 1], v: [0.5, 16] };
    const file = toThresholdFile({ version: 1, thresholds: {}, gains, c: 4 }, target, null);
    importThresholds(dir, file, target);
    for (let i = 1; i <= 9; i++) {
      await book.record(...taught(i, { gains: (await book.lookup(query)).thresholds.gains }));
      expect((await book.lookup(query)).thresholds.gains).toEqual(gains);
    }
    expect((await book.exportFile({ ...target, family: 'llama' }, null)).gains).toEqual(gains);
  });

  test('a lookup can be written to a file', async () => {
    const book = await openThresholdBook({ dir: null, logId: 'a', entries: noEntries });
    await book.record(...taught(1));
    const { thresholds } = await book.lookup(query);
    expect(formatThresholdFile(toThresholdFile(thresholds, target, null))).toContain('price.start');
  });
});
