/**
 * `npm run evaluate -- frontier`: every method on every model and context. A row is one passage, one recall document or
 * one measurement of speed with one cache, and is on disk before the next one begins, so a run that is stopped loses
 * one row and goes on after it.
 */
import { createHash } from 'node:crypto';
import { parseCache, SCORED_TOKENS } from '../../engine/evaluate/evaluate.ts';
import {
  ask,
  recalledBy as byMethod,
  documentLength,
  questionTokens,
  type RecallDocument,
  recallDocument,
} from '../../engine/evaluate/recall.ts';
import { setupOf } from '../../engine/session/experience.ts';
import { Session } from '../../engine/session/session.ts';
import { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import type { Tokenizer } from '../../engine/transformer/types.ts';
import { KvError, nativeInfo, PAGE_TOKENS } from '../../native/index.ts';
import { createPolicy } from '../../policy/index.ts';
import { machine } from '../../scripts/bench/machine.ts';
import { EVICTION_STRIDE } from '../methods/evict.ts';
import { methodOf } from '../methods/methods.ts';
import { Courses, chunksOf, SHORT_TOKENS, shortScore, stepTimes } from './courses.ts';
import { bareName } from './every-cache.ts';
import {
  type CourseRow,
  type FrontierRow,
  frontierRow,
  keyOf,
  type LatencyRow,
  type Protocol,
  type QualityRow,
  type RecallRow,
  type RefreshRow,
  type ShortRow,
  type SpeedRow,
} from './frontier-rows.ts';
import { WIDENED, widened } from './latents.ts';
import { OUTLIER_FACTOR, OUTLIERS, withOutliers } from './outliers.ts';
import { filler, type Passage, passagesOf } from './passages.ts';
import { refreshed } from './refresh.ts';
import { Results } from './results.ts';
import { REFUSALS, Scorer } from './score.ts';
import { measureSpeed, pairOf } from './speed.ts';

export const FRONTIER_PARTS = ['quality', 'recall', 'speed', 'short', 'course', 'latency', 'refresh'] as const;
export const FRONTIER_CONTEXTS = [512, 2048, 4096, 8192];
/** Characters of digests that rows carry. */
const DIGEST_CHARACTERS = 12;
/** A document with one code is another one than that with five, and for each depth. */
const ONE_KEY_SEED = 5000;

/** What may stand behind the name of a model: the same function with other keys, or with more KV heads. */
const REWIRED = [
  [OUTLIERS, withOutliers],
  [WIDENED, widened],
] as const;

export interface FrontierRequest {
  /**
   * Names or paths; with OUTLIERS behind it, a model with outlier channels in its keys, with WIDENED one with a KV head
   * for each query head.
   */
  readonly models: readonly string[];
  readonly contexts: readonly number[];
  readonly caches: readonly string[];
  readonly parts: readonly string[];
  readonly kinds: readonly string[];
  /** Passages of each kind. */
  readonly passages: number;
  /** Recall documents with a code at every depth, and sets of documents with one. */
  readonly documents: number;
  /** Chunks of the part 'short', of each kind. */
  readonly chunks: number;
  /** Where codes stand in a document, from 0 to 1. */
  readonly depths: readonly number[];
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

/**
 * Computes the rows that the file lacks. → all rows of the file. Throws 'bad-config' for a file of another protocol or
 * instruction set.
 */
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
    const { runtime, own } = await modelOf(name, request);
    try {
      const bench: Bench = { request, runtime, scorer: new Scorer(runtime), results, commit };
      for (const context of request.contexts) {
        if (context > runtime.model.config.contextLength) {
          say(`${name} reads ${runtime.model.config.contextLength} tokens, so ${context} are left out`);
          continue;
        }
        if (request.parts.includes('quality')) await quality(bench, context);
        if (request.parts.includes('recall')) await recall(bench, context);
        if (request.parts.includes('course')) await course(bench, context);
        if (request.parts.includes('latency')) await latency(bench, context);
        if (request.parts.includes('refresh')) await refresh(bench, context);
      }
      if (request.parts.includes('short')) await short(bench);
      if (request.parts.includes('speed')) await speed(bench);
    } finally {
      await own.close();
    }
  }
  return results.rows;
}

/** Opens a model, rewired as its name says. `own` is what is to be closed. */
export async function modelOf(
  name: string,
  { dense, threads, cacheDir }: Pick<FrontierRequest, 'dense' | 'threads' | 'cacheDir'>,
): Promise<{ readonly runtime: Runtime; readonly own: Runtime }> {
  const [suffix, change] = REWIRED.find(([end]) => name.endsWith(end)) ?? ['', (runtime: Runtime) => runtime];
  const own = await Runtime.open({ model: name.slice(0, name.length - suffix.length), dense, threads, cacheDir });
  return { runtime: change(own), own };
}

/** Refuses what is no cache, before anything is read. Throws 'unsupported', 'bad-argument'. */
function checkCache(cache: string): void {
  if (methodOf(cache) !== null) return;
  const { policy } = parseCache(cache).options;
  if (policy !== undefined && policy !== 'fixed') createPolicy(policy as string);
}

const subjectOf = ({ runtime: { model }, commit }: Bench, context: number, cache: string) => ({
  model: model.name,
  digest: model.digest.slice(0, DIGEST_CHARACTERS),
  context,
  cache,
  code: null,
  commit,
});

const digestOf = (ids: readonly number[]): string =>
  createHash('sha256').update(JSON.stringify(ids)).digest('hex').slice(0, DIGEST_CHARACTERS);

/** Adds the row unless the file has it: what `measure` gives, or why it was refused. */
async function addRow<Row extends Exclude<FrontierRow, SpeedRow>>(
  { results, request }: Bench,
  row: Row,
  measure: () => Promise<object>,
  told: (row: Row) => string,
): Promise<void> {
  if (results.find(keyOf(row)) !== undefined) return;
  let found: object;
  try {
    found = await measure();
  } catch (error) {
    if (!(error instanceof KvError && REFUSALS.includes(error.code))) throw error;
    found = { code: error.code };
  }
  const whole = frontierRow.parse({ ...row, ...found }) as Row;
  results.add(whole);
  request.say(`${keyOf(row)}: ${whole.code ?? told(whole)}`);
}

/** At most half of a passage is scored, so that what is scored attends to a history of pages. */
const scoredOf = (context: number): number => Math.min(SCORED_TOKENS, context / 2);

async function quality(bench: Bench, context: number): Promise<void> {
  const { request, runtime } = bench;
  for (const kind of request.kinds)
    for (const passage of passagesOf(runtime.model.tokenizer, kind, request.passages, context))
      for (const cache of request.caches) {
        const row: QualityRow = {
          part: 'quality',
          ...subjectOf(bench, context, cache),
          text: passage.text,
          kind,
          textDigest: digestOf(passage.ids),
          measured: null,
        };
        const told = ({ measured }: QualityRow): string =>
          `KLD ${measured!.meanKld.toPrecision(3)} at ${measured!.bits.toFixed(2)} bits`;
        await addRow(bench, row, () => score(bench, passage, cache), told);
      }
}

async function score(
  { runtime, scorer }: Bench,
  passage: Passage,
  cache: string,
): Promise<Pick<QualityRow, 'measured' | 'code'>> {
  const context = passage.ids.length;
  const compareTokens = scoredOf(context);
  const method = methodOf(cache);
  if (method !== null) {
    const { hidden, bytes, bytesAtRest, bytesF16 } = await method(runtime, { ids: passage.ids, scored: compareTokens });
    const { tokens: scored, ...compared } = await scorer.against(passage, hidden);
    return {
      measured: { scored, bits: (16 * bytesAtRest) / bytesF16, bytes, bytesAtRest, bytesF16, ...compared },
      code: null,
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

/**
 * A document with a code at each of the depths, after which a question and its answer fit the context and the open
 * page.
 */
export function documentWithKeys(
  tokenizer: Tokenizer,
  kinds: readonly string[],
  context: number,
  seed: number,
  depths: readonly number[],
): RecallDocument {
  const length = documentLength(tokenizer, context - questionTokens(tokenizer));
  const text = filler(kinds, 2 * context);
  const from = Math.floor((text.length / 2) * ((seed * 0.618) % 1));
  return recallDocument(tokenizer, text.slice(from) + text.slice(0, from), length, seed, depths);
}

async function recall(bench: Bench, context: number): Promise<void> {
  const { request } = bench;
  for (const cache of request.caches) {
    for (const keys of ['many', 'one'] as const)
      for (let document = 0; document < request.documents; document++) {
        const row: RecallRow = {
          part: 'recall',
          ...subjectOf(bench, context, cache),
          keys,
          document,
          depths: [...request.depths],
          recalled: null,
        };
        await addRow(
          bench,
          row,
          async () => ({ recalled: await recalledBy(bench, row) }),
          ({ recalled }) => recalled!.map((is) => (is ? 1 : 0)).join(' '),
        );
      }
  }
}

/** By depth, whether the code was recalled. With one code a document, every depth has a document of its own. */
async function recalledBy(
  { request, runtime }: Bench,
  { context, cache, keys, document, depths: all }: RecallRow,
): Promise<boolean[]> {
  const { tokenizer } = runtime.model;
  const documents = (keys === 'many' ? [all] : all.map((depth) => [depth])).map((depths, at) => {
    const seed = keys === 'many' ? document : ONE_KEY_SEED + document * all.length + at;
    return documentWithKeys(tokenizer, request.kinds, context, seed, depths);
  });
  const found: boolean[] = [];
  const method = methodOf(cache);
  for (const { tokens, questions } of documents) {
    if (method !== null) {
      for (const question of questions) found.push(await byMethod(method, { runtime, document: tokens, question }));
      continue;
    }
    const options = { ...parseCache(cache).options, tokensExpected: tokens.length + questionTokens(tokenizer) };
    const session = Session.open(runtime, await setupOf(runtime, options, { book: null, log: null }));
    try {
      await session.read(tokens);
      for (const question of questions) found.push((await ask(session, question)).recalled);
    } finally {
      session.close();
    }
  }
  return found;
}

/** Caches of a whole session. */
const sessionCaches = ({ request }: Bench): string[] => request.caches.filter((cache) => methodOf(cache) === null);

async function course(bench: Bench, context: number): Promise<void> {
  const { request, runtime } = bench;
  const courses = new Courses(runtime);
  for (const kind of request.kinds)
    for (const { text, ids } of passagesOf(runtime.model.tokenizer, kind, 1, context))
      for (const cache of sessionCaches(bench)) {
        const subject = subjectOf(bench, context, cache);
        const row: CourseRow = { part: 'course', ...subject, text, kind, textDigest: digestOf(ids), course: null };
        await addRow(
          bench,
          row,
          async () => ({ course: await courses.of(ids, parseCache(cache).options) }),
          ({ course }) => course!.map(({ meanKld }) => meanKld.toPrecision(2)).join(' '),
        );
      }
}

async function refresh(bench: Bench, context: number): Promise<void> {
  const { request, runtime } = bench;
  for (const kind of request.kinds)
    for (const { text, ids } of passagesOf(runtime.model.tokenizer, kind, 1, context))
      for (const cache of sessionCaches(bench)) {
        const { options } = parseCache(cache);
        // Nothing is lost that could come back.
        if (options.exact === true) continue;
        const subject = subjectOf(bench, context, cache);
        const row: RefreshRow = { part: 'refresh', ...subject, text, kind, textDigest: digestOf(ids), refresh: null };
        await addRow(
          bench,
          row,
          async () => ({ refresh: await refreshed(runtime, ids, options) }),
          (whole) =>
            whole
              .refresh!.stretches.map((one) =>
                [one.kept, one.again, one.restored].map((kld) => kld.toPrecision(2)).join(' → '),
              )
              .join(', '),
        );
      }
}

async function latency(bench: Bench, context: number): Promise<void> {
  const { request, runtime } = bench;
  const [passage] = passagesOf(runtime.model.tokenizer, request.kinds[0]!, 1, context);
  for (const cache of sessionCaches(bench)) {
    const row: LatencyRow = {
      part: 'latency',
      ...subjectOf(bench, context, cache),
      threads: runtime.threads,
      steps: null,
    };
    await addRow(
      bench,
      row,
      async () => ({ steps: await stepTimes(runtime, passage!.ids, parseCache(cache).options) }),
      ({ steps }) => `p50 ${steps!.p50Ms.toFixed(1)} ms, p99 ${steps!.p99Ms.toFixed(1)} ms`,
    );
  }
}

async function short(bench: Bench): Promise<void> {
  const { request, runtime } = bench;
  const each = request.chunks / request.passages;
  for (const kind of request.kinds) {
    const passages = passagesOf(runtime.model.tokenizer, kind, request.passages, Math.ceil(each) * SHORT_TOKENS);
    const chunks = passages.flatMap(({ ids }) => chunksOf(ids)).slice(0, request.chunks);
    for (const cache of request.caches) {
      const pair = pairOf(bareName(cache));
      if (pair === null) continue;
      const row: ShortRow = {
        part: 'short',
        ...subjectOf(bench, PAGE_TOKENS, cache),
        kind,
        textDigest: digestOf(chunks.flat()),
        chunks: chunks.length,
        measured: null,
      };
      await addRow(
        bench,
        row,
        async () => ({ measured: await shortScore(runtime, chunks, pair) }),
        ({ measured }) => `KLD ${measured!.meanKld.toPrecision(3)} at ${measured!.bits.toFixed(2)} bits`,
      );
    }
  }
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
