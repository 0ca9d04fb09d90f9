/**
 * A loaded model whose prompts and steps can be timed, with kernels of one instruction set, over exact f16 caches. The
 * dense half is always our own, also where onnxruntime would be chosen: that chooses its kernels
 * by itself and has them for the best instruction set alone.
 */
import { createNativeBackend } from '../../engine/transformer/dense-native.ts';
import { Grammars } from '../../engine/transformer/grammar/grammars.ts';
import { loadModel } from '../../engine/transformer/load.ts';
import type { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import type { DenseBackend, LoadedModel } from '../../engine/transformer/types.ts';
import { type Isa, nativeInfo, openPool, type PagePool, setIsa } from '../../native/index.ts';
import { collector, now, type Took, took } from './measure.ts';
import { draw, Sequence, step, wordsOf } from './sequence.ts';

/** No bound. */
const POOL_BYTES = 2 ** 40;

/** What some steps took. */
export interface StepsTook extends Took {
  /** By the clock, of each step. */
  readonly stepMs: readonly number[];
}

export class WholeModel {
  readonly #runtime: Runtime;
  readonly #pool: PagePool = openPool(POOL_BYTES);
  /** CPU seconds from the open file to a model that can compute. */
  readonly loadCpuSeconds: number;
  readonly weightTypes: Readonly<Record<string, number>>;
  #decoding: readonly Sequence[] = [];

  private constructor(model: LoadedModel, dense: DenseBackend, threads: number, loadCpuSeconds: number) {
    this.loadCpuSeconds = loadCpuSeconds;
    this.weightTypes = dense.weightTypes;
    const { layers, queryHeads, kvHeads, headDim } = model.config;
    const grammars = Grammars.of(model);
    this.#runtime = {
      model,
      dense,
      grammars,
      denseChoice: { name: 'native', why: 'it is what is measured', isSecondBest: false },
      threads,
      cacheThreads: threads,
      native: nativeInfo(),
      loadMs: 0,
      activations: null,
      resting: (work) => work(),
      shape: { layers, queryHeads, kvHeads, headDim },
      close: async () => {
        await grammars.close();
        await dense.close();
        model.weights.close();
      },
    };
  }

  static async open(path: string, isa: Isa, threads: number): Promise<WholeModel> {
    setIsa(isa);
    const start = now(1);
    const model = await loadModel(path);
    const dense = await createNativeBackend(model, { precision: 'auto', threads });
    return new WholeModel(model, dense, threads, now(1) - start);
  }

  /** What it takes to read a prompt of this many tokens from the beginning, with the logits of its last token. */
  async prefill(tokens: number): Promise<Took> {
    const sequence = new Sequence(this.#runtime, this.#pool, { number: 0, depth: 0, room: tokens });
    const ids = wordsOf(this.#runtime.model, tokens);
    const result = await took(async () => {
      await sequence.reads(ids);
      await draw(this.#runtime, [sequence]);
    });
    sequence.close();
    return result;
  }

  /**
   * Begins to decode so many sequences, each behind a history of `depth` tokens of its own: whole pages of random rows.
   * room: how many steps may follow.
   */
  decodeFrom(sequences: number, depth: number, room: number): void {
    for (const sequence of this.#decoding) sequence.close();
    this.#decoding = this.#sequences(sequences, depth, room);
  }

  /** What the next `steps` steps take; each is one pass for all sequences. */
  async decode(steps: number): Promise<StepsTook> {
    if (this.#decoding.length === 0) throw new Error('decodeFrom comes first');
    const stepMs: number[] = [];
    const result = await took(async () => {
      for (let at = 0; at < steps; at++) {
        const start = performance.now();
        await step(this.#runtime, this.#decoding);
        stepMs.push(performance.now() - start);
      }
    });
    return { ...result, stepMs };
  }

  /**
   * Whether the rows behind the last layer, and the tokens that follow from them, are the same bits for each sequence
   * in this company as for one with the same history alone.
   */
  async areBitsEqual(sequences: number, depth: number, steps: number): Promise<boolean> {
    const company = this.#sequences(sequences, depth, steps);
    const together = company.map((): Buffer[] => []);
    for (let at = 0; at < steps; at++) {
      await step(this.#runtime, company);
      for (const [index, sequence] of company.entries()) together[index]!.push(sequence.bits());
    }
    for (const sequence of company) sequence.close();
    for (const [number, expected] of together.entries()) {
      const alone = new Sequence(this.#runtime, this.#pool, { number, depth, room: steps });
      for (const bits of expected) {
        await step(this.#runtime, [alone]);
        if (!alone.bits().equals(bits)) return false;
      }
      alone.close();
    }
    return true;
  }

  /** Bytes of memory that the process holds, without garbage. */
  residentBytes(): number {
    collector()();
    return process.memoryUsage.rss();
  }

  async close(): Promise<void> {
    for (const sequence of this.#decoding) sequence.close();
    this.#pool.close();
    await this.#runtime.close();
  }

  #sequences(count: number, depth: number, room: number): Sequence[] {
    return Array.from(
      { length: count },
      (_, number) => new Sequence(this.#runtime, this.#pool, { number, depth, room }),
    );
  }
}
