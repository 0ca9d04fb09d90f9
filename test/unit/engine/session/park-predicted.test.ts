// Parked pages that are predicted: what a reader reconstructs is what the writer reckoned with, to the bit; they take
// far fewer bytes and cost little; entropy coding loses nothing and is close to the entropy; predictors in files are
// checked; a session whose predictor is not here is read again.

import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import type { SessionOptions } from '../../../../engine/options/types.ts';
import { addDivergence, emptySums, NO_TARGET, toDivergence } from '../../../../engine/session/divergence.ts';
import { fitPredictor } from '../../../../engine/session/park/fit.ts';
import { cholesky, eigen, inverse, product, transposed } from '../../../../engine/session/park/linear.ts';
import { parkedBytes } from '../../../../engine/session/park/park.ts';
import { parseParked } from '../../../../engine/session/park/parked-file.ts';
import {
  DEVIATIONS,
  formPredictor,
  type Predictor,
  parsePredictor,
} from '../../../../engine/session/park/predictor.ts';
import { findPredictor } from '../../../../engine/session/park/predictors.ts';
import { Distributions, LEVEL_MAX, logisticShares } from '../../../../engine/session/park/rans.ts';
import { decodePage, encodePage, levelsOf } from '../../../../engine/session/park/residual.ts';
import { resumeSession } from '../../../../engine/session/park/resume.ts';
import { Session } from '../../../../engine/session/session.ts';
import type { Runtime } from '../../../../engine/transformer/runtime/runtime.ts';
import { defaultThresholds } from '../../../../policy/index.ts';
import { seeded } from '../../../random.ts';
import { codeOf } from '../../../refusal.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { MODEL, openEngine, withPredictor } from '../on-reference.ts';

const folder = scratchFolders();
let runtime: Runtime;
let predictor: Predictor;
withPredictor((...opened) => {
  [runtime, predictor] = opened;
});

const story = (): number[] =>
  runtime.model.tokenizer.encode(
    'The keeper of bees went down to the river, and the river was high that spring. '.repeat(60),
  );

describe('entropy coding (T20)', () => {
  const random = seeded(5);
  const distributions = new Distributions(Uint16Array.from(DEVIATIONS.flatMap((one) => [...logisticShares(one)])));
  const tables = Uint8Array.from({ length: 64 }, (_, i) => i % DEVIATIONS.length);
  const levelsOfKind: Record<string, () => number> = {
    none: () => 0,
    most: () => LEVEL_MAX,
    any: () => Math.floor(random() * (2 * LEVEL_MAX + 1)) - LEVEL_MAX,
    few: () => (random() < 0.05 ? 1 : 0),
  };
  it.each(Object.keys(levelsOfKind))('gives back %s, in as many bits as it says', (kind) => {
    const levels = Int8Array.from({ length: 128 * 64 }, levelsOfKind[kind]!);
    const bytes = distributions.encode(levels, tables);
    const back = new Int8Array(levels.length);
    distributions.decode(bytes, tables, back);
    expect(back).toEqual(levels);
    // Each of 32 states takes four bytes, of which it fills one to three; and 1% for whole states.
    const bits = distributions.bits(distributions.counts(levels, tables.length), tables);
    expect(8 * bytes.length).toBeGreaterThan(0.99 * bits);
    expect(8 * bytes.length).toBeLessThan(1.01 * bits + 32 * 32);
    expect(codeOf(() => distributions.decode(bytes.subarray(0, bytes.length - 2), tables, back))).toBe('bad-file');
    expect(codeOf(() => distributions.decode(Buffer.concat([bytes, bytes]), tables, back))).toBe('bad-file');
  });

  it('writes the bytes that it always wrote', () => {
    const levels = Int8Array.from({ length: 128 * 64 }, (_, i) => ((i * 7) % 5) - 2);
    const digest = createHash('sha256').update(distributions.encode(levels, tables)).digest('hex');
    expect(digest.slice(0, 16)).toBe('24c2d79f9e45ad96');
  });

  it('refuses shares that do not add up', () => {
    const shares = logisticShares(1);
    shares[0]! += 1;
    expect(codeOf(() => new Distributions(shares))).toBe('bad-file');
  });
});

describe('small matrices', () => {
  const n = 24;
  const random = seeded(6);
  const any = Float64Array.from({ length: n * n }, () => random() - 0.5);
  const positive = product(any, transposed(any, n), n);
  const near = (a: Float64Array, b: Float64Array): void => {
    expect(Math.max(...a.map((value, i) => Math.abs(value - b[i]!)))).toBeLessThan(1e-9);
  };
  const one = Float64Array.from({ length: n * n }, (_, i) => (i % (n + 1) === 0 ? 1 : 0));

  it('are taken apart and put together again', () => {
    const root = cholesky(positive, n);
    near(product(root, transposed(root, n), n), positive);
    near(product(inverse(any, n), any, n), one);
    const { values, vectors } = eigen(positive, n);
    near(product(vectors, transposed(vectors, n), n), one);
    const scaled = vectors.map((value, i) => value * values[Math.floor(i / n)]!);
    near(product(transposed(vectors, n), scaled, n), positive);
  });
});

describe('a predicted page', () => {
  it('is reconstructed as its writer reckoned, layer for layer', () => {
    const random = seeded(7);
    let written: Int8Array | null = null;
    let read: Int8Array | null = null;
    const hash = createHash('sha256');
    for (const map of predictor.data.layers) {
      const rowsOf = (at: number): Float32Array =>
        Float32Array.from({ length: 128 * predictor.width }, (_, i) => {
          const c = at + (i % predictor.width);
          return map.centres[c]! + (24 * (random() - 0.5) * 3) / map.gains[c]! / 7;
        });
      const rows = { k: rowsOf(0), v: rowsOf(predictor.width) };
      const made = encodePage(predictor, map, written, rows, 4);
      const back = decodePage(predictor, map, read, made.bytes);
      expect(Buffer.from(back.k.buffer).equals(Buffer.from(made.rows.k.buffer))).toBe(true);
      expect(Buffer.from(back.v.buffer).equals(Buffer.from(made.rows.v.buffer))).toBe(true);
      hash.update(made.bytes);
      written = levelsOf(map, made.rows);
      read = levelsOf(map, back);
      expect(codeOf(() => decodePage(predictor, map, null, made.bytes.subarray(0, made.bytes.length - 1)))).toBe(
        'bad-file',
      );
    }
    // On every instruction set: files of earlier versions could not be read otherwise.
    expect(hash.digest('hex').slice(0, 16)).toBe('35535680d555f791');
  });
});

describe('a session parked by prediction', () => {
  const setupOf = (options: SessionOptions) => ({
    ...options,
    log: null,
    thresholds: defaultThresholds(runtime.shape.layers),
    compareTokens: 128,
  });

  it.each([
    ['8-bit', {}],
    ['exact', { exact: true }],
    ['under a budget', { kvBudget: '40%', tokensExpected: 1500 }],
  ] as [string, SessionOptions][])(
    '(%s) takes a fourth of the bytes or less, and diverges little',
    async (_name, options) => {
      const tokens = story().slice(0, 900);
      const session = Session.open(runtime, setupOf(options));
      await session.read(tokens.slice(0, 772));
      const bytes = parkedBytes(session, predictor);
      expect(bytes.length).toBeLessThan(parkedBytes(session).length / 4);
      const parked = parseParked(bytes, 'parked');
      const { session: back, resumed } = await resumeSession(runtime, setupOf(options), parked, {}, predictor);
      expect(resumed).toMatchObject({ by: 'pages', why: null });
      for (let layer = 0; layer < runtime.shape.layers; layer++) {
        const [is, was] = [back, session].map(({ cache }) => cache.table(layer));
        expect([is!.kFormat, is!.vFormat]).toEqual([was!.kFormat, was!.vFormat]);
      }
      expect(back.governed.kv.budgetBytes).toBe(session.governed.kv.budgetBytes);
      for (const one of [session, back]) await one.read(tokens.slice(772));
      const sums = emptySums();
      const width = runtime.model.config.hiddenSize;
      const rows = [session, back].map((one) => one.hiddenRows().slice(-128 * width)) as [Float32Array, Float32Array];
      await addDivergence(sums, runtime.dense, ...rows, new Int32Array(128).fill(NO_TARGET), width);
      // The goal of the method for a real model.
      expect(toDivergence(sums).meanKld).toBeLessThan(0.02);
      expect(toDivergence(sums).meanKld).toBeGreaterThan(0);
      for (const one of [session, back]) one.close();
    },
  );

  it('is read again where what predicted it is not here', async () => {
    const session = Session.open(runtime, setupOf({}));
    await session.read(story().slice(0, 300));
    const parked = parseParked(parkedBytes(session, predictor), 'parked');
    const { session: back, resumed } = await resumeSession(runtime, setupOf({}), parked);
    expect(resumed.why).toMatch(/predicted by .* not here/);
    expect(back.lastHidden).toEqual(session.lastHidden);
    for (const one of [session, back]) one.close();
  });

  it('goes through an engine', async () => {
    const engine = await openEngine(folder());
    const session = await engine.openSession();
    await session.read(story().slice(0, 400));
    const { path, kvBytes, fileBytes } = await session.park(undefined, { predict: true });
    expect(fileBytes).toBeLessThan(kvBytes / 4);
    const back = await engine.resume(path);
    expect(back.resumed).toMatchObject({ by: 'pages', tokens: 400 });
    await engine.close();
  });
});

describe('a predictor', () => {
  const path = join(MODEL, '..', 'predictors', 'reference.predictor');

  it('in a file is refused where it was changed, and is the same after it was written again', () => {
    const file = readFileSync(path);
    expect(formPredictor(parsePredictor(file, path)).equals(file)).toBe(true);
    const changed = Buffer.from(file);
    changed[5000]! ^= 1;
    expect(codeOf(() => parsePredictor(changed, path))).toBe('checksum-mismatch');
    expect(codeOf(() => parsePredictor(file.subarray(0, 20), path))).toBe('bad-file');
    expect(findPredictor('0'.repeat(64), null)).toBeNull();
  });

  it('needs texts that are not all alike, and says so', async () => {
    const alike = new Array<number>(3000).fill(300);
    await expect(fitPredictor(runtime, [alike])).rejects.toMatchObject({
      code: 'bad-argument',
      message: expect.stringContaining('too alike'),
    });
  });

  it('needs more tokens than it has channels', async () => {
    await expect(fitPredictor(runtime, [story().slice(0, 200)])).rejects.toMatchObject({ code: 'bad-argument' });
  });
});
