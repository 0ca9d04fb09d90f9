// The yardsticks keep what their papers say (T22), on attention that a person can check; every one of them keeps its
// budget, the order of positions and nothing that was dropped, whatever it is shown.
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { Kept, YardstickContext, YardstickSession } from '../../engine/evaluate/yardstick.ts';
import { pyramidCapacity, yardsticks } from '../../lab/rules/index.ts';
import { FORMAT_NAMES, FORMATS, type FormatName } from '../../native/index.ts';

const BITS: Readonly<Partial<Record<FormatName, number>>> = { f16: 16, q8: 8.25, rot4: 4.5, rot3: 3.5, rot2: 2.5 };
const tokenBytes = Object.fromEntries(FORMAT_NAMES.map((name) => [name, 16 * (BITS[name] ?? 16)])) as Record<
  FormatName,
  number
>;

const contextOf = (changes: Partial<YardstickContext> = {}): YardstickContext => ({
  layer: 0,
  layers: 4,
  promptTokens: 100,
  tokenBytes,
  ...changes,
});
const open = (id: string, changes: Partial<YardstickContext> = {}): YardstickSession =>
  yardsticks.get(id)!.open(contextOf(changes));
const upTo = (count: number): number[] => Array.from({ length: count }, (_, at) => at);

/** Shows a session one query at `query` that gives `shares` to the held tokens, and nothing to those without one. */
function show(
  session: YardstickSession,
  held: readonly number[],
  query: number,
  shares: Readonly<Record<number, number>>,
): void {
  session.observe({ held, queries: [query], attention: Float32Array.from(held, (position) => shares[position] ?? 0) });
}

const bytesOf = ({ tokens, formats }: Kept): number =>
  tokens.reduce((sum, _, at) => sum + tokenBytes[formats?.[at] ?? 'f16'], 0);

describe('streaming', () => {
  it('keeps the sinks and the newest, and never more than its budget', () => {
    const session = open('streaming');
    expect(session.keep(upTo(20), 7).tokens).toEqual([0, 1, 2, 3, 17, 18, 19]);
    expect(session.keep(upTo(20), 2).tokens).toEqual([0, 1]);
    expect(session.keep(upTo(5), 10).tokens).toEqual(upTo(5));
    expect(yardsticks.get('streaming')).toMatchObject({ positions: 'slot' });
  });
});

describe('h2o', () => {
  it('keeps what got most attention in sum, and the window', () => {
    const session = open('h2o');
    show(session, upTo(8), 7, { 1: 0.5, 2: 0.2, 7: 0.3 });
    show(session, upTo(9), 8, { 2: 0.4, 5: 0.35, 8: 0.25 });
    // Sums: 1 0.5, 2 0.6, 5 0.35. Window: 7, 8.
    expect(session.keep(upTo(9), 4).tokens).toEqual([1, 2, 7, 8]);
  });
  it('has the column sums of the attention as scores, wherever tokens stand in the cache', () => {
    const session = open('h2o');
    show(session, upTo(6), 5, { 0: 0.1, 3: 0.6, 5: 0.3 });
    // Tokens 1 and 2 were dropped: what token 3 got is still that of token 3.
    show(session, [0, 3, 4, 5, 6], 6, { 0: 0.2, 4: 0.7, 6: 0.1 });
    expect(session.keep([0, 3, 4, 5, 6], 4).tokens).toEqual([3, 4, 5, 6]);
    expect(session.keep([0, 3, 4, 5, 6], 3).tokens).toEqual([3, 4, 6]);
  });
});

describe('snapkv', () => {
  it('keeps the last 32 tokens of the prompt and what they look at, with its neighbours', () => {
    const session = open('snapkv');
    const held = upTo(100);
    // A query before the last 32 does not count.
    show(session, held, 67, { 5: 1 });
    show(session, held, 99, { 40: 0.9, 99: 0.1 });
    expect(session.keep(held, 37).tokens).toEqual([38, 39, 40, 41, 42, ...held.slice(68)]);
  });
});

describe('pyramidkv', () => {
  it('gives lower layers more, and all together what the mean asks for', () => {
    for (const [capacity, layers, prefix] of [
      [100, 30, 2000],
      [480, 12, 900],
      [64, 5, 1e6],
      [300, 7, 310],
    ] as const) {
      const all = upTo(layers).map((layer) => pyramidCapacity(capacity, layer, layers, prefix));
      expect(Math.abs(all.reduce((sum, one) => sum + one, 0) - capacity * layers)).toBeLessThanOrEqual(layers);
      expect(all).toEqual([...all].sort((a, b) => b - a));
      expect(all[0]).toBeLessThanOrEqual(prefix);
    }
    // β = 20: the line goes from 2·100 − 5 down to 5.
    expect([0, 9].map((layer) => pyramidCapacity(100, layer, 10, 2000))).toEqual([195, 5]);
    // 2·480 − 24 > 900, so the lowest layer keeps all and the highest what is left.
    expect([0, 11].map((layer) => pyramidCapacity(480, layer, 12, 900))).toEqual([900, 60]);
  });
});

describe('scissorhands', () => {
  it('drops half of a full cache: what most queries gave less than an equal share', () => {
    const session = open('scissorhands');
    const held = upTo(30);
    for (const query of [27, 28, 29]) show(session, held, query, { 3: 0.4, 9: 0.3, [query]: 0.3 });
    expect(session.keep(held, 24).tokens).toEqual([3, 9, ...upTo(10).map((at) => at + 20)]);
    expect(session.keep(held, 30).tokens).toEqual(held);
  });
  it('forgets queries that are 400 tokens behind', () => {
    const session = open('scissorhands');
    show(session, upTo(40), 39, { 1: 1 });
    show(session, upTo(500), 499, { 2: 0.9, 499: 0.1 });
    const kept = session.keep(upTo(500), 24).tokens;
    expect(kept).toContain(2);
    expect(kept).not.toContain(1);
  });
});

describe('coded-h2o', () => {
  it('keeps everything in rot4 before it drops anything, and then the newest half and what got most attention', () => {
    const session = open('coded-h2o');
    const held = upTo(200);
    show(session, held, 199, { 7: 0.6, 50: 0.3, 199: 0.1 });
    // 4.5 of 16 bits: 60 tokens in f16 are 213 in rot4.
    const all = session.keep(held, 60);
    expect(all.tokens).toEqual(held);
    expect(new Set(all.formats)).toEqual(new Set(['rot4']));
    // 10 tokens in f16 are 35: the newest 17, and of the others those that were looked at, then the newest of the rest.
    const few = session.keep(held, 10);
    expect(few.tokens).toEqual([7, 50, ...held.slice(167)]);
    expect(new Set(few.formats)).toEqual(new Set(['rot4']));
    // What was coded stays so, and what comes is exact while it fits.
    const more = session.keep([...few.tokens, 200], 20);
    expect(more.tokens).toEqual([...few.tokens, 200]);
    expect(more.formats!.filter((format) => format === 'f16')).toEqual(['f16']);
  });
});

describe('age-tiers', () => {
  it('keeps sinks and the newest 64 exact, the next in rot4, the oldest in rot2, and drops the oldest where not even that fits', () => {
    const session = open('age-tiers');
    const held = upTo(400);
    const { tokens, formats } = session.keep(held, 150);
    expect(tokens).toEqual(held);
    const at = (format: FormatName): number[] => tokens.filter((_, index) => formats![index] === format);
    expect(at('f16')).toEqual([0, 1, 2, 3, ...held.slice(336)]);
    expect(Math.max(...at('rot2'))).toBeLessThan(Math.min(...at('rot4')));
    expect(at('rot4').length).toBeGreaterThan(50);
    expect(session.keep(held, 80).tokens.length).toBeLessThan(400);
    expect(session.keep(held, 80).tokens.slice(0, 4)).toEqual([0, 1, 2, 3]);
  });
});

describe('anchors', () => {
  it('keeps what the last query looks at, and credits it to the token whatever its place', () => {
    const session = open('anchors');
    const held = upTo(300);
    show(session, held, 299, Object.fromEntries(upTo(16).map((at) => [50 + at, 1 / 16])));
    const first = session.keep(held, 120);
    const exact = ({ tokens, formats }: Kept): number[] => tokens.filter((_, at) => formats![at] === 'f16');
    expect(exact(first)).toEqual([0, 1, 2, 3, ...upTo(16).map((at) => at + 50), ...held.slice(268)]);
    // What was once below f16 does not come back, although the next query looks at it.
    show(session, held, 299, { 100: 1 });
    expect(exact(session.keep(held, 120))).not.toContain(100);
  });
});

describe.each([...yardsticks.values()])('$id', (yardstick) => {
  it('keeps its budget, the order of positions, only what is held, and says the same again', () => {
    const steps = fc.array(fc.record({ seed: fc.nat(), budget: fc.integer({ min: 1, max: 200 }) }), {
      minLength: 1,
      maxLength: 6,
    });
    fc.assert(
      fc.property(steps, fc.nat(5), (all, layer) => {
        const play = (): Kept[] => {
          const session = yardstick.open(contextOf({ layer, layers: 6, promptTokens: 96 }));
          let held: number[] = [];
          let before = new Map<number, number>();
          let next = 0;
          return all.map(({ seed, budget }) => {
            for (let at = 0; at < 48; at++) held.push(next++);
            let word = seed;
            const attention = Float32Array.from({ length: held.length }, () => {
              word = (Math.imul(word, 1664525) + 1013904223) >>> 0;
              return word / 2 ** 32 / held.length;
            });
            if (yardstick.observes) session.observe({ held, queries: [next - 1], attention });
            const kept = session.keep(held, budget);
            const there = new Set(held);
            expect(
              kept.tokens.every((token, at) => there.has(token) && (at === 0 || token > kept.tokens[at - 1]!)),
            ).toBe(true);
            if (yardstick.id !== 'pyramidkv') expect(bytesOf(kept)).toBeLessThanOrEqual(budget * tokenBytes.f16 + 1e-6);
            const now = new Map(kept.tokens.map((token, at) => [token, FORMATS[kept.formats?.[at] ?? 'f16'].rank]));
            for (const [token, rank] of now) expect(rank).toBeGreaterThanOrEqual(before.get(token) ?? 0);
            before = now;
            held = [...kept.tokens];
            return kept;
          });
        };
        expect(play()).toEqual(play());
      }),
      { numRuns: 60 },
    );
  });

  it('keeps everything as it is where there is room', () => {
    const { tokens, formats = [] } = yardstick.open(contextOf()).keep(upTo(100), 100);
    expect(tokens).toEqual(upTo(100));
    expect(formats.filter((format) => format !== 'f16')).toEqual([]);
  });
});
