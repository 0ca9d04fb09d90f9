/**
 * `npm run evaluate -- frontier`: every method on every model and context. A row is one passage, one recall document or one measurement of speed with
 * one cache, and is on disk before the next one begins, so a run that is stopped loses one row and goes on after it.
 */
import { createHash } from 'node:crypto';
import { parseCache, SCORED_TOKENS } from '../../engine/evaluate/evaluate.ts';
import { ask, DEPTHS, documentLength, questionTokens, recallDocument } from '../../engine/evaluate/recall.ts';
import { setupOf } from '../../engine/learn.ts';
import { Runtime } from '../../engine/runtime.ts';
import { Session } from '../../engine/session.ts';
import { KvError, nativeInfo, PAGE_TOKENS } from '../../native/index.ts';
import { createPolicy } from '../../policy/index.ts';
import { machine } from '../bench/machine.ts';
import { EVICTION_STRIDE, evicted } from './evict.ts';
import {
  type FrontierRow,
  frontierRow,
  keyOf,
  type Protocol,
  type QualityRow,
  type RecallRow,
} from './frontier-rows.ts';
import { bareName, evictionOf } from './methods.ts';
import { OUTLIER_FACTOR, OUTLIERS, withOutliers } from './outliers.ts';
import { filler, type Passage, passagesOf } from './passages.ts';
import { Results } from './results.ts';
import { REFUSALS, Scorer } from './score.ts';
import { measureSpeed } from './speed.ts';

export const FRONTIER_PARTS = ['quality', 'recall', 'speed'] as const;
export const FRONTIER_CONTEXTS = [512, 2048, 4096, 8192];
/** Characters of digests that rows carry. */
const DIGEST_CHARACTERS = 12;
/** A document with one code is another one than that with five, and for each depth. */
const ONE_KEY_SEED = 5000;

export interface FrontierRequest {
  /** Names or paths; with OUTLIERS behind it, a model with outlier channels in its keys. */
  readonly models: readonly string[];
  readonly contexts: readonly number[];
  readonly caches: readonly string[];
  readonly parts: readonly string[];
  readonly kinds: readonly string[];
  /** Passages of each kind. */
  readonly passages: number;
  /** Recall documents with five codes, and sets of five with one. */
  readonly documents: number;
  readonly dense: 'auto' | 'exact';
  readonly threads: number | undefined;
  readonly cacheDir: string;
  readonly json: string | null;
  readonly say: (line: string) => void;
}

interface Bench {
  readonly request: FrontierRequest;
  readonly runtime: Runtime;
  readonly scorer: Scorer;
  readonly results: Results<FrontierRow>;
  readonly commit: string;
}

/** Computes the rows that the file lacks. → all rows of the file. Throws 'bad-config' for a file of another protocol or instruction set. */
export async function frontier(request: FrontierRequest): Promise<readonly FrontierRow[]> {
  const { dense, json, say } = request;
  request.caches.forEach(checkCache);
  const protocol: Protocol = {
    dense,
    scored: SCORED_TOKENS,
    stride: PAGE_TOKENS,
    evictionStride: EVICTION_STRIDE,
    outlierFactor: OUTLIER_FACTOR,
  };
  const results = Results.open<FrontierRow>(json, { kind: 'frontier', isa: nativeInfo().isa, protocol }, keyOf);
  for (const row of results.rows) frontierRow.parse(row);
  const { commit } = machine();
  for (const name of request.models) {
    const own = await Runtime.open({
      model: name.replace(OUTLIERS, ''),
      dense,
      threads: request.threads,
      cacheDir: request.cacheDir,
    });
    try {
      const runtime = name.endsWith(OUTLIERS) ? withOutliers(own) : own;
      const bench: Bench = { request, runtime, scorer: new Scorer(runtime), results, commit };
      for (const context of request.contexts) {
        if (context > runtime.model.config.contextLength) {
          say(`${name} reads ${runtime.model.config.contextLength} tokens, so ${context} are left out`);
          continue;
        }
        if (request.parts.includes('quality')) await quality(bench, context);
        if (request.parts.includes('recall')) await recall(bench, context);
      }
      if (request.parts.includes('speed')) await speed(bench);
    } finally {
      await own.close();
    }
  }
  return results.rows;
}

/** Refuses what is no cache, before anything is read. Throws 'unsupported', 'bad-argument'. */
function checkCache(cache: string): void {
  if (evictionOf(cache) !== null) return;
  const { policy } = parseCache(cache).options;
  if (policy !== undefined && policy !== 'fixed') createPolicy(policy);
}

const subjectOf = ({ runtime: { model }, commit }: Bench, context: number, cache: string) => ({
  model: model.name,
  digest: model.digest.slice(0, DIGEST_CHARACTERS),
  context,
  cache,
  code: null,
  commit,
});

/** At most half of a passage is scored, so that what is scored attends to a history of pages. */
const scoredOf = (context: number): number => Math.min(SCORED_TOKENS, context / 2);

async function quality(bench: Bench, context: number): Promise<void> {
  const { request, runtime, results } = bench;
  for (const kind of request.kinds)
    for (const passage of passagesOf(runtime.model.tokenizer, kind, request.passages, context)) {
      const textDigest = createHash('sha256').update(JSON.stringify(passage.ids)).digest('hex');
      for (const cache of request.caches) {
        const row: QualityRow = {
          part: 'quality',
          ...subjectOf(bench, context, cache),
          text: passage.text,
          kind,
          textDigest: textDigest.slice(0, DIGEST_CHARACTERS),
          measured: null,
        };
        if (results.find(keyOf(row)) !== undefined) continue;
        const scored = await score(bench, passage, cache);
        results.add(frontierRow.parse({ ...row, ...scored }));
        const { measured, code } = scored;
        request.say(
          `${keyOf(row)}: ${measured === null ? code : `KLD ${measured.meanKld.toPrecision(3)} at ${measured.bits.toFixed(2)} bits`}`,
        );
      }
    }
}

async function score(
  { runtime, scorer }: Bench,
  passage: Passage,
  cache: string,
): Promise<Pick<QualityRow, 'measured' | 'code'>> {
  const context = passage.ids.length;
  const compareTokens = scoredOf(context);
  const eviction = evictionOf(cache);
  if (eviction !== null) {
    const { hidden, bytes, bytesAtRest, bytesF16, code } = await evicted(runtime, passage.ids, eviction, compareTokens);
    if (code !== null) return { measured: null, code };
    const { tokens: scored, ...compared } = await scorer.against(passage, hidden);
    return {
      measured: { scored, bits: (16 * bytesAtRest) / bytesF16, bytes, bytesAtRest, bytesF16, ...compared },
      code,
    };
  }
  const { compared, report, code } = await scorer.compare(passage, {
    options: { ...parseCache(cache).options, compareTokens },
    stateDir: null,
    isShipped: true,
  });
  if (compared === null) return { measured: null, code };
  const { tokens: scored, ...divergence } = compared;
  const { effectiveBits: bits, kvBytes: bytes, kvBytesNow: bytesAtRest, kvBytesF16: bytesF16 } = report;
  return { measured: { scored, bits, bytes, bytesAtRest, bytesF16, ...divergence }, code };
}

async function recall(bench: Bench, context: number): Promise<void> {
  const { request, results } = bench;
  for (const cache of request.caches) {
    // Questions are asked of a session, which does not drop tokens.
    if (evictionOf(cache) !== null) continue;
    for (const keys of ['many', 'one'] as const)
      for (let document = 0; document < request.documents; document++) {
        const row: RecallRow = {
          part: 'recall',
          ...subjectOf(bench, context, cache),
          keys,
          document,
          recalled: null,
        };
        if (results.find(keyOf(row)) !== undefined) continue;
        const answers = await recalled(bench, row);
        results.add(frontierRow.parse({ ...row, ...answers }));
        request.say(`${keyOf(row)}: ${answers.recalled?.map((is) => (is ? 1 : 0)).join(' ') ?? answers.code}`);
      }
  }
}

/** By depth, whether the code was recalled. With one code a document, every depth has a document of its own. */
async function recalled(
  { request, runtime }: Bench,
  { context, cache, keys, document }: RecallRow,
): Promise<Pick<RecallRow, 'recalled' | 'code'>> {
  const { tokenizer } = runtime.model;
  const asked = questionTokens(tokenizer);
  const length = documentLength(tokenizer, context - asked);
  const text = filler(request.kinds, 2 * context);
  const documents = (keys === 'many' ? [DEPTHS] : DEPTHS.map((depth) => [depth])).map((depths, at) => {
    const seed = keys === 'many' ? document : ONE_KEY_SEED + document * DEPTHS.length + at;
    const from = Math.floor((text.length / 2) * ((seed * 0.618) % 1));
    return recallDocument(tokenizer, text.slice(from) + text.slice(0, from), length, seed, depths);
  });
  const found: boolean[] = [];
  for (const { tokens, questions } of documents) {
    const options = { ...parseCache(cache).options, tokensExpected: length + asked };
    let session: Session | null = null;
    try {
      session = Session.open(runtime, await setupOf(runtime, options, { book: null, log: null }));
      await session.read(tokens);
      for (const question of questions) found.push((await ask(session, question)).recalled);
    } catch (error) {
      if (error instanceof KvError && REFUSALS.includes(error.code)) return { recalled: null, code: error.code };
      throw error;
    } finally {
      session?.close();
    }
  }
  return { recalled: found, code: null };
}

async function speed({ request, runtime, results, commit }: Bench): Promise<void> {
  for (const cache of new Set(request.caches.map(bareName))) {
    const row = await measureSpeed(
      runtime.shape,
      cache,
      request.threads ?? 1,
      (key) => results.find(key) !== undefined,
    );
    if (row === null) continue;
    results.add(frontierRow.parse({ ...row, commit }));
    request.say(`${keyOf({ ...row, commit })}: ${row.ratioToF16.toFixed(2)} times as fast as f16`);
  }
}
