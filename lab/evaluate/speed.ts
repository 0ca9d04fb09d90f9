/** How fast a pair of formats is read: the attention bench with f16 in the same rounds. */

import { seeded } from '../../engine/evaluate/recall.ts';
import { KvError, nativeInfo, parsePair } from '../../native/index.ts';
import { attentionAt } from '../../scripts/bench/attention.ts';
import type { Bench } from '../../scripts/bench/bench.ts';
import { shapeName } from '../../scripts/bench/shapes.ts';
import { openStream, STREAM_BYTES, StreamRecord } from '../../scripts/bench/stream.ts';
import { keyOf, type SpeedRow } from './frontier-rows.ts';

/** Long enough that what is read once a step does not count. */
export const SPEED_TOKENS = 16384;
const ROUNDS = 7;

let stream: StreamRecord | null = null;

/**
 * Measures a pair of formats, such as 'rot4:rot2'; null for caches that are none, and where `isKnown` says that the row
 * is there.
 */
export async function measureSpeed(
  shape: { readonly queryHeads: number; readonly kvHeads: number; readonly headDim: number },
  cache: string,
  threads: number,
  isKnown: (key: string) => boolean,
): Promise<Omit<SpeedRow, 'commit'> | null> {
  const pair = pairOf(cache);
  if (pair === null) return null;
  const subject = { part: 'speed' as const, shape: shapeName(shape), cache, tokens: SPEED_TOKENS, threads };
  if (isKnown(keyOf(subject as SpeedRow))) return null;
  stream ??= new StreamRecord(openStream(STREAM_BYTES));
  const bench: Bench = {
    settings: {
      shapes: [shape],
      formats: [parsePair('f16'), pair],
      tokens: [SPEED_TOKENS],
      threads: [threads],
      full: false,
      peers: false,
      rounds: ROUNDS,
      arenaBytes: undefined,
      model: '',
      steps: 0,
      kvBudget: '',
      sessions: 0,
      entries: 0,
    },
    stream,
    isa: nativeInfo().isa,
    root: '',
    random: seeded(1),
    add: () => {},
    say: () => {},
  };
  const row = (await attentionAt(bench, shape, SPEED_TOKENS, threads)).at(-1)!;
  const { nsPerToken, gbPerSecond, shareOfStream, ratioToF16, error } = row;
  return {
    ...subject,
    nsPerToken,
    gbPerSecond: gbPerSecond!,
    shareOfStream: shareOfStream!,
    ratioToF16: ratioToF16!,
    error: error!,
  };
}

/** The formats of a cache that is a pair of them; null for any other. */
export function pairOf(cache: string): ReturnType<typeof parsePair> | null {
  if (cache === 'exact') return null;
  try {
    return parsePair(cache);
  } catch (error) {
    if (error instanceof KvError && error.code === 'unsupported') return null;
    throw error;
  }
}
