// Nothing learned makes a session worse than one that knows nothing: after 1, 10 and 50 sessions of mixed texts and
// budgets, some contradictory, some refused, some compared with the exact cache, the divergence of texts that none of
// them read is at most 1.02 times that without a state folder. Nothing shorter shows that fifty sessions do no harm;
// each reads a text.
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

const scored = (book: ThresholdBook | null, caches = CACHES): Promise<EvaluateRow[]> =>
  evaluate(runtime, { texts: UNSEEN, caches, tokens: 1400, windows: 1, recallDocuments: 0, seed: 0, book });

/** What is worse in `rows` than in those of sessions that knew nothing. */
function worse(rows: readonly EvaluateRow[], without: readonly EvaluateRow[]): string[] {
  return rows.flatMap(({ text, cache, meanKld, effectiveBits }, index) => {
    const ratio = meanKld / without[index]!.meanKld;
    const isStated = cache.includes('kld:');
    const found: string[] = [];
    // A stated divergence may be used up, but what was learned must not lead beyond it.
    if (ratio > WORST_RATIO && !(isStated && meanKld <= 0.005))
      found.push(`${text}, ${cache}: ${ratio.toFixed(3)} times the divergence`);
    if (effectiveBits > 1.005 * without[index]!.effectiveBits && !isStated)
      found.push(`${text}, ${cache}: ${effectiveBits.toFixed(2)} bits`);
    return found;
  });
}

it(`is not worse after up to ${SESSIONS} sessions`, async () => {
  const without = await scored(null);
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
    found.push(...worse(await scored(book), without).map((line) => `after ${count} sessions: ${line}`));
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
