/** A sequence of tokens that a model decodes over an exact f16 cache, alone or in one pass with others. */
import { Governed } from '../../engine/cache/governed.ts';
import { runPass, runStep } from '../../engine/cache/pass.ts';
import type { Stepper } from '../../engine/cache/stepper.ts';
import { termsOf } from '../../engine/cache/terms.ts';
import { seeded } from '../../engine/evaluate/recall.ts';
import { Rotary } from '../../engine/transformer/rotary.ts';
import type { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import { greedy } from '../../engine/transformer/sampling/sampler.ts';
import type { LoadedModel } from '../../engine/transformer/types.ts';
import type { PagePool } from '../../native/index.ts';
import { defaultThresholds } from '../../policy/index.ts';
import { fillLayer, pageRows } from './arena.ts';

/** The tokens that are read are ids from here on: no special ones. */
const FIRST_ID = 300;

/** Ids that a prompt of the bench consists of. */
export function wordsOf({ config: { vocabSize } }: LoadedModel, tokens: number): Int32Array {
  return Int32Array.from({ length: tokens }, (_, i) => FIRST_ID + ((i * 7919) % (vocabSize - FIRST_ID)));
}

export interface SequenceOptions {
  /** Sequences of one number have the same history and begin with the same token. */
  readonly number: number;
  /** Tokens of history: whole pages of random rows. */
  readonly depth: number;
  /** Tokens that may follow. */
  readonly room: number;
}

export class Sequence {
  readonly #cache: Governed;
  readonly stepper: Stepper;
  /** The residual stream behind the last layer of the newest tokens: [T, m]. */
  #hidden = new Float32Array(0);
  /** The token that it reads next. */
  next: number;

  /** pool: that of all sequences of a pass, as those of an engine have one: attention is then one call for all. */
  constructor(runtime: Runtime, pool: PagePool, { number, depth, room }: SequenceOptions) {
    const { shape, cacheThreads, model } = runtime;
    this.next = FIRST_ID + number;
    this.#cache = Governed.open({
      shape,
      pool,
      terms: termsOf(shape, { exact: true }, defaultThresholds(shape.layers)),
      native: { threads: cacheThreads },
      sketches: [],
      log: null,
      opened: { model: { name: 'bench', digest: '', architecture: 'bench' }, requested: {}, effective: {} },
    });
    if (depth > 0) {
      const rows = pageRows({ shape, random: seeded(number + 1) });
      for (let layer = 0; layer < shape.layers; layer++)
        fillLayer(this.#cache.kv, layer, { pair: { k: 'f16', v: 'f16' }, tokens: depth }, rows);
      // The token that sealed the last page is there as well.
      this.#cache.filled(depth + 1);
    }
    this.stepper = {
      runtime,
      governed: this.#cache,
      rotary: new Rotary(model.config, depth + 1 + room),
      times: { denseMs: 0, attentionMs: 0 },
      holds: (_, hidden) => {
        // Later passes write over these rows.
        this.#hidden = hidden.slice();
      },
    };
  }

  /** The row of its newest token: [m]. */
  get row(): Float32Array {
    return this.#hidden.subarray(-this.stepper.runtime.model.config.hiddenSize);
  }

  /** That row and the token that follows, as bytes. */
  bits(): Buffer {
    const { buffer, byteOffset, byteLength } = this.row;
    return Buffer.concat([Buffer.from(buffer, byteOffset, byteLength), Buffer.from(Int32Array.of(this.next).buffer)]);
  }

  /** Reads a prompt, in the pieces that the cache takes at once. */
  async reads(ids: Int32Array): Promise<void> {
    for (let at = 0; at < ids.length; ) {
      const part = ids.subarray(at, at + this.#cache.tokensAtOnce);
      await runStep(this.stepper, part);
      at += part.length;
    }
  }

  close(): void {
    this.#cache.close();
  }
}

/** One pass over the weights for all; each reads its next token. */
export async function step(runtime: Runtime, sequences: readonly Sequence[]): Promise<void> {
  const steps = sequences.map(({ stepper, next }) => ({ stepper, tokenIds: Int32Array.of(next) }));
  const failed = (await runPass(steps)).find((outcome) => outcome !== null);
  if (failed != null) throw failed.error;
  await draw(runtime, sequences);
}

/** Computes the logits of all in one pass; each goes on with its likeliest token. */
export async function draw({ dense }: Runtime, sequences: readonly Sequence[]): Promise<void> {
  const width = sequences[0]!.row.length;
  const rows = new Float32Array(sequences.length * width);
  for (const [index, { row }] of sequences.entries()) rows.set(row, index * width);
  const logits = await dense.logits(rows, sequences.length);
  const vocab = logits.length / sequences.length;
  for (const [index, sequence] of sequences.entries()) {
    sequence.next = greedy(logits.subarray(index * vocab, (index + 1) * vocab));
  }
}
