/**
 * `node --import tsx scripts/sharers.ts [--models reference,smollm2-135m] [--kv-budget 25%] [--own 512]`: what it is
 * worth that a move of a page counts as often as sessions hold it together (`sharers` of a situation). Four
 * conversations go on from one text of 1,024 tokens, whose pages they hold together, beside four of as many tokens that
 * share nothing, all in one budget; once as they are, and once where no policy is told of sharers. Prints the mean
 * divergence from the exact cache of what each reads behind the first page of its own, every token counted alike, and
 * the bits of a number in the pages that are shared.
 */
import { parseArgs } from 'node:util';
import { f16CacheBytes } from '../engine/cache/budget.ts';
import { Meter } from '../engine/metrics/meter.ts';
import { setupOf } from '../engine/session/experience.ts';
import { Session } from '../engine/session/session.ts';
import { SharedMemory } from '../engine/session/shared-memory.ts';
import { defaultCacheDir } from '../engine/transformer/cache-dir.ts';
import { Runtime } from '../engine/transformer/runtime/runtime.ts';
import { type Passage, passagesOf } from '../lab/evaluate/passages.ts';
import { Scorer } from '../lab/evaluate/score.ts';
import { openPool, PAGE_TOKENS, pageBytes, pageOf, SIDES, type Side } from '../native/index.ts';

const COMMON = 1024;
const KINDS = ['wiki', 'novel', 'german', 'code'];
const { values } = parseArgs({
  options: {
    models: { type: 'string', default: 'reference,smollm2-135m' },
    'kv-budget': { type: 'string', default: '25%' },
    own: { type: 'string', default: '512' },
  },
});
const share = Number.parseFloat(values['kv-budget']) / 100;
const own = PAGE_TOKENS * pageOf(Number(values.own));
/** What each has read before what counts: the pages that are shared, and one of its own. */
const BEFORE = COMMON + PAGE_TOKENS;

/** From now on the policy of a session is told of nobody with whom it holds pages together. */
function untell({ governed: { policy } }: Session): void {
  const decide = policy.decide.bind(policy);
  Object.assign(policy, {
    decide: (situation: Parameters<typeof decide>[0]) => {
      const { sharers: _, ...told } = situation;
      return decide(told);
    },
  });
}

/** Four that go on from one text, and four that do not. */
function conversations({ model }: Runtime): Passage[] {
  const passages = KINDS.flatMap((kind) => passagesOf(model.tokenizer, kind, 2, COMMON + own));
  const common = passages[0]!.ids.slice(0, COMMON);
  return passages.map((passage, at) =>
    at % 2 === 0 ? { ...passage, ids: [...common, ...passage.ids.slice(COMMON)] } : passage,
  );
}

const isSharing = (at: number): boolean => at % 2 === 0;

async function measured(runtime: Runtime, scorer: Scorer, asked: readonly Passage[], isTold: boolean) {
  const lengths = [COMMON, ...asked.map(({ ids }, at) => ids.length - (isSharing(at) ? COMMON : 0))];
  const budgetBytes = Math.floor(
    share * lengths.reduce((sum, tokens) => sum + f16CacheBytes(runtime.shape, tokens), 0),
  );
  const pool = openPool(budgetBytes);
  const sessions: Session[] = [];
  const prefixes = { key: new Uint8Array(32), keepsClosed: false };
  const shared = new SharedMemory({ pool, meter: new Meter(), form: null, prefixes, sessions: () => sessions });
  let heldTokens = 0;
  for (const { ids } of asked) {
    const setup = await setupOf(runtime, {}, null);
    const session = Session.open(runtime, { ...setup, pool, shared, sharedBudgetBytes: budgetBytes });
    if (!isTold) untell(session);
    sessions.push(session);
    heldTokens += await session.read(ids.slice(0, BEFORE));
    // Whoever is to tell all of its rows has them read, so that only what goes on from there tells them.
    const going = session.fork(own - PAGE_TOKENS);
    if (!isTold) untell(going);
    sessions[sessions.length - 1] = going;
    session.close();
  }
  for (let at = BEFORE; at < COMMON + own; at += PAGE_TOKENS)
    for (const [index, session] of sessions.entries())
      await session.read(asked[index]!.ids.slice(at, at + PAGE_TOKENS));
  const bits = bitsOf(sessions[0]!);
  const klds: number[] = [];
  for (const [index, session] of sessions.entries()) {
    const all = (await scorer.rowsAgainst(asked[index]!, session.hiddenRows())).klds;
    klds.push(all.reduce((sum, kld) => sum + kld, 0) / all.length);
  }
  for (const session of sessions) session.close();
  shared.close();
  pool.close();
  return { klds, bits, heldTokens };
}

/** Of a number in the pages that are shared. */
function bitsOf({ cache }: Session): number {
  const { kvHeads, headDim, layers } = cache.shape;
  const bitsOfSide = (layer: number, page: number, side: Side): number =>
    (8 * pageBytes(cache.format(layer, page, side), kvHeads, headDim)) / (PAGE_TOKENS * kvHeads * headDim);
  let bits = 0;
  for (let layer = 0; layer < layers; layer++)
    for (let page = 0; page < pageOf(COMMON); page++) for (const side of SIDES) bits += bitsOfSide(layer, page, side);
  return bits / (layers * pageOf(COMMON) * SIDES.length);
}

const mean = (some: readonly number[]): string =>
  (some.reduce((sum, kld) => sum + kld, 0) / some.length).toExponential(2);

console.log('| model | told of sharers | KLD of all | of those that share | of the others | bits of shared pages |');
console.log('|---|---|---|---|---|---|');
for (const name of values.models.split(',')) {
  const runtime = await Runtime.open({ model: name, threads: 1, cacheDir: defaultCacheDir() });
  const asked = conversations(runtime);
  const scorer = new Scorer(runtime);
  for (const isTold of [true, false]) {
    const { klds, bits, heldTokens } = await measured(runtime, scorer, asked, isTold);
    const [sharing, others] = [klds.filter((_, at) => isSharing(at)), klds.filter((_, at) => !isSharing(at))];
    if (heldTokens !== 3 * COMMON) throw new Error(`${heldTokens} tokens were found`);
    console.log(
      `| ${name} | ${isTold ? 'yes' : 'no'} | ${mean(klds)} | ${mean(sharing)} | ${mean(others)} | ${bits.toFixed(2)} |`,
    );
  }
  await runtime.close();
}
