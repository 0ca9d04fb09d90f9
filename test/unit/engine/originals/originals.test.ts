/**
 * Originals of a cache: the sides of its pages as they were before their first move, in 8 bits or in four, to the bit;
 * of those pages that are there, up to a number of bytes; and sessions, which decide the same with them as without and
 * go on where they are lost.
 */
import fs, { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { Meter } from '../../../../engine/metrics/meter.ts';
import type { SessionOptions } from '../../../../engine/options/types.ts';
import { Originals } from '../../../../engine/originals/originals.ts';
import type { OriginalsTerms } from '../../../../engine/originals/types.ts';
import { Session } from '../../../../engine/session/session.ts';
import {
  type FormatName,
  type KvCache,
  type KvError,
  openKvCache,
  openPool,
  SIDES,
  type StoredSide,
} from '../../../../native/index.ts';
import { defaultThresholds } from '../../../../policy/index.ts';
import { type ChangeBody, openWitnessLog, readLog, replaySession } from '../../../../witness/index.ts';
import { normals, uniform } from '../../../native/dense.ts';
import { codeOf, refusal } from '../../../refusal.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { ids } from '../on-reference.ts';
import { onRuntime, write } from '../on-runtime.ts';

const folder = scratchFolders();
const shape = { layers: 1, queryHeads: 4, kvHeads: 2, headDim: 64 };

function filled(): KvCache {
  const cache = openKvCache({ shape, pool: openPool(2 ** 30), openFormat: 'q8' });
  const random = uniform(7);
  cache.append(0, normals(random, 400 * 128), normals(random, 400 * 128));
  return cache;
}

const keeping = (cache: KvCache, terms: Partial<OriginalsTerms> = {}): Originals =>
  new Originals({
    cache,
    terms: { place: 'disk', dir: folder(), bytesMax: 2 ** 20, format: 'q8', promote: 0, ...terms },
    windowFormat: 'q8',
    onLost: (error) => expect.fail(error.message),
  });

function expectSame(kept: StoredSide | null, side: StoredSide): void {
  expect([kept?.format, Buffer.compare(kept!.bytes, side.bytes)]).toEqual([side.format, 0]);
}

describe('originals of a cache', () => {
  it.each(['disk', 'memory'] as const)('are what pages were before their first move (%s)', (place) => {
    const cache = filled();
    const originals = keeping(cache, { place });
    for (const side of SIDES) {
      const before = cache.exportSide(0, 1, side);
      originals.before(0, 1, side);
      cache.transcode(0, 1, side, 'trellis2');
      // A second move finds nothing to keep, and changes nothing.
      originals.before(0, 1, side);
      expectSame(originals.read(0, 1, side), before);
      // A page that is not in the format of the window any more has no original to keep.
      cache.transcode(0, 2, side, 'trellis2');
      originals.before(0, 2, side);
      expect([originals.has(0, 2, side), originals.read(0, 2, side)]).toEqual([false, null]);
    }
    expect(originals.report()).toMatchObject({ place, sides: 2, sidesLeftOut: 0, lost: null });
    originals.cut(1);
    expect(originals.report()).toMatchObject({ sides: 0, bytes: 0 });
    originals.close();
    cache.close();
  });

  it.each(['trellis4', 'rot4'] as const)('are encoded as the cache itself would (%s)', (format) => {
    const cache = filled();
    const originals = keeping(cache, { format });
    for (const page of [0, 1, 2]) {
      for (const side of SIDES) {
        originals.before(0, page, side);
        cache.transcode(0, page, side, format);
        const own = cache.exportSide(0, page, side);
        const kept = originals.read(0, page, side)!;
        expect([page, kept.format, Buffer.compare(kept.bytes, own.bytes)]).toEqual([page, format, 0]);
      }
    }
    originals.close();
    cache.close();
  });

  it('stop where their bytes are spent, and the earlier ones stay', () => {
    const cache = filled();
    const originals = keeping(cache, { bytesMax: 2 * 20_000 });
    for (const page of [0, 1]) for (const side of SIDES) originals.before(0, page, side);
    expect(originals.report()).toMatchObject({ sides: 2, sidesLeftOut: 2 });
    expect(originals.report().bytes).toBeLessThanOrEqual(40_000);
    expect([originals.has(0, 0, 'v'), originals.has(0, 1, 'k')]).toEqual([true, false]);
    originals.close();
    cache.close();
  });

  it('have the present form of a side beside them for as long as it is that', () => {
    const cache = filled();
    const originals = keeping(cache);
    originals.before(0, 1, 'k');
    const forms = (['trellis4', 'trellis2'] satisfies FormatName[]).map((format) => {
      cache.transcode(0, 1, 'k', format);
      expect(originals.keepPresent(0, 1, 'k')).toBe(true);
      const { bytes } = originals.report();
      // Once more: one such form is kept of a side.
      expect([originals.keepPresent(0, 1, 'k'), originals.report().bytes]).toEqual([true, bytes]);
      expectSame(originals.readPresent(0, 1, 'k'), cache.exportSide(0, 1, 'k'));
      return bytes;
    });
    expect(forms[1]!).toBeLessThan(forms[0]!);
    originals.forgetPresent(0, 1, 'k');
    expect(originals.readPresent(0, 1, 'k')).toBeNull();
    expect(originals.report().sides).toBe(1);
    originals.close();
    cache.close();
  });
});

describe('a session with originals', () => {
  const { runtime, open } = onRuntime();
  const prompt = ids(900);
  const governed = { kvBudget: '25%', tokensExpected: 1000 } as const;

  async function read(options: SessionOptions): Promise<{ session: Session; moves: string[]; text: string }> {
    const dir = folder();
    const log = await openWitnessLog({ dir });
    const session = open({ ...governed, ...options }, log);
    const text = await write(session, prompt);
    await log.flush();
    const moves = [...readLog(dir, { session: session.id, kinds: ['decision'] })].map(({ body }) =>
      JSON.stringify((body as { decision: unknown }).decision),
    );
    await log.close();
    return { session, moves, text };
  }

  it('decides and answers as without them, within the same budget, and has one of every side that moved', async () => {
    const originalsDir = folder();
    const runs = [
      await read({}),
      await read({ originals: 'disk', originalsDir }),
      await read({ originals: 'memory', originalsFormat: 'trellis4' }),
    ];
    const moved = new Set(
      runs[0]!.moves
        .map((move) => JSON.parse(move) as { layer: number; page: number; side: string })
        .map(({ layer, page, side }) => `${layer} ${page} ${side}`),
    );
    for (const { session, moves, text } of runs.slice(1)) {
      expect([text, moves]).toEqual([runs[0]!.text, runs[0]!.moves]);
      const { originals, kvBytes, budgetBytes } = session.report();
      expect(originals!.sides).toBe(moved.size);
      expect(kvBytes).toBe(runs[0]!.session.report().kvBytes);
      expect(kvBytes).toBeLessThanOrEqual(budgetBytes!);
    }
    expect(runs[0]!.session.report().originals).toBeNull();
    const [eight, four] = runs.slice(1).map(({ session }) => session.report().originals!.bytes) as [number, number];
    expect(four / eight).toBeGreaterThan(0.45);
    expect(four / eight).toBeLessThan(0.55);
    if (process.platform !== 'win32') expect(readdirSync(originalsDir)).toEqual([]);
    for (const { session } of runs) session.close();
  });

  it('makes a page again of them when it is asked to, both sides or none, and replays', async () => {
    const dir = folder();
    const log = await openWitnessLog({ dir });
    const session = open({ kldBudget: 0.01, tokensExpected: 1000, originals: 'memory' }, log);
    await session.read(prompt);
    const formsOf = (layer: number, page: number): FormatName[] =>
      SIDES.map((side) => session.cache.format(layer, page, side));
    const places = Array.from({ length: runtime().shape.layers }, (_, layer) =>
      [0, 1, 2, 3].map((page) => [layer, page] as const),
    )
      .flat()
      .filter(([layer, page]) => formsOf(layer, page).every((form) => form !== 'q8'));
    const [[layer, page], other] = places as [readonly [number, number], readonly [number, number]];
    const before = SIDES.map((side) => session.cache.exportSide(layer, page, side));
    const forms = formsOf(layer, page);
    const used = session.cache.usedBytes;
    expect(codeOf(() => session.restore(layer, page, 'trellis1'))).toBe('unsupported');
    expect(codeOf(() => session.restore(layer, page, 'f16'))).toBe('unsupported');
    expect(codeOf(() => session.restore(layer, page, 'nothing' as FormatName))).toBe('unsupported');
    expect(codeOf(() => session.restore(9, page))).toBe('unsupported');
    expect(SIDES.map((side) => session.cache.exportSide(layer, page, side))).toEqual(before);
    const original = SIDES.map((side) => session.governed.originals!.read(layer, page, side)!);
    const grown = session.restore(layer, page, 'q8');
    expect(formsOf(layer, page)).toEqual(['q8', 'q8']);
    for (const [i, side] of SIDES.entries()) expectSame(original[i]!, session.cache.exportSide(layer, page, side));
    expect([grown > 0, session.cache.usedBytes]).toEqual([true, used + grown]);
    expect(session.cache.auditBytes()).toBe(session.cache.usedBytes);
    await session.read(ids(100, 6));
    const fork = session.fork();
    expect(codeOf(() => session.restore(...other, 'q8'))).toBe('unsupported');
    fork.close();
    // What has no room stays as it was.
    session.cache.setBudget(session.cache.usedBytes + 100);
    const otherForms = formsOf(...other);
    expect(codeOf(() => session.restore(...other, 'q8'))).toBe('budget-exceeded');
    expect(formsOf(...other)).toEqual(otherForms);
    session.close();
    await log.close();
    const entries = [...readLog(dir, { session: session.id })];
    const changes = entries.filter(({ kind, body }) => kind === 'change' && (body as ChangeBody).cause === 'restore');
    expect(changes).toHaveLength(1);
    expect(changes[0]!.body).toMatchObject({
      changes: SIDES.map((side, i) => ({ layer, page, side, from: forms[i]!, to: 'q8' })),
    });
    expect(replaySession(entries)).toMatchObject({ equal: true, complete: true });
  });

  it('keeps its budget where pages are made again of them all along', async () => {
    const dir = folder();
    const log = await openWitnessLog({ dir });
    const session = open({ kvBudget: '30%', tokensExpected: 1400, originals: 'memory' }, log);
    let restored = 0;
    for (let at = 0; at < 26; at++) {
      await session.read(ids(52, 3 + at));
      const page = at % Math.max(1, session.cache.table(3).pages);
      try {
        if (session.restore(3, page, 'trellis4') > 0) restored++;
      } catch (error) {
        expect(['unsupported', 'budget-exceeded', 'bad-argument']).toContain((error as KvError).code);
      }
      const { kvBytes, budgetBytes } = session.report();
      expect(kvBytes).toBeLessThanOrEqual(budgetBytes!);
      expect(session.cache.auditBytes()).toBe(session.cache.usedBytes);
    }
    expect(restored).toBeGreaterThan(2);
    session.close();
    await log.close();
    expect(replaySession([...readLog(dir, { session: session.id })])).toMatchObject({ equal: true, complete: true });
  });

  it('forgets those of pages that are taken back; a fork has none', async () => {
    const session = open({ ...governed, kvBudget: '45%', originals: 'memory' });
    await session.read(prompt);
    const fork = session.fork();
    const before = session.report().originals!;
    expect(fork.report().originals).toBeNull();
    expect(before.sides).toBeGreaterThan(0);
    fork.close();
    session.rewind(256);
    const after = session.report().originals!;
    expect(after.sides).toBeGreaterThan(0);
    expect(after.sides).toBeLessThan(before.sides);
    expect(after.sides).toBeLessThanOrEqual(2 * 2 * runtime().shape.layers);
    session.rewind(0);
    expect(session.report().originals).toMatchObject({ sides: 0, bytes: 0 });
    session.close();
  });

  it('goes on without them where the disk fails, and says so', async () => {
    const told: string[] = [];
    const meter = new Meter([], (name, fields) => told.push(`${name} ${JSON.stringify(fields)}`));
    const dir = folder();
    const log = await openWitnessLog({ dir });
    let left = 20;
    const failing = Object.assign(new Error('no space'), { code: 'ENOSPC' });
    const write = ((...given: unknown[]) => {
      if (left-- > 0) return (fs.write as (...all: unknown[]) => void)(...given);
      queueMicrotask(() => (given.at(-1) as (error: Error, written: number) => void)(failing, 0));
    }) as unknown as typeof fs.write;
    const session = Session.open(runtime(), {
      ...governed,
      originals: 'disk',
      originalsDir: folder(),
      originalFiles: { ...fs, write },
      meter,
      log,
      thresholds: defaultThresholds(runtime().shape.layers),
    });
    await session.read(prompt);
    expect(session.report().originals).toMatchObject({ place: 'none', sides: 0, bytes: 0, lost: 'io' });
    expect(told.filter((one) => one.startsWith('originals-lost'))).toEqual([
      expect.stringContaining(`"session":"${session.id}"`),
    ]);
    await session.read(ids(20, 5));
    await log.flush();
    const notes = [...readLog(dir, { session: session.id, kinds: ['note'] })].map(({ body }) => body);
    expect(notes).toContainEqual({ originalsLost: 'io', tokens: expect.any(Number) });
    session.close();
    await log.close();
  });

  it('refuses what says something of originals that are not kept, and what is no size', () => {
    for (const wrong of [
      { originalsBytes: '1MiB' },
      { originalsDir: folder() },
      { originalsFormat: 'rot4' },
      { originals: 'none', originalsBytes: '1MiB' },
      { originals: 'memory', originalsDir: folder() },
      { originals: 'disk', originalsBytes: '25%' },
      { originals: 'disk', originalsBytes: 'much' },
    ] as SessionOptions[])
      expect(codeOf(() => open(wrong))).toBe('bad-argument');
    const file = join(folder(), 'file');
    fs.writeFileSync(file, '');
    for (const originalsDir of ['/does/not/exist', file]) {
      const error = refusal(() => open({ ...governed, originals: 'disk', originalsDir }));
      expect([error.code, error.message]).toEqual([
        'not-found',
        `${originalsDir} is no folder, where originals are to be kept`,
      ]);
    }
  });
});
