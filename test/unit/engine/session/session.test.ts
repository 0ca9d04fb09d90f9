// A session in the thread that runs it, on the reference model, where its parts can be looked at: f16 is exact to the
// last bit, the report counts what the pool holds, and a step that fails half-way ends the session instead of bending
// it.
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { SessionOptions } from '../../../../engine/options/types.ts';
import { Session } from '../../../../engine/session/session.ts';
import { Runtime } from '../../../../engine/transformer/runtime/runtime.ts';
import { KvError } from '../../../../native/index.ts';
import { defaultLaw, defaultThresholds } from '../../../../policy/index.ts';
import { openWitnessLog, readLog } from '../../../../witness/index.ts';
import { scratchFolders } from '../../witness/folder.ts';

const folder = scratchFolders();
let runtime: Runtime;
beforeAll(async () => {
  runtime = await Runtime.open({
    model: join(import.meta.dirname, '..', '..', '..', '..', 'models', 'reference'),
    threads: 1,
  });
});
afterAll(() => runtime.close());

const open = (options: SessionOptions): Session =>
  Session.open(runtime, { ...options, log: null, thresholds: defaultThresholds(runtime.shape.layers) });
const ids = (count: number, seed = 1): number[] =>
  Array.from({ length: count }, (_, i) => 10 + ((i * 7919 + seed * 104729) % 4000));

async function write(session: Session, prompt: readonly number[] | null, maxTokens: number): Promise<string> {
  let text = '';
  for await (const piece of session.generate(prompt, { maxTokens })) text += piece;
  return text;
}

describe('session', () => {
  it('in f16 is the exact session, bit for bit', async () => {
    const options: SessionOptions[] = [{ exact: true }, { cacheTypes: { k: 'f16', v: 'f16' } }];
    const [exact, f16] = options.map((one) => open({ ...one, compareTokens: 600 })) as [Session, Session];
    for (const session of [exact, f16]) await write(session, ids(500), 40);
    expect(f16.tokens).toEqual(exact.tokens);
    const rows = exact.hiddenRows();
    expect(rows.length).toBe(exact.tokens.length * runtime.model.config.hiddenSize);
    expect(rows.some((x) => x !== 0)).toBe(true);
    expect(f16.hiddenRows()).toEqual(rows);
    expect(f16.report().layers.every(({ kPages }) => Object.keys(kPages).join() === 'f16')).toBe(true);
    exact.close();
    f16.close();
  });

  it('reports the bytes that the pool holds, at every page', async () => {
    const session = open({ kvBudget: '32%', tokensExpected: 1200 });
    for (let page = 0; page < 9; page++) {
      await session.read(ids(128, page));
      const report = session.report();
      expect(report.kvBytesNow).toBe(session.pool.usedBytes);
      expect(session.pool.auditBytes()).toBe(session.pool.usedBytes);
      expect(report.kvBytes).toBe(session.pool.peakBytes);
      expect(session.pool.usedBytes).toBeLessThanOrEqual(session.pool.budgetBytes);
    }
    expect(session.report().decisions).toBeGreaterThan(0);
    session.close();
  });

  it('gives the same codes and the same decisions whether it reads at once or piece by piece', async () => {
    const text = ids(700);
    const whole = open({ cacheTypes: { k: 'rot4', v: 'rot2' }, tokensExpected: 1000 });
    await whole.read(text);
    const pieces = open({ cacheTypes: { k: 'rot4', v: 'rot2' }, tokensExpected: 1000 });
    for (let at = 0; at < text.length; at += 70) await pieces.read(text.slice(at, at + 70));
    for (let layer = 0; layer < runtime.shape.layers; layer++) {
      expect(pieces.cache.table(layer).kFormat).toEqual(whole.cache.table(layer).kFormat);
      expect(pieces.cache.table(layer).vFormat).toEqual(whole.cache.table(layer).vFormat);
      for (const page of [1, 2])
        expect(pieces.cache.exportPage(layer, page)).toEqual(whole.cache.exportPage(layer, page));
    }
    whole.close();
    pieces.close();
  });

  it('that runs out of budget says so again and again, and counts what it has', async () => {
    const session = open({ kvBudget: 1_000_000, openFormat: 'f16', windowTokens: 128 });
    const errors: unknown[] = [];
    for (let i = 0; i < 3; i++) await session.read(ids(2000)).catch((error: unknown) => errors.push(error));
    for (const error of errors) expect(error).toMatchObject({ name: 'KvError', code: 'budget-too-small' });
    expect(errors).toHaveLength(3);
    expect(session.report().tokens).toBe(session.cache.length());
    for (let layer = 0; layer < runtime.shape.layers; layer++)
      expect(session.cache.length(layer)).toBe(session.tokens.length);
    session.close();
  });

  it('whose step failed between two layers while it writes goes no further', async () => {
    const session = open({ witness: false });
    await session.read(ids(40));
    const { next } = runtime.dense;
    runtime.dense.next = (layer, ...rest) =>
      layer === 2 ? Promise.reject(new KvError('io', 'injected')) : next.call(runtime.dense, layer, ...rest);
    try {
      await expect(write(session, null, 5)).rejects.toMatchObject({ code: 'io' });
    } finally {
      runtime.dense.next = next;
    }
    await expect(session.read(ids(10))).rejects.toThrow(/half-way/);
    expect(() => session.fork()).toThrow(/half-way/);
    expect(session.report().tokens).toBe(40);
    session.close();
  });

  it('that is to end finishes its step and begins no other', async () => {
    const session = open({ kvBudget: '2MiB' });
    const reading = session.read(ids(2000)).catch((error: unknown) => error);
    await session.read(ids(5)).catch(() => {});
    await session.end();
    const { tokens } = session.report();
    expect(tokens).toBeGreaterThan(0);
    expect(await reading).toMatchObject({ name: 'KvError', code: 'closed' });
    expect(session.report().tokens).toBe(tokens);
    for (let layer = 0; layer < runtime.shape.layers; layer++) expect(session.cache.length(layer)).toBe(tokens);
    session.close();
  });

  // A book may ask a server, which answers when the session is gone.
  it('that is closed while earlier sessions are looked up does not write what they taught', async () => {
    const dir = folder();
    const log = await openWitnessLog({ dir });
    const { layers } = runtime.shape;
    const thresholds = defaultThresholds(layers);
    const found = { ...thresholds, law: defaultLaw(layers) };
    const session = Session.open(runtime, {
      kvBudget: '2MiB',
      log,
      thresholds,
      recall: async () => {
        session.close();
        return { thresholds: found, neighbours: [{ session: 's', distance: 0, seq: 0 }], shared: null };
      },
    });
    const reading = session.read(ids(900)).catch((error: unknown) => error);
    expect(await reading).toMatchObject({ name: 'KvError', code: 'closed' });
    await log.close();
    const kinds = [...readLog(dir)].map(({ kind }) => kind);
    expect(kinds).toContain('open');
    expect(kinds).not.toContain('evidence');
  });

  it('closes its pool with the last of its forks', async () => {
    const session = open({ exact: true });
    await session.read(ids(300));
    const fork = session.fork();
    session.close();
    session.close();
    await fork.read(ids(200));
    expect(fork.report().kvBytesNow).toBe(fork.pool.usedBytes);
    fork.close();
    expect(() => fork.pool.usedBytes).toThrow(/closed/);
  });
});
