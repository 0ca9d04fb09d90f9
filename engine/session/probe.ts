/**
 * Answers what errors in pages of chosen layers and sides do to the output. A probe copies a cache as it is, keeps what
 * the next tokens ask of it, and runs these tokens again over copies in which pages are in other formats, from the
 * lowest changed layer upwards. Its caches have a pool of their own, so neither the budget nor the pages of the cache
 * that it copied are touched.
 */
import {
  type FormatName,
  type KvCache,
  KvError,
  openPool,
  openRows,
  type Side,
  sealedPages,
} from '../../native/index.ts';
import type { PolicyContext } from '../../policy/index.ts';
import { memoryBytes } from '../cache/budget.ts';
import type { Governed } from '../cache/governed.ts';
import type { LayerRows } from '../cache/types.ts';
import type { Rotary } from '../transformer/rotary.ts';
import type { Runtime } from '../transformer/runtime/runtime.ts';
import { type CopyTerms, copiedLayer } from './copied-layer.ts';
import { divergenceOf, logSumExp } from './divergence.ts';

/** Pages of one layer and side that are to be in another format. */
export interface ProbeMove {
  readonly layer: number;
  readonly side: Side;
  readonly format: FormatName;
  readonly pages: readonly number[];
}

/** Tokens that went through all layers at once. */
interface Chunk {
  readonly position: number;
  readonly tokens: number;
  /** The rows of the layers at which moves may begin. */
  readonly rows: Map<number, LayerRows>;
  /** The residual stream after the last layer, [T, m]; null until the step has ended. */
  hidden: Float32Array | null;
  /** What the tokens put out as the cache is, computed when it is first compared with. */
  logits: RowLogits[] | null;
}

/** Logits of one token, [vocab], and ln Σ exp of them. */
interface RowLogits {
  readonly row: Float32Array;
  readonly logSum: number;
}

/** Carries out the moves of one layer in a cache of that layer. */
function move(cache: KvCache, moves: readonly ProbeMove[]): void {
  for (const { side, format, pages } of moves)
    for (const page of pages) if (cache.format(0, page, side) !== format) cache.transcode(0, page, side, format);
}

/** What errors in pages of one layer do to the tokens that were read, [T] each. */
export interface Effect {
  /** KL(as it is ‖ with these moves) in nats. */
  readonly klds: number[];
  /** ε² of the change as these tokens see it: through a sketch of W_o, by the size of the residual stream. */
  readonly epsilon2: number[];
}

/** Sees, and may change, what the tokens of a chunk get from attention in the layer at which it begins, [T, H·d]. */
type AtFirst = (attention: Float32Array, chunk: Chunk) => void;

/** A relative change of attention far below any that a format makes, and above what floats cannot tell. */
const DISTURBANCE = 1e-4;

/** Rows whose logits are computed at once: more take memory and save no time. */
const BLOCK_ROWS = 32;

export class Probe {
  readonly #runtime: Runtime;
  readonly #rotary: Rotary;
  readonly #pool = openPool(memoryBytes());
  readonly #terms: CopyTerms;
  /** Layers at which moves may begin. */
  readonly #layers: ReadonlySet<number>;
  /** A cache of one layer for each, from the lowest of these upwards. They stay as they are; forks of them read on. */
  readonly #copies = new Map<number, KvCache>();
  readonly #chunks: Chunk[] = [];
  #closed = false;

  private constructor(
    runtime: Runtime,
    rotary: Rotary,
    { windowFormat, openFormat = 'f16' }: PolicyContext,
    layers: ReadonlySet<number>,
  ) {
    this.#runtime = runtime;
    this.#rotary = rotary;
    this.#terms = { runtime, pool: this.#pool, formats: { windowFormat, openFormat } };
    this.#layers = layers;
  }

  /**
   * Copies the cache as it is now. `layers`: those at which moves will begin; only theirs and the layers above are
   * copied. Rows in open pages are decoded and appended again, which gives the same bytes. Throws 'bad-argument' for a
   * layer that is not there, and 'unsupported' where pages are held as latents.
   */
  static open(runtime: Runtime, cache: Governed, rotary: Rotary, layers: readonly number[]): Probe {
    const { shape } = runtime;
    const lowest = Math.min(...layers);
    if (layers.length === 0 || layers.some((layer) => !(Number.isInteger(layer) && layer >= 0 && layer < shape.layers)))
      throw new KvError('bad-argument', `a probe begins at layers of 0 to ${shape.layers - 1}`, { values: { layers } });
    const probe = new Probe(runtime, rotary, cache.terms.context, new Set(layers));
    try {
      for (let layer = lowest; layer < shape.layers; layer++) {
        probe.#copies.set(layer, probe.#copy(layer, cache.kv, layer));
      }
      return probe;
    } catch (error) {
      probe.close();
      throw error;
    }
  }

  /** Rows of one layer, in the order of the step that they belong to. */
  add(rows: LayerRows): void {
    if (this.#closed) return;
    const { layer, position, tokens, q, k, v, x } = rows;
    if (layer === 0) this.#chunks.push({ position, tokens, rows: new Map(), hidden: null, logits: null });
    // A dense half may use its arrays again.
    const kept = { ...rows, q: q.slice(), k: k.slice(), v: v.slice(), x: x.slice() };
    if (this.#layers.has(layer)) this.#chunks.at(-1)!.rows.set(layer, kept);
  }

  /** What the step whose rows were added last has put out, [T, m]. */
  output(hidden: Float32Array): void {
    if (!this.#closed) this.#chunks.at(-1)!.hidden = hidden.slice();
  }

  /**
   * Divergence KL(as it is ‖ with these moves) in nats of every token that was read since the probe was opened, [T].
   * Pages that already have the same bytes give exactly 0. Throws 'bad-argument' where nothing was read or no probe
   * begins at the lowest layer of the moves, and 'unsupported' for moves that the cache does not know. `last`: nothing
   * more will be asked, so the moves are made in the copies themselves instead of in copies of these.
   */
  divergence(moves: readonly ProbeMove[], { last = false } = {}): Promise<number[]> {
    return this.#compared(Math.min(...moves.map(({ layer }) => layer)), moves, last);
  }

  /**
   * What moves of one layer do to the tokens that were read. `sketch`: S·W_o of the layer, [32, H·d]. Throws as
   * `divergence` does.
   */
  async effect(layer: number, moves: readonly ProbeMove[], sketch: Float32Array): Promise<Effect> {
    const epsilon2: number[] = [];
    // As it is, with the tokens of the chunks before.
    const exact = this.#copies.get(layer)?.fork();
    try {
      const klds = await this.#compared(layer, moves, false, (ours, { rows, tokens }) => {
        const { q, k, v, x } = rows.get(layer)!;
        const attention = new Float32Array(q.length);
        exact!.append(0, k, v);
        exact!.attend(0, q, attention, { observe: false });
        epsilon2.push(...errorsThrough(sketch, attention, ours, x, tokens));
      });
      return { klds, epsilon2 };
    } finally {
      exact?.close();
    }
  }

  /**
   * What the least change of a layer's attention does to the output, in nats of every token, [T]: rounding further up,
   * below which no divergence says anything of an error.
   */
  floor(layer: number): Promise<number[]> {
    return this.#compared(layer, [], false, (attention) => {
      for (let i = 0; i < attention.length; i++) attention[i]! *= 1 + DISTURBANCE;
    });
  }

  /** Divergence of every token from what it put out, with these moves from layer `from` on. */
  async #compared(
    from: number,
    moves: readonly ProbeMove[],
    last: boolean,
    atFirst: AtFirst = () => {},
  ): Promise<number[]> {
    const { layers } = this.#runtime.model.config;
    const chunks = this.#chunks.filter(({ hidden }) => hidden !== null);
    if (chunks.length === 0 || !this.#layers.has(from))
      throw new KvError(
        'bad-argument',
        'a probe needs tokens that were read, and moves from a layer at which it begins',
        {
          values: { tokens: chunks.length, layer: from, layers: [...this.#layers] },
        },
      );
    const caches = new Map<number, KvCache>();
    const klds: number[] = [];
    try {
      for (let layer = from; layer < layers; layer++) {
        const moved = moves.filter((move) => move.layer === layer);
        const copy = this.#copies.get(layer)!;
        if (last) this.#copies.delete(layer);
        const cache = last ? copy : moved.length === 0 ? copy.fork() : this.#copy(layer, copy, 0);
        caches.set(layer, cache);
        move(cache, moved);
      }
      for (const chunk of chunks) {
        const ours = await this.#run(chunk, from, caches, atFirst);
        const base = (chunk.logits ??= await this.#base(chunk));
        await this.#logits(ours, chunk.tokens, (token, { row, logSum }) => {
          klds.push(divergenceOf(base[token]!.row, base[token]!.logSum, row, logSum));
        });
      }
      return klds;
    } finally {
      for (const cache of caches.values()) cache.close();
    }
  }

  /** A layer of a cache, with pages and open rows of their own, as the cache of that layer. */
  #copy(layer: number, of: KvCache, at: number): KvCache {
    const tokens = of.length(at);
    const pages = sealedPages(tokens);
    const copy = copiedLayer(this.#terms, { of, layer, at, pages });
    try {
      if (openRows(tokens) > 0) copy.append(0, of.decode(at, pages, 'k'), of.decode(at, pages, 'v'));
      return copy;
    } catch (error) {
      copy.close();
      throw error;
    }
  }

  /** One chunk from a layer upwards. → the residual stream after the last layer, [T, m] */
  async #run(
    chunk: Chunk,
    from: number,
    caches: ReadonlyMap<number, KvCache>,
    atFirst: AtFirst,
  ): Promise<Float32Array> {
    const { dense, model } = this.#runtime;
    const { layers } = model.config;
    const { position, tokens, rows } = chunk;
    let { q, k, v, x } = rows.get(from)!;
    for (let layer = from; ; layer++) {
      const cache = caches.get(layer)!;
      const attention = new Float32Array(q.length);
      cache.append(0, k, v);
      cache.attend(0, q, attention, { observe: false });
      if (layer === from) atFirst(attention, chunk);
      if (layer + 1 === layers) return dense.last(attention, x, tokens);
      ({ q, k, v, x } = await dense.next(layer, attention, x, tokens));
      this.#rotary.apply(layer + 1, q, k, tokens, position);
    }
  }

  async #base({ hidden, tokens }: Chunk): Promise<RowLogits[]> {
    const base: RowLogits[] = [];
    // A dense half may use its arrays again.
    await this.#logits(hidden!, tokens, (_, { row, logSum }) => base.push({ row: row.slice(), logSum }));
    return base;
  }

  /** Gives `each` the logits of every row of `hidden`, [T, m]; they are valid until it returns. */
  async #logits(hidden: Float32Array, tokens: number, each: (token: number, logits: RowLogits) => void): Promise<void> {
    const { dense, model } = this.#runtime;
    const { hiddenSize: width } = model.config;
    for (let at = 0; at < tokens; at += BLOCK_ROWS) {
      const rows = Math.min(BLOCK_ROWS, tokens - at);
      const logits = await dense.logits(hidden.slice(at * width, (at + rows) * width), rows);
      const vocab = logits.length / rows;
      for (let r = 0; r < rows; r++) {
        const row = logits.subarray(r * vocab, (r + 1) * vocab);
        each(at + r, { row, logSum: logSumExp(row).logSum });
      }
    }
  }

  /** Frees the copies; what is read from then on is not kept. */
  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    for (const copy of this.#copies.values()) copy.close();
    this.#pool.close();
  }
}

/**
 * ε² of every token, [T]: |S·W_o·(ours − exact)|² ÷ |x|². exact, ours: attention, [T, H·d]; x: the residual stream to
 * which W_o adds, [T, m].
 */
function errorsThrough(
  sketch: Float32Array,
  exact: Float32Array,
  ours: Float32Array,
  x: Float32Array,
  tokens: number,
): number[] {
  const [width, residual] = [exact.length / tokens, x.length / tokens];
  return Array.from({ length: tokens }, (_, token) => {
    let error = 0;
    for (let row = 0; row < sketch.length; row += width) {
      let sum = 0;
      for (let i = 0, at = token * width; i < width; i++, at++) sum += sketch[row + i]! * (ours[at]! - exact[at]!);
      error += sum * sum;
    }
    let size = 0;
    for (let i = token * residual; i < (token + 1) * residual; i++) size += x[i]! ** 2;
    return error / size;
  });
}
