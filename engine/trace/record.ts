/**
 * Records a run: reads a prompt into an exact cache, and writes down what goes into the cache and what is asked of it.
 */
import { given, KvError } from '../../native/index.ts';
import { defaultThresholds } from '../../policy/index.ts';
import type { CacheSpec } from '../evaluate/evaluate.ts';
import type { Progress } from '../options/types.ts';
import { addDivergence, emptySums, NO_TARGET, toDivergence } from '../session/divergence.ts';
import type { ReadOptions } from '../session/prompt.ts';
import { Session } from '../session/session.ts';
import type { SessionSetup } from '../session/setup.ts';
import { ropeFrequencies } from '../transformer/rope.ts';
import { checkUniformRope } from '../transformer/rotary.ts';
import { outputSketches } from '../transformer/runtime/output-sketch.ts';
import type { Runtime } from '../transformer/runtime/runtime.ts';
import type { ModelConfig } from '../transformer/types.ts';
import type { Measured, TraceHeader } from './header.ts';
import { chooseSampling, type SampleRequest } from './sample.ts';
import { TraceWriter } from './writer.ts';

/**
 * Tokens at the end of a run on which caches are compared: two pages, so that what they still held to begin with is
 * most of the run.
 */
export const LATER_TOKENS = 256;

export interface RecordRequest {
  readonly path: string;
  readonly sample: SampleRequest;
  readonly bytesMax: number;
  readonly seed: number;
  /**
   * Caches that are to run over the same tokens, so that what a simulation predicts can be compared with what they did.
   */
  readonly measure: readonly CacheSpec[];
  readonly signal?: AbortSignal | undefined;
  readonly onProgress?: ((what: string, progress: Progress) => void) | undefined;
}

export interface Recorded {
  readonly header: TraceHeader;
  readonly measured: readonly Measured[];
  readonly bytes: number;
}

/** The header of a trace of so many tokens. Throws as chooseSampling does. */
export function headerOf(
  { model, shape }: Runtime,
  tokens: number,
  { sample, bytesMax, seed }: Pick<RecordRequest, 'sample' | 'bytesMax' | 'seed'>,
): TraceHeader {
  const { name, digest, config } = model;
  checkUniformRope(config, 'a trace');
  checkUncapped(config);
  const header: Omit<TraceHeader, 'sampling'> = {
    kind: 'palimpsest-trace',
    version: 1,
    model: { name, digest },
    shape,
    rotary: { radians: [...ropeFrequencies(config, tokens).radians], interleaved: config.ropeInterleaved },
    slidingWindow: [...config.slidingWindow],
    tokens,
  };
  return { ...header, sampling: chooseSampling(header, sample, bytesMax, seed) };
}

/** The simulator computes scores by itself, without a cap. */
function checkUncapped({ scoreCap, architecture }: ModelConfig): void {
  if (scoreCap === null) return;
  throw new KvError('unsupported', `a trace needs scores without a cap, and those of ${architecture} models have one`, {
    values: { architecture, scoreCap },
  });
}

/**
 * Reads the tokens and writes the trace. Nothing is left behind unless it is whole. Throws 'budget-too-small',
 * 'context-too-long', 'aborted', 'io'.
 */
export async function recordTrace(
  runtime: Runtime,
  tokens: readonly number[],
  request: RecordRequest,
): Promise<Recorded> {
  const header = headerOf(runtime, tokens.length, request);
  const scored = Math.min(LATER_TOKENS, tokens.length);
  const open = (setup: Partial<SessionSetup>): Session =>
    Session.open(runtime, {
      tokensExpected: tokens.length,
      compareTokens: scored,
      log: null,
      thresholds: defaultThresholds(runtime.shape.layers),
      ...setup,
    });
  // What cannot be opened is refused before anything is read.
  for (const { options } of request.measure) open(options).close();
  const read = async <T>(what: string, session: Session, found: (session: Session) => T | Promise<T>): Promise<T> => {
    try {
      const onProgress = (progress: Progress): void => request.onProgress?.(what, progress);
      await session.read(tokens, given<ReadOptions>({ signal: request.signal, onProgress }));
      return await found(session);
    } finally {
      session.close();
    }
  };
  const writer = new TraceWriter(request.path, header, outputSketches(runtime));
  try {
    const exact = await read('recording', open({ exact: true, onRows: writer.add }), (session) => session.hiddenRows());
    const targets = Int32Array.from([...tokens.slice(tokens.length - scored + 1), NO_TARGET]);
    const measured: Measured[] = [];
    for (const { name, options } of request.measure) {
      const row = await read(name, open(options), async (session) => {
        const sums = emptySums();
        const { hiddenSize } = runtime.model.config;
        await addDivergence(sums, runtime.dense, exact, session.hiddenRows(), targets, hiddenSize);
        const { kvBytes, kvBytesF16, summary } = session.report();
        const { meanKld } = toDivergence(sums);
        return { cache: name, scored, meanKld, predictedKld: summary.predictedKld, kvBytes, kvBytesF16 };
      });
      measured.push(row);
    }
    return { header, measured, bytes: writer.finish(measured) };
  } catch (error) {
    writer.abort();
    throw error;
  }
}
