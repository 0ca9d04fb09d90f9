/**
 * The peers of the attention bench. Each gives subjects that are timed together with ours, and its rows are computed
 * from their times.
 */
import { join } from 'node:path';
import { ARENA_BYTES } from '../arena.ts';
import { type Bench, rowOf } from '../bench.ts';
import type { Subject } from '../measure.ts';
import type { BenchRow } from '../rows.ts';
import type { Shape } from '../shapes.ts';
import { LLAMA_MISSING, LLAMA_TYPES, LlamaPeer, llamaBytesPerToken, llamaIsInstalled } from './llama.ts';
import { ORT_TYPES, type OrtType, openOrtAttention, ortBytesPerToken, SHORT } from './onnxruntime.ts';
import { RANDOM_LAYERS, randomModel, smallLlama } from './random-model.ts';

/** A peer with one cache type. The cost of a history is the difference between the times with it and without it. */
export interface PeerSubject {
  readonly peer: string;
  readonly format: string;
  readonly whole: Subject;
  readonly without: Subject;
  /** The tokens × KV heads by which the two differ in one pass. */
  readonly tokens: number;
  readonly bytesPerToken: number;
}

export interface Peers {
  readonly subjects: readonly PeerSubject[];
  close(): Promise<void>;
}

export async function openPeers(bench: Bench, shape: Shape, tokens: number, threads: number): Promise<Peers> {
  const closing: (() => void | Promise<void>)[] = [];
  const close = async (): Promise<void> => {
    for (const one of closing.splice(0)) await one();
  };
  try {
    const subjects: PeerSubject[] = [];
    for (const type of ORT_TYPES) subjects.push(await ortSubject(bench, shape, { type, tokens, threads, closing }));
    if (llamaIsInstalled(bench.root)) {
      const model = randomModel(smallLlama(shape), join(bench.root, '.cache', 'models'));
      const llama = new LlamaPeer(bench.root);
      closing.push(() => llama.close());
      for (const type of LLAMA_TYPES) {
        const deep = await llama.open(model, type, tokens, { threads });
        const bare = await llama.open(model, type, 0, { threads });
        subjects.push({
          peer: 'llama.cpp',
          format: type,
          whole: { run: () => deep.step() },
          without: { run: () => bare.step() },
          tokens: RANDOM_LAYERS * tokens * shape.kvHeads,
          bytesPerToken: llamaBytesPerToken(type, shape),
        });
      }
    } else bench.say(LLAMA_MISSING);
    return { subjects, close };
  } catch (error) {
    await close();
    throw error;
  }
}

async function ortSubject(
  { settings, random }: Bench,
  shape: Shape,
  given: { type: OrtType; tokens: number; threads: number; closing: (() => void | Promise<void>)[] },
): Promise<PeerSubject> {
  const { type, tokens, threads, closing } = given;
  const arenaBytes = settings.arenaBytes ?? ARENA_BYTES;
  const ort = await openOrtAttention(type, shape, { tokens, threads, arenaBytes, random });
  closing.push(() => ort.close());
  return {
    peer: 'onnxruntime',
    format: type,
    whole: { run: () => ort.pass(true) },
    without: { run: () => ort.pass(false) },
    tokens: ort.caches * (tokens - SHORT) * shape.kvHeads,
    bytesPerToken: ortBytesPerToken(type, shape),
  };
}

/**
 * `seconds` alternate between those of `whole` and of `without` for each subject. `oursNs` is the time of rot4:rot4 in
 * the same rounds.
 */
export function peerRows(
  bench: Bench,
  shape: Shape,
  {
    subjects,
    tokens,
    threads,
    seconds,
    streamGbPerSecond,
    oursNs,
  }: {
    subjects: readonly PeerSubject[];
    tokens: number;
    threads: number;
    seconds: readonly number[];
    streamGbPerSecond: number;
    oursNs: number | null;
  },
): BenchRow[] {
  return subjects.flatMap((subject, i) => {
    const nsPerToken = ((seconds[2 * i]! - seconds[2 * i + 1]!) * 1e9) / subject.tokens;
    if (!(nsPerToken > 0)) {
      bench.say(`${subject.peer} ${subject.format}: the difference between the two times is smaller than the noise`);
      return [];
    }
    const gbPerSecond = subject.bytesPerToken / nsPerToken;
    return rowOf(bench, shape, {
      bench: 'attention',
      tokens,
      threads,
      format: subject.format,
      nsPerToken,
      gbPerSecond,
      shareOfStream: gbPerSecond / streamGbPerSecond,
      peer: subject.peer,
      peerRatio: oursNs === null ? null : nsPerToken / oursNs,
    });
  });
}
