/**
 * `npm run evaluate -- promotion`: what pages that come back for an answer are worth. Documents with five codes; each
 * question is read, and how likely its code is behind it is compared, question by question, with the cache as it is and
 * with the exact one; then it is answered. Every number of pages has a session of its own, because what it takes others
 * pay for.
 */

import { f16CacheBytes } from '../../engine/cache/budget.ts';
import { RESERVE_SHARE, reserveFor } from '../../engine/cache/promoted.ts';
import { parseCache } from '../../engine/evaluate/evaluate.ts';
import { ask as askAloud, DEPTHS, questionText, questionTokens } from '../../engine/evaluate/recall.ts';
import { parseBudget } from '../../engine/options/parse-budget.ts';
import type { SessionOptions } from '../../engine/options/types.ts';
import { setupOf } from '../../engine/session/experience.ts';
import { Session } from '../../engine/session/session.ts';
import type { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import { table } from '../../native/index.ts';
import { documentWithKeys } from './frontier.ts';
import { conditionsOf, Results } from './results.ts';

export const PROMOTED_PAGES: readonly number[] = [0, 2, 4, 8, 16];

interface PromotionRequest {
  readonly runtime: Runtime;
  /** Precision of the weights. */
  readonly dense: 'auto' | 'exact';
  /** Rows that stand here are not computed again; null: none are kept. */
  readonly json: string | null;
  readonly caches: readonly string[];
  readonly contexts: readonly number[];
  readonly kinds: readonly string[];
  /** Seeds of the documents. */
  readonly documents: readonly number[];
  /** Pages of each layer that come back. */
  readonly pages: readonly number[];
  /** What stays free for them is given beside the budget, so that all other pages are as they are without. */
  readonly isBeside: boolean;
  readonly say: (line: string) => void;
}

/** The questions of one document, asked of one way to keep the cache. */
export interface PromotionRow {
  /** `exact` holds within any budget. */
  readonly cache: string;
  readonly tokens: number;
  /** Kinds of text that the document is made of. */
  readonly kinds: string;
  /** Seed of the document. */
  readonly document: number;
  /** Pages of each layer that come back. */
  readonly pages: number;
  /** What stays free for them was given beside the budget. */
  readonly isBeside: boolean;
  /** How likely each code is, in nats, and whether it is in the answer that is written. */
  readonly nats: readonly number[];
  readonly recalled: readonly boolean[];
  /** Page sides that came back for each question, and what the cache took at most. */
  readonly sides: readonly number[];
  readonly peakShare: number;
}

const EXACT = 'exact';

type Way = Pick<PromotionRow, 'cache' | 'pages' | 'isBeside'>;
type Place = Pick<PromotionRow, 'tokens' | 'kinds' | 'document'>;

const keyOf = ({ cache, tokens, kinds, document, pages, isBeside }: Way & Place): string =>
  [cache, tokens, kinds, document, pages, isBeside].join(' | ');

const nameOf = ({ cache, pages, isBeside }: Way): string => {
  if (cache === EXACT) return EXACT;
  return pages === 0 ? 'as it is' : `${pages} pages${isBeside ? ' beside' : ''}`;
};

/** Computes what the file lacks. → a table for each cache and context */
export async function promotion(request: PromotionRequest): Promise<string> {
  const { runtime, caches, contexts, documents, json, say } = request;
  const kinds = request.kinds.join(' ');
  const results = Results.open<PromotionRow>(json, conditionsOf('promotion', runtime, request.dense), keyOf);
  const tables: string[] = [];
  for (const cache of caches)
    for (const tokens of contexts) {
      const ways: Way[] = [
        { cache: EXACT, pages: 0, isBeside: false },
        ...request.pages.map((pages): Way => ({ cache, pages, isBeside: request.isBeside && pages > 0 })),
      ];
      const measured = ways.map((way) => ({ name: nameOf(way), rows: [] as PromotionRow[] }));
      for (const document of documents)
        for (const [at, way] of ways.entries()) {
          const place = { tokens, kinds, document };
          const known = results.find(keyOf({ ...way, ...place }));
          const row = known ?? { ...way, ...place, ...(await ask(request, way, place)) };
          if (known === undefined) results.add(row);
          measured[at]!.rows.push(row);
          const told = row.nats.map((one) => one.toFixed(2)).join(' ');
          say(`${cache} ${tokens} document ${document} ${nameOf(way)}: ${told}`);
        }
      tables.push(tableOf(`${runtime.model.name}, ${cache}, ${tokens} tokens`, measured));
    }
  return tables.join('\n');
}

async function ask(
  { runtime, kinds }: PromotionRequest,
  { cache, pages: promote, isBeside }: Way,
  { tokens: context, document }: Place,
): Promise<Pick<PromotionRow, 'nats' | 'recalled' | 'sides' | 'peakShare'>> {
  const { tokenizer } = runtime.model;
  const { tokens, questions } = documentWithKeys(tokenizer, kinds, context, document, DEPTHS);
  const tokensExpected = tokens.length + questionTokens(tokenizer);
  const asked: SessionOptions = { ...parseCache(cache).options, ...(cache === EXACT ? {} : originalsFor(promote)) };
  const options = { ...asked, tokensExpected, ...(isBeside ? beside(runtime, asked, tokensExpected) : {}) };
  const session = Session.open(runtime, await setupOf(runtime, options, { book: null, log: null }));
  const nats: number[] = [];
  const recalled: boolean[] = [];
  const sides: number[] = [];
  try {
    await session.read(tokens);
    for (const question of questions) {
      const { place, code } = question;
      const asking = tokenizer.encode(questionText(place));
      const whole = tokenizer.encode(`${questionText(place)} ${code}`);
      const before = session.report().originals?.sidesPromoted ?? 0;
      nats.push(await session.likelihood(asking, whole.slice(asking.length)));
      sides.push((session.report().originals?.sidesPromoted ?? 0) - before);
      session.rewind(tokens.length);
      recalled.push((await askAloud(session, question)).recalled);
    }
    const { kvBytes, kvBytesF16 } = session.report();
    return { nats, recalled, sides, peakShare: kvBytes / kvBytesF16 };
  } finally {
    session.close();
  }
}

const originalsFor = (promote: number): SessionOptions => ({ originals: 'memory', promote });

/** A budget of which so much stays free for promotions that what is left is the one that was asked for. */
function beside({ shape }: Runtime, { kvBudget, promote = 0 }: SessionOptions, tokens: number): SessionOptions {
  if (kvBudget === undefined || promote === 0) return {};
  const bytes = parseBudget(kvBudget, f16CacheBytes(shape, tokens));
  const whole = reserveFor(promote, shape, Number.MAX_SAFE_INTEGER);
  const most = Math.ceil(bytes / (1 - RESERVE_SHARE));
  return { kvBudget: Math.min(bytes + whole, most) };
}

interface Measured {
  readonly name: string;
  readonly rows: readonly PromotionRow[];
}

function tableOf(title: string, measured: readonly Measured[]): string {
  const exact = natsOf(measured[0]!);
  const base = measured.find(({ name }) => name === 'as it is') ?? measured[0]!;
  const columns = [
    { title: 'cache', value: ({ name }: Measured) => name },
    { title: 'nats of a code', value: (way: Measured) => mean(natsOf(way)).toFixed(2) },
    { title: 'more than as it is', value: (way: Measured) => more(way, base, natsOf(base)) },
    { title: 'more than exact', value: (way: Measured) => more(way, measured[0]!, exact) },
    {
      title: 'right',
      value: (way: Measured) => String(way.rows.flatMap((row) => row.recalled).filter(Boolean).length),
    },
    { title: 'sides that came back', value: (way: Measured) => mean(way.rows.flatMap((row) => row.sides)).toFixed(0) },
    {
      title: 'peak of f16',
      value: ({ rows }: Measured) => `${(100 * Math.max(...rows.map((row) => row.peakShare))).toFixed(1)}%`,
    },
  ];
  return `${title}, ${exact.length} questions\n${table(columns, measured)}\n`;
}

const natsOf = ({ rows }: Measured): readonly number[] => rows.flatMap(({ nats }) => nats);

/** The mean of differences, question by question, and its standard error. */
function more(way: Measured, other: Measured, nats: readonly number[]): string {
  if (way === other) return '';
  const differences = natsOf(way).map((one, at) => one - nats[at]!);
  return `${mean(differences).toFixed(2)} ± ${standardError(differences).toFixed(2)}`;
}

const mean = (numbers: readonly number[]): number =>
  numbers.reduce((sum, one) => sum + one, 0) / Math.max(1, numbers.length);

/** The standard error of a mean. */
function standardError(numbers: readonly number[]): number {
  const middle = mean(numbers);
  const squares = numbers.reduce((sum, one) => sum + (one - middle) ** 2, 0);
  return Math.sqrt(squares / Math.max(1, numbers.length - 1) / Math.max(1, numbers.length));
}
