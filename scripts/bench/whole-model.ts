/**
 * A loaded model whose prompts and steps can be timed, with kernels of one instruction set, on one thread, over an
 * exact f16 cache. The dense half is always our own, also where onnxruntime would be chosen: that chooses its kernels
 * by itself and has them for the best instruction set alone.
 */

import { Governed } from '../../engine/cache/governed.ts';
import { runStep } from '../../engine/cache/pass.ts';
import type { Stepper } from '../../engine/cache/stepper.ts';
import { termsOf } from '../../engine/cache/terms.ts';
import { createNativeBackend } from '../../engine/transformer/dense-native.ts';
import { Grammars } from '../../engine/transformer/grammar/grammars.ts';
import { loadModel } from '../../engine/transformer/load.ts';
import { Rotary } from '../../engine/transformer/rotary.ts';
import type { Runtime } from '../../engine/transformer/runtime/runtime.ts';
import type { DenseBackend, LoadedModel } from '../../engine/transformer/types.ts';
import { type Isa, nativeInfo, setIsa } from '../../native/index.ts';
import { defaultThresholds } from '../../policy/index.ts';
import { fillLayer, pageRows } from './arena.ts';
import { collector, now } from './measure.ts';

const THREADS = 1;
/** The tokens that are read are ids from here on: no special ones. */
const FIRST_ID = 300;

interface History {
  readonly cache: Governed;
  readonly table: Rotary;
}

export class WholeModel {
  readonly #runtime: Runtime;
  /** CPU seconds from the open file to a model that can compute. */
  readonly loadCpuSeconds: number;
  readonly weightTypes: Readonly<Record<string, number>>;
  #decoding: History | null = null;

  private constructor(model: LoadedModel, dense: DenseBackend, loadCpuSeconds: number) {
    this.loadCpuSeconds = loadCpuSeconds;
    this.weightTypes = dense.weightTypes;
    const { layers, queryHeads, kvHeads, headDim } = model.config;
    const grammars = Grammars.of(model);
    this.#runtime = {
      model,
      dense,
      grammars,
      denseChoice: { name: 'native', why: 'it is what is measured', isSecondBest: false },
      threads: THREADS,
      cacheThreads: THREADS,
      native: nativeInfo(),
      loadMs: 0,
      resting: (work) => work(),
      shape: { layers, queryHeads, kvHeads, headDim },
      close: async () => {
        await grammars.close();
        await dense.close();
        model.weights.close();
      },
    };
  }

  static async open(path: string, isa: Isa): Promise<WholeModel> {
    setIsa(isa);
    const start = now(THREADS);
    const model = await loadModel(path);
    const dense = await createNativeBackend(model, { precision: 'auto', threads: THREADS });
    return new WholeModel(model, dense, now(THREADS) - start);
  }

  /**
   * CPU seconds in which a prompt of this many tokens is read from the beginning, with the logits of its last token.
   */
  async prefill(tokens: number): Promise<number> {
    const history = this.#history(0, tokens);
    const { vocabSize, hiddenSize } = this.#runtime.model.config;
    const ids = Int32Array.from({ length: tokens }, (_, i) => FIRST_ID + ((i * 7919) % (vocabSize - FIRST_ID)));
    const start = now(THREADS);
    let hidden: Float32Array = new Float32Array(0);
    for (let at = 0; at < tokens; ) {
      const part = ids.subarray(at, at + history.cache.tokensAtOnce);
      hidden = await this.#run(history, part);
      at += part.length;
    }
    await this.#logits(hidden.subarray(-hiddenSize));
    const seconds = now(THREADS) - start;
    history.cache.close();
    return seconds;
  }

  /**
   * Begins to decode behind a history of `depth` tokens, whole pages of random rows. room: how many steps may follow.
   */
  decodeFrom(depth: number, room: number): void {
    this.#decoding?.cache.close();
    this.#decoding = this.#history(depth, room);
  }

  /** CPU seconds of the next `steps` steps. */
  async decode(steps: number): Promise<number> {
    const history = this.#decoding;
    if (history === null) throw new Error('decodeFrom comes first');
    const start = now(THREADS);
    for (let step = 0; step < steps; step++) {
      const logits = await this.#logits(await this.#run(history, Int32Array.of(FIRST_ID + step)));
      if (!Number.isFinite(logits[0]!)) throw new Error('the logits of a step are not finite');
    }
    return now(THREADS) - start;
  }

  /** Bytes of memory that the process holds, without garbage. */
  residentBytes(): number {
    collector()();
    return process.memoryUsage.rss();
  }

  async close(): Promise<void> {
    this.#decoding?.cache.close();
    await this.#runtime.close();
  }

  #history(depth: number, room: number): History {
    const { shape, model } = this.#runtime;
    const cache = Governed.open({
      shape,
      terms: termsOf(shape, { exact: true }, defaultThresholds(shape.layers)),
      native: { threads: THREADS },
      sketches: [],
      log: null,
      opened: { model: { name: 'bench', digest: '', architecture: 'bench' }, requested: {}, effective: {} },
    });
    if (depth > 0) {
      const rows = pageRows({ shape, random: Math.random });
      for (let layer = 0; layer < shape.layers; layer++)
        fillLayer(cache.kv, layer, { pair: { k: 'f16', v: 'f16' }, tokens: depth }, rows);
      // The token that sealed the last page is there as well.
      cache.filled(depth + 1);
    }
    return { cache, table: new Rotary(model.config, depth + 1 + room) };
  }

  async #run({ cache, table }: History, ids: Int32Array): Promise<Float32Array> {
    let hidden: Float32Array = new Float32Array(0);
    const stepper: Stepper = {
      runtime: this.#runtime,
      governed: cache,
      rotary: table,
      times: { denseMs: 0, attentionMs: 0 },
      holds: (_, rows) => {
        hidden = rows;
      },
    };
    await runStep(stepper, ids);
    return hidden;
  }

  #logits(hidden: Float32Array): Promise<Float32Array> {
    return this.#runtime.dense.logits(hidden, 1);
  }
}
