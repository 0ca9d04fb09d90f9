// Whether a session keeps latents: each bound that speaks against it, on numbers that a person can follow.
import { describe, expect, test } from 'vitest';
import { latentBytes, pageBytes } from '../../../native/index.ts';
import { codesLike, defaultThresholds, type Foreseen, foresee, thresholdOf } from '../../../policy/index.ts';

const set = defaultThresholds(30);
/** Nine query heads with a KV head each, 30 layers, 15 pages, and room for six tenths of them in four bits. */
const codeBytes = 2 * pageBytes(codesLike('xq4'), 9, 64);
const WIDE: Foreseen = {
  tokens: 2048,
  sessions: 0,
  pages: 450,
  roomBytes: 0.6 * 450 * codeBytes,
  roomBesideBytes: 0.58 * 450 * codeBytes,
  format: 'xq4',
  latentBytes: latentBytes('xq4', 576),
  codeBytes,
  leastShare: 0.8,
  operations: 0.57,
  pageMs: 0.3,
  stepLatencyBudgetMs: 1000,
};
const without = (part: Partial<Foreseen>) => foresee({ ...WIDE, ...part }, set);

describe('foresight', () => {
  test('keeps latents where pages do not fit in codes, and says by how much', () => {
    const { kept, pages, because } = foresee(WIDE, set);
    expect(kept).toBe('xq4');
    expect(because).toMatchObject({ rule: 'latent-pressure', threshold: 'latent.pressure', bound: 1 });
    expect(because.measured).toBeCloseTo(1 / 0.6);
    // So many latents and all others in codes fit, and one latent fewer does not.
    const bytes = (count: number): number => count * WIDE.latentBytes + (WIDE.pages - count) * codeBytes;
    expect(bytes(pages)).toBeLessThanOrEqual(WIDE.roomBesideBytes);
    expect(bytes(pages - 1)).toBeGreaterThan(WIDE.roomBesideBytes);
  });

  const three = { latentBytes: latentBytes('xq4', 576), codeBytes: 2 * pageBytes('trellis4', 3, 64) };
  const two = { latentBytes: latentBytes('xq4', 256), codeBytes: 2 * pageBytes('trellis4', 2, 64) };
  test.each([
    ['three query heads share a KV head', three, 'latent-shape'],
    ['two do', two, 'latent-shape'],
    ['the session is short', { tokens: 512 }, 'latent-length'],
    ['nobody knows its length', { tokens: null, pages: 0 }, 'latent-length'],
    ['all pages fit in codes', { roomBytes: 450 * codeBytes }, 'latent-pressure'],
    ['the budget cannot hold latents beside pages', { leastShare: 1.01 }, 'latent-room'],
    ['steps may not take longer, and nobody said how long', { stepLatencyBudgetMs: null, pageMs: null }, 'latent-time'],
    ['the stated latency is too short', { stepLatencyBudgetMs: 100 }, 'latent-latency'],
  ])('keeps none where %s', (_, part, rule) => {
    const told = without(part);
    expect(told).toMatchObject({ kept: null, operations: 0, because: { rule } });
    const { threshold, bound } = told.because;
    expect(bound).toBe(thresholdOf(set, threshold as Parameters<typeof thresholdOf>[1]).value);
  });

  test('allows no more operations than were foreseen, and none beyond those of latents that are asked for', () => {
    // A quarter of 200 ms are 166.7 pages, which take 95 operations; a quarter of 10,000 ms are more.
    expect(without({ stepLatencyBudgetMs: 200, roomBesideBytes: 0.9 * 450 * codeBytes }).operations).toBeCloseTo(95);
    expect(without({ stepLatencyBudgetMs: 10_000 }).operations).toBe(1024);
    const few = without({
      pages: 7,
      roomBytes: 4 * codeBytes,
      roomBesideBytes: 4 * codeBytes,
      stepLatencyBudgetMs: null,
    });
    expect(few).toMatchObject({ kept: 'xq4', operations: 4 });
  });

  test('the same data gives the same answer, also after a way through JSON', () => {
    const told = foresee(WIDE, set);
    expect(foresee(JSON.parse(JSON.stringify(told.seen)), JSON.parse(JSON.stringify(set)))).toEqual(told);
  });
});
