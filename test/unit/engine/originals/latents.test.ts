/**
 * Originals beside latents, on a small model with a KV head for each query head: what a page was before it became a
 * latent is kept, and comes back to the bit where somebody asks for it; a page without one is made of its latent.
 */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { SessionOptions } from '../../../../engine/options/types.ts';
import { Session } from '../../../../engine/session/session.ts';
import { Runtime } from '../../../../engine/transformer/runtime/runtime.ts';
import { encodeLatent, PAGE_KINDS, PAGE_TOKENS, SIDES, type StoredSide } from '../../../../native/index.ts';
import { defaultThresholds } from '../../../../policy/index.ts';
import { type ChangeBody, type NoteBody, replaySession } from '../../../../witness/index.ts';
import { type FamilyGolden, familyTokens, hfFiles, readFamily } from '../../../model/family-files.ts';
import { normals, relativeError, uniform } from '../../../native/dense.ts';
import { codeOf } from '../../../refusal.ts';
import { scratchFolders } from '../../witness/folder.ts';
import { type Logged, logged } from '../on-runtime.ts';
import { temporaryFolder } from '../transformer/model-files.ts';

const folder = scratchFolders();
const models = temporaryFolder();
afterAll(() => models.remove());
const HELD = PAGE_KINDS.indexOf('latent');
const TOKENS = 800;
const governed = { kvBudget: '25%', tokensExpected: TOKENS + 200, latents: 'xq4' } as const;
const text = familyTokens(TOKENS + 200);

let runtime: Runtime;
beforeAll(async () => {
  const family = readFamily('llama');
  const { config } = family;
  const everyHead: FamilyGolden = {
    ...family,
    config: { ...config, num_key_value_heads: config['num_attention_heads'] },
    tensors: family.tensors.map(([name, shape]) => [name, /[kv]_proj/.test(name) ? [2 * shape[0]!, shape[1]!] : shape]),
  };
  for (const [file, content] of Object.entries(hfFiles(everyHead))) models.write(file, content);
  runtime = await Runtime.open({ model: models.dir, threads: 1 });
});
afterAll(() => runtime.close());

const placesOf = ({ cache }: Session): { readonly layer: number; readonly page: number; readonly isHeld: boolean }[] =>
  Array.from({ length: cache.shape.layers }, (_, layer) =>
    [...cache.table(layer).kind].map((kind, page) => ({ layer, page, isHeld: kind === HELD })),
  ).flat();
const heldIn = (session: Session) => placesOf(session).filter(({ isHeld }) => isHeld);

/** Reads the text. → sides in 8 bits as they were when they were last seen, by layer and page */
async function readWhole(session: Session): Promise<Map<string, readonly StoredSide[]>> {
  const seen = new Map<string, readonly StoredSide[]>();
  const { cache } = session;
  for (let at = 0; at < TOKENS; at += 64) {
    await session.read(text.slice(at, Math.min(at + 64, TOKENS)));
    for (const { layer, page, isHeld } of placesOf(session)) {
      if (isHeld || SIDES.some((side) => cache.format(layer, page, side) !== 'q8')) continue;
      seen.set(
        `${layer} ${page}`,
        SIDES.map((side) => cache.exportSide(layer, page, side)),
      );
    }
  }
  return seen;
}

const run = (options: SessionOptions, work: (session: Session) => Promise<void>): Promise<Logged> =>
  logged(
    folder(),
    (log) =>
      Session.open(runtime, {
        ...governed,
        ...options,
        log,
        thresholds: defaultThresholds(runtime.shape.layers),
      }),
    work,
  );

const restoredIn = ({ entries }: Logged): ChangeBody[] =>
  entries.flatMap(({ kind, body }) =>
    kind === 'change' && (body as ChangeBody).cause === 'restore' ? [body as ChangeBody] : [],
  );

describe('a page that became a latent', () => {
  it.each(['disk', 'memory'] as const)('comes back as it was, and moves on (%s)', async (originals) => {
    const ended = await run({ originals }, async (session) => {
      const before = await readWhole(session);
      const { cache } = session;
      const held = heldIn(session);
      expect(held.length).toBeGreaterThan(4);
      for (const { layer, page } of held)
        for (const side of SIDES) expect(session.governed.originals!.has(layer, page, side)).toBe(true);
      expect(session.report().originals).toMatchObject({ place: originals, sidesLeftOut: 0, lost: null });
      const { layer, page } = held[0]!;
      const used = cache.usedBytes;
      const grown = session.restore(layer, page, 'rot2');
      expect(cache.usedBytes).toBe(used + grown);
      expect(SIDES.map((side) => cache.format(layer, page, side))).toEqual(['rot2', 'rot2']);
      const exact = before.get(`${layer} ${page}`)!;
      for (const [i, side] of SIDES.entries()) {
        const made = session.governed.originals!.encoded(exact[i]!, page, side, 'rot2');
        expect(cache.exportSide(layer, page, side)).toEqual(made);
      }
      expect(cache.auditBytes()).toBe(cache.usedBytes);
      await session.read(text.slice(TOKENS));
      const { kvBytes, budgetBytes } = session.report();
      expect(kvBytes).toBeLessThanOrEqual(budgetBytes!);
    });
    expect(replaySession(ended.entries)).toMatchObject({ equal: true, firstDifference: null });
    expect(restoredIn(ended).map(({ changes }) => changes)).toMatchObject([[{ side: 'kv', from: 'xq4', to: 'rot2' }]]);
  });

  it('comes back of its latent where it has no original, which is further from what it was', async () => {
    const madeOf = async (originalsBytes: string): Promise<{ sides: number; error: number }> => {
      let found = { sides: 0, error: 0 };
      await run({ originals: 'memory', originalsBytes, kvBudget: '30%' }, async (session) => {
        const before = await readWhole(session);
        const { cache } = session;
        const { layer, page } = heldIn(session).at(-1)!;
        const kept = SIDES.filter((side) => session.governed.originals!.has(layer, page, side));
        cache.setBudget(2 ** 30);
        session.restore(layer, page, 'trellis4');
        const decoded = SIDES.map((side) => cache.decode(layer, page, side));
        const errors = SIDES.map((side, i) => {
          cache.exchangeSide(layer, page, side, before.get(`${layer} ${page}`)![i]!);
          return relativeError(decoded[i]!, cache.decode(layer, page, side));
        });
        found = { sides: kept.length, error: Math.max(...errors) };
      });
      return found;
    };
    const [all, none] = [await madeOf('1GB'), await madeOf('1KB')];
    expect([all.sides, none.sides]).toEqual([2, 0]);
    expect(all.error).toBeGreaterThan(0);
    expect(none.error).toBeGreaterThan(1.2 * all.error);
  });

  it('is not made of originals while a fork shares it, and its codes are watched once it is back', async () => {
    const ended = await run({ originals: 'memory', kvBudget: '35%' }, async (session) => {
      await readWhole(session);
      const { layer, page } = heldIn(session)[0]!;
      const fork = session.fork();
      expect(codeOf(() => session.restore(layer, page, 'rot2'))).toBe('unsupported');
      expect(heldIn(session)[0]).toMatchObject({ layer, page });
      fork.close();
      session.restore(layer, page, 'rot2');
      const { cache } = session;
      session.governed.mending.check();
      const made = cache.exportSide(layer, page, 'v');
      cache.exchangeSide(layer, page, 'v', cache.exportSide(layer, page, 'k'));
      session.governed.mending.check();
      expect(cache.exportSide(layer, page, 'v')).toEqual(made);
      expect(session.report().damage).toEqual({ sides: 1, mendedSides: 1 });
    });
    expect(replaySession(ended.entries)).toMatchObject({ equal: true, firstDifference: null });
  });
});

describe('a page that is held as a latent in a degraded layer', () => {
  const degradedIn = ({ entries }: Logged): ChangeBody[] =>
    entries.flatMap(({ kind, body }) =>
      kind === 'change' && (body as ChangeBody).cause === 'degraded' ? [body as ChangeBody] : [],
    );
  /** So little more than was promised is too much that layers are degraded which are not. */
  const reading = async (worth: number, originals: 'memory' | 'none'): Promise<Logged> => {
    const thresholdValues = { 'quality.ratio': 0.2, 'degraded.worth': worth };
    const ended = await run({ originals, thresholdValues, kvBudget: '40%' }, async (session) => {
      for (let at = 0; at < text.length; at += 64) {
        await session.read(text.slice(at, at + 64));
        const { kvBytes, budgetBytes } = session.report();
        expect(kvBytes).toBeLessThanOrEqual(budgetBytes!);
        expect(session.cache.auditBytes()).toBe(session.cache.usedBytes);
      }
    });
    expect(replaySession(ended.entries)).toMatchObject({ equal: true, firstDifference: null });
    return ended;
  };

  it('gets keys and values of its originals within the budget, where that is asked for', async () => {
    const back = degradedIn(await reading(0.1, 'memory')).flatMap(({ changes }) => changes);
    expect(back.filter(({ side }) => side === 'kv')).not.toEqual([]);
    for (const { side, from, to } of back) expect([side === 'kv', to]).toEqual([from === 'xq4', 'trellis4']);
    expect(degradedIn(await reading(0, 'memory'))).toEqual([]);
    expect(degradedIn(await reading(0.1, 'none'))).toEqual([]);
  });
});

describe('a latent that is damaged', () => {
  const other = (): Uint8Array => {
    const { hiddenSize } = runtime.model.config;
    return encodeLatent('xq4', normals(uniform(5), PAGE_TOKENS * hiddenSize), hiddenSize);
  };

  /** Another latent takes the place of that as which a page is held. */
  function damage({ cache }: Session, { layer, page }: { readonly layer: number; readonly page: number }): void {
    const { budgetBytes } = cache;
    cache.setBudget(2 ** 30);
    cache.restore(layer, page, 'rot2', { keepLatent: false });
    cache.holdLatent(layer, page, 'xq4', other());
    cache.setBudget(budgetBytes);
  }

  const notesOf = ({ entries }: Logged): NoteBody[] =>
    entries.flatMap(({ kind, body }) => (kind === 'note' ? [body as NoteBody] : []));
  const sourcesOf = (of: Logged): string[] =>
    notesOf(of).flatMap(({ layerChanges }) => (layerChanges ?? []).map(({ source }) => source));

  it('goes for keys and values of originals, in what there is room for, while the session goes on', async () => {
    let damaged = { layer: 0, page: 0 };
    const ended = await run({ originals: 'memory' }, async (session) => {
      const before = await readWhole(session);
      const { cache } = session;
      const { layer, page } = heldIn(session)[1]!;
      damaged = { layer, page };
      damage(session, damaged);
      await session.read(text.slice(TOKENS, TOKENS + 130));
      expect(session.report().damage).toEqual({ sides: 1, mendedSides: 1 });
      const exact = before.get(`${layer} ${page}`)!;
      for (const [i, side] of SIDES.entries()) {
        const format = cache.format(layer, page, side);
        expect(cache.exportSide(layer, page, side)).toEqual(
          session.governed.originals!.encoded(exact[i]!, page, side, format),
        );
      }
      expect(cache.auditBytes()).toBe(cache.usedBytes);
      expect(session.report().kvBytes).toBeLessThanOrEqual(session.report().budgetBytes!);
    });
    expect(notesOf(ended).flatMap(({ damaged: told }) => told ?? [])).toEqual([
      { ...damaged, side: 'kv', format: 'xq4', mended: true },
    ]);
    expect(restoredIn(ended).flatMap(({ changes }) => changes)).toMatchObject([
      { ...damaged, side: 'kv', from: 'xq4' },
    ]);
    expect(sourcesOf(ended)).not.toContain('codes');
    expect(replaySession(ended.entries)).toMatchObject({ equal: true, firstDifference: null });
  });

  it('has its layer watched without originals, and no keys and values are made of it', async () => {
    const ended = await run({}, async (session) => {
      await readWhole(session);
      const damaged = heldIn(session)[0]!;
      damage(session, damaged);
      expect(codeOf(() => session.restore(damaged.layer, damaged.page, 'rot2'))).toBe('checksum-mismatch');
      await session.read(text.slice(TOKENS, TOKENS + 130));
      expect(session.report().damage.mendedSides).toBe(0);
      expect(heldIn(session)).toContainEqual(damaged);
    });
    expect(sourcesOf(ended)).toContain('codes');
    expect(replaySession(ended.entries)).toMatchObject({ equal: true, firstDifference: null });
  });

  it('is none that keys and values are made of where somebody asks for them', async () => {
    await run({ originals: 'memory' }, async (session) => {
      const before = await readWhole(session);
      const { cache } = session;
      const { layer, page } = heldIn(session)[0]!;
      damage(session, { layer, page });
      const used = cache.usedBytes;
      expect(session.restore(layer, page, 'rot2')).toBe(cache.usedBytes - used);
      const exact = before.get(`${layer} ${page}`)![0]!;
      expect(cache.exportSide(layer, page, 'k')).toEqual(session.governed.originals!.encoded(exact, page, 'k', 'rot2'));
      expect(session.report().damage).toEqual({ sides: 1, mendedSides: 1 });
    });
  });
});
