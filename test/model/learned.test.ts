// What is learned does no harm: after 1, 10 and 50 sessions of mixed texts and budgets, some contradictory, some
// refused, some compared with the exact cache, the divergence of texts that none of them read is, in the geometric
// mean, at most 1.02 times that without a state folder, and on none of them above that of `uniform`, which knows
// nothing, unless it was so without. What is learned changes which pages move, so that single texts come out better or
// worse, by half on this model at divergences of 1e-5. Nothing shorter shows that fifty sessions do no harm; each reads
// a text.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { type EvaluateRow, evaluate, parseCache } from '../../engine/evaluate/evaluate.ts';
import { ownText } from '../../engine/evaluate/own-text.ts';
import type { SessionOptions } from '../../engine/index.ts';
import { findBook } from '../../engine/state/folder.ts';
import { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import type { ThresholdBook } from '../../memory/index.ts';
import { defaultThresholds } from '../../policy/index.ts';
import { codeOf, ids, MODEL, openEngine } from '../unit/engine/on-reference.ts';
import { scratchFolders } from '../unit/witness/folder.ts';

const SESSIONS = 50;
const ASKED_AFTER = [1, 10, SESSIONS];
const WORST_RATIO = 1.02;
const folder = scratchFolders();
const root = join(import.meta.dirname, '..', '..');
const read = (...path: string[]): string => readFileSync(join(root, ...path), 'utf8');
/** What sessions ask for, in turn. */
const BUDGETS: readonly SessionOptions[] = [
  { kvBudget: '30%' },
  { kvBudget: '25%' },
  { kldBudget: 0.01 },
  { kvBudget: '60%' },
  // Both cannot be kept.
  { kvBudget: '25%', kldBudget: 1e-6 },
  { kvBudget: '40%', stepLatencyBudgetMs: 0.1 },
  { kldBudget: 1e-4 },
  { kvBudget: '100%' },
];
/** No session that teaches reads any of these. */
const UNSEEN = [
  { name: 'chronicle', content: ownText().slice(18_000) },
  { name: 'code', content: read('policy', 'offers.ts') + read('policy', 'sides.ts') },
  { name: 'license', content: read('LICENSE') },
];
let runtime: Runtime;

beforeAll(async () => {
  runtime = await Runtime.open({ model: MODEL, threads: 1 });
});
afterAll(() => runtime.close());

const CACHES = ['price@25%', 'price@35%', 'price@kld:0.005'].map(parseCache);
const PLAIN = ['uniform@25%', 'uniform@35%'].map(parseCache);

const scored = (book: ThresholdBook | null, caches = CACHES): Promise<EvaluateRow[]> =>
  evaluate(runtime, { texts: UNSEEN, caches, tokens: 1400, windows: 1, recallDocuments: 0, seed: 0, book });

const isStated = ({ cache }: EvaluateRow): boolean => cache.includes('kld:');

/** What is worse in `rows` than in those of sessions that knew nothing, and in those of `uniform`. */
function worse(
  rows: readonly EvaluateRow[],
  without: readonly EvaluateRow[],
  plain: readonly EvaluateRow[] = [],
): string[] {
  const found: string[] = [];
  // A stated divergence may be used up, but what was learned must not lead beyond it.
  const ratios = rows
    .map(({ meanKld }, index) => meanKld / without[index]!.meanKld)
    .filter((_, i) => !isStated(rows[i]!));
  const mean = Math.exp(ratios.reduce((sum, ratio) => sum + Math.log(ratio), 0) / ratios.length);
  if (mean > WORST_RATIO) found.push(`${mean.toFixed(3)} times the divergence in the mean of ${ratios.length}`);
  for (const [index, row] of rows.entries()) {
    const { text, cache, meanKld, effectiveBits } = row;
    const same = plain.find((one) => one.text === text && one.cache === cache.replace('price', 'uniform'));
    const most = isStated(row) ? Math.max(0.005, without[index]!.meanKld) : same?.meanKld;
    if (most !== undefined && meanKld > Math.max(most, without[index]!.meanKld))
      found.push(`${text}, ${cache}: ${meanKld.toExponential(2)} nats, at most ${most.toExponential(2)}`);
    if (effectiveBits > 1.005 * without[index]!.effectiveBits && !isStated(row))
      found.push(`${text}, ${cache}: ${effectiveBits.toFixed(2)} bits`);
  }
  return found;
}

it(`is not worse after up to ${SESSIONS} sessions`, async () => {
  const without = await scored(null);
  const plain = await scored(null, PLAIN);
  const stateDir = folder();
  const chronicle = runtime.model.tokenizer.encode(ownText().slice(0, 17_000));
  const found: string[] = [];
  let taught = 0;
  for (const count of ASKED_AFTER) {
    const engine = await openEngine(stateDir);
    for (; taught < count; taught++) {
      const tokens = [1300, 1700, 2300][taught % 3]!;
      const prompt = taught % 4 === 1 ? ids(tokens, taught) : chronicle.slice((taught * 37) % 1500).slice(0, tokens);
      const isCompared = taught % 5 === 2;
      const options = { ...BUDGETS[taught % BUDGETS.length]!, tokensExpected: prompt.length + 8 };
      const session = await engine.openSession({ ...options, ...(isCompared ? { compareTokens: 256 } : {}) });
      await session.generate(prompt, { maxTokens: 8 }).result;
      if (isCompared) await session.compare();
      await session.close();
    }
    expect(await codeOf(engine.openSession({ kvBudget: '5%', tokensExpected: 1400 }))).toBe('budget-too-small');
    await engine.close();
    const book = (await findBook(stateDir))!;
    expect(await book.count(), 'sessions that taught').toBe(count);
    found.push(...worse(await scored(book), without, plain).map((line) => `after ${count} sessions: ${line}`));
    await book.close();
  }
  expect(found).toEqual([]);
});

it('and would be seen if it were', async () => {
  const { layers } = runtime.shape;
  // The first half of the layers is said to matter a thousand times as much as the second, which is not so.
  const wrong = Array.from({ length: layers }, (_, layer) => (layer < layers / 2 ? 30 : 0.03));
  const thresholds = { ...defaultThresholds(layers), gains: { k: wrong, v: wrong } };
  const [sound, misled] = [{}, { thresholds }].map((more) =>
    CACHES.slice(0, 1).map(({ name, options }) => ({ name, options: { ...options, ...more } })),
  );
  expect(worse(await scored(null, misled), await scored(null, sound))).not.toEqual([]);
});
