/**
 * `npm run evaluate -- pool`: eight conversations of several kinds and lengths in one budget. Their prompts are read in
 * turns, a page at a time; then each reads a little more. Policies of the pool are compared by the divergence of what
 * all of them put out, every token counted alike, and with a fixed share for each.
 */
import { f16CacheBytes } from '../../engine/cache/budget.ts';
import { Meter } from '../../engine/metrics/meter.ts';
import type { SessionOptions } from '../../engine/options/types.ts';
import { setupOf } from '../../engine/session/experience.ts';
import { Session } from '../../engine/session/session.ts';
import { SharedMemory } from '../../engine/session/shared-memory.ts';
import type { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import { KvError, nativeInfo, openPool, PAGE_TOKENS, type PagePool, table } from '../../native/index.ts';
import { POOL_POLICIES, type PoolPolicy } from '../../policy/index.ts';
import { modelOf } from './frontier.ts';
import { type Passage, passagesOf } from './passages.ts';
import { Results } from './results.ts';
import { REFUSALS, Scorer } from './score.ts';

/** Shares of the budget that nothing moves: the same for all, or by length. */
const SHARES = ['equal shares', 'shares by length'] as const;
/** How a budget is shared: by a policy of the pool, or in fixed shares. */
export const POOL_SHARINGS: readonly string[] = [...POOL_POLICIES.map(({ id }) => id), ...SHARES];
export const POOL_BUDGETS = ['25%', '15%'];

/** Lengths of the prompts, as shares of the longest. */
const LENGTHS = [1, 0.25, 0.5, 1, 0.75, 0.375, 1, 0.5] as const;
/** What each reads when all prompts are there. */
const THEN_TOKENS = 64;

/**
 * One conversation among the eight: mean divergence in nats, of all that it reads and of its end, when all prompts are
 * there; null: refused.
 */
export interface PoolRow {
  readonly model: string;
  readonly budget: string;
  readonly sharing: string;
  readonly text: string;
  readonly tokens: number;
  readonly kld: number | null;
  readonly thenKld: number | null;
}

export interface PoolRequest {
  readonly models: readonly string[];
  readonly kinds: readonly string[];
  readonly budgets: readonly string[];
  /** Some of POOL_SHARINGS. */
  readonly sharings: readonly string[];
  /** Tokens of the longest. */
  readonly tokens: number;
  readonly dense: 'auto' | 'exact';
  readonly threads: number | undefined;
  readonly cacheDir: string;
  readonly json: string | null;
  readonly say: (line: string) => void;
}

const keyOf = ({ model, budget, sharing, text, tokens }: Omit<PoolRow, 'kld' | 'thenKld'>): string =>
  [model, budget, sharing, text, tokens].join(' | ');

/** Computes the rows that the file lacks. → all rows of the file */
export async function pool(request: PoolRequest): Promise<readonly PoolRow[]> {
  const { dense, json, budgets, sharings } = request;
  const results = Results.open<PoolRow>(json, { kind: 'pool', isa: nativeInfo().isa, dense }, keyOf);
  for (const model of request.models) {
    const { runtime, own } = await modelOf(model, request);
    try {
      const asked = conversations(runtime, request);
      for (const budget of budgets)
        for (const sharing of sharings) {
          const rows = asked.map(({ text, ids }) => ({ model, budget, sharing, text, tokens: ids.length }));
          if (rows.every((row) => results.find(keyOf(row)) !== undefined)) continue;
          const scores = await scored(runtime, asked, budget, sharing).catch((error: unknown) => {
            if (!(error instanceof KvError && REFUSALS.includes(error.code))) throw error;
            return asked.map((): Score => ({ kld: null, thenKld: null }));
          });
          for (const [at, row] of rows.entries()) results.add({ ...row, ...scores[at]! });
          request.say(`${model} ${budget} ${sharing}: ${scores.map(({ kld }) => kld?.toExponential(1)).join(' ')}`);
        }
    } finally {
      await own.close();
    }
  }
  return results.rows;
}

/** The conversations, each of another kind than its neighbours. */
function conversations(runtime: Runtime, { kinds, tokens }: PoolRequest): Passage[] {
  const { contextLength } = runtime.model.config;
  const longest = Math.min(tokens, contextLength);
  const each = Math.ceil(LENGTHS.length / kinds.length);
  const passages = kinds.map((kind) => passagesOf(runtime.model.tokenizer, kind, each, longest));
  return LENGTHS.map((share, at) => {
    const passage = passages[at % kinds.length]![Math.floor(at / kinds.length)]!;
    return { ...passage, ids: passage.ids.slice(0, Math.round((share * longest) / PAGE_TOKENS) * PAGE_TOKENS) };
  });
}

type Score = Pick<PoolRow, 'kld' | 'thenKld'>;

async function scored(runtime: Runtime, asked: readonly Passage[], budget: string, sharing: string): Promise<Score[]> {
  const lengths = asked.map(({ ids }) => ids.length);
  const wholeBytes = lengths.reduce((sum, tokens) => sum + f16CacheBytes(runtime.shape, tokens), 0);
  const budgetBytes = Math.floor((Number.parseFloat(budget) / 100) * wholeBytes);
  const policy = POOL_POLICIES.find(({ id }) => id === sharing);
  const share = (tokens: number): number =>
    sharing === SHARES[0]
      ? Math.floor(budgetBytes / lengths.length)
      : Math.floor((budgetBytes * f16CacheBytes(runtime.shape, tokens)) / wholeBytes);
  const native = openPool(budgetBytes);
  const sessions: Session[] = [];
  try {
    const shared = sharedBy(native, policy, () => sessions);
    for (const { ids } of asked) {
      const options: SessionOptions = {
        compareTokens: ids.length,
        ...(policy === undefined ? { kvBudget: share(ids.length), tokensExpected: ids.length } : {}),
      };
      const setup = await setupOf(runtime, options, null);
      sessions.push(Session.open(runtime, { ...setup, pool: native, shared, sharedBudgetBytes: budgetBytes }));
    }
    await readInTurns(sessions, asked);
    return await scoresOf(runtime, sessions, asked);
  } finally {
    for (const session of sessions) session.close();
    native.close();
  }
}

const sharedBy = (pool: PagePool, policy: PoolPolicy | undefined, sessions: () => readonly Session[]): SharedMemory =>
  new SharedMemory({ pool, meter: new Meter(), form: null, sessions, ...(policy === undefined ? {} : { policy }) });

/** All prompts but for their ends, a page of each in turn, and then the ends. */
async function readInTurns(sessions: readonly Session[], asked: readonly Passage[]): Promise<void> {
  const longest = Math.max(...asked.map(({ ids }) => ids.length));
  for (let at = 0; at < longest; at += PAGE_TOKENS)
    for (const [index, session] of sessions.entries()) {
      const { ids } = asked[index]!;
      const end = Math.min(at + PAGE_TOKENS, ids.length - THEN_TOKENS);
      if (at < end) await session.read(ids.slice(at, end));
    }
  for (const [index, session] of sessions.entries()) await session.read(asked[index]!.ids.slice(-THEN_TOKENS));
}

async function scoresOf(runtime: Runtime, sessions: readonly Session[], asked: readonly Passage[]): Promise<Score[]> {
  const scorer = new Scorer(runtime);
  const scores: Score[] = [];
  for (const [index, session] of sessions.entries()) {
    const { klds } = await scorer.rowsAgainst(asked[index]!, session.hiddenRows());
    const mean = (some: readonly number[]): number => some.reduce((sum, kld) => sum + kld, 0) / some.length;
    scores.push({ kld: mean(klds), thenKld: mean(klds.slice(-THEN_TOKENS)) });
  }
  return scores;
}

/** One line of the table. */
interface Line {
  readonly model: string;
  readonly budget: string;
  readonly sharing: string;
  readonly kld: number;
  readonly ofEqual: number;
  readonly worst: number;
  readonly thenKld: number;
  readonly thenOfEqual: number;
}

const COLUMNS = [
  { title: 'model', value: ({ model }: Line) => model },
  { title: 'budget', value: ({ budget }: Line) => budget },
  { title: 'sharing', value: ({ sharing }: Line) => sharing },
  { title: 'KLD', value: ({ kld }: Line) => kld.toExponential(2) },
  { title: 'of equal shares', value: ({ ofEqual }: Line) => ofEqual.toFixed(2) },
  { title: 'worst', value: ({ worst }: Line) => worst.toFixed(2) },
  { title: 'then', value: ({ thenKld }: Line) => thenKld.toExponential(2) },
  { title: 'of equal shares', value: ({ thenOfEqual }: Line) => thenOfEqual.toFixed(2) },
];

/**
 * By model, budget and sharing: the mean over all tokens beside equal shares, and the worst conversation beside what it
 * has with these.
 */
export function poolTable(rows: readonly PoolRow[]): string {
  const groups = new Map<string, PoolRow[]>();
  for (const row of rows) {
    const key = [row.model, row.budget, row.sharing].join(' | ');
    groups.set(key, [...(groups.get(key) ?? []), row]);
  }
  const lines = [...groups.values()].map((group): Line => {
    const { model, budget, sharing } = group[0]!;
    const equal = groups.get([model, budget, SHARES[0]].join(' | ')) ?? [];
    const [kld, thenKld] = [weighted(group, 'kld'), weighted(group, 'thenKld')];
    return {
      ...{ model, budget, sharing, kld, thenKld },
      ofEqual: kld / weighted(equal, 'kld'),
      worst: Math.max(...group.map((row, at) => (row.kld ?? Number.NaN) / (equal[at]?.kld ?? Number.NaN))),
      thenOfEqual: thenKld / weighted(equal, 'thenKld'),
    };
  });
  return table(COLUMNS, lines);
}

/** Mean over all tokens. */
function weighted(rows: readonly PoolRow[], field: 'kld' | 'thenKld'): number {
  const tokens = rows.reduce((sum, row) => sum + row.tokens, 0);
  return rows.reduce((sum, row) => sum + (row[field] ?? Number.NaN) * row.tokens, 0) / tokens;
}
