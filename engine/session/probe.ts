/**
 * Answers what errors in pages of chosen layers and sides do to the output. A probe copies a cache as it is, keeps what
 * the next tokens ask of it, and runs these tokens again over copies in which pages are in other formats, from the
 * lowest changed layer upwards. Its caches have a pool of their own, so neither the budget nor the pages of the cache
 * that it copied are touched. It also answers what another dense half would have done to these tokens.
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
import type { DenseBackend } from '../transformer/types.ts';
import { type CopyTerms, copiedLayer } from './copied-layer.ts';
import { divergenceFrom, divergenceOf, type Exact, exactOf, logSumExp } from './divergence.ts';

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
  /** The same, for what is computed again by another dense half. */
  exact: Exact[] | null;
}

/** Logits of one token, [vocab], and ln Σ exp of them. */
interface RowLogits {
  readonly row: Float32Array;
  readonly logSum: number;
}

/** What is computed again. */
interface Again {
  /** The lowest layer whose attention is. */
  readonly from: number;
  readonly caches: ReadonlyMap<number, KvCache>;
  /** True if the queries, keys and values that enter it are as well: of the first layer. */
  readonly projects?: boolean;
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

/** What is changed in one layer. */
export interface Change {
  readonly layer: number;
  /** All of this layer; none: attention is changed by as little as floats can tell. */
  readonly moves: readonly ProbeMove[];
  /** S·W_o of the layer, [32, H·d]. */
  readonly sketch: Float32Array;
}

/** A change that is carried upwards, beside others. */
interface Run {
  readonly change: Change;
  readonly epsilon2: number[];
}

/** Rows of all runs that have begun, one run behind the other. */
type Rows = Pick<LayerRows, 'q' | 'k' | 'v' | 'x'>;

const NO_ROWS: Rows = { q: new Float32Array(), k: new Float32Array(), v: new Float32Array(), x: new Float32Array() };

const both = (a: Float32Array, b: Float32Array): Float32Array => {
  const made = new Float32Array(a.length + b.length);
  made.set(a);
  made.set(b, a.length);
  return made;
};
const joined = (a: Rows, b: Rows): Rows => ({
  q: both(a.q, b.q),
  k: both(a.k, b.k),
  v: both(a.v, b.v),
  x: both(a.x, b.x),
});

/** Copies, for whoever keeps them while others have their turn: a dense half may use its arrays again. */
const ownRows = ({ q, k, v, x }: Rows): Rows => ({ q: q.slice(), k: k.slice(), v: v.slice(), x: x.slice() });

/** The rows of one run among `all` rows. */
const part = (rows: Float32Array, run: number, all: number, tokens: number): Float32Array =>
  rows.subarray((rows.length / all) * tokens * run, (rows.length / all) * tokens * (run + 1));

/** A relative change of attention far below any that a format makes, and above what floats cannot tell. */
const DISTURBANCE = 1e-4;

/** Rows whose logits are computed at once: more take memory and save no time. */
const BLOCK_ROWS = 32;

/** Whose rows are run again: by what they were computed, from a token on, and how their keys are rotated. */
export interface Probed {
  readonly runtime: Runtime;
  denseFor(position: number, tokens: number): DenseBackend;
  readonly rotary: Rotary;
}

export class Probe {
  readonly #runtime: Runtime;
  readonly #denseFor: Probed['denseFor'];
  readonly #rotary: Rotary;
  readonly #pool = openPool(memoryBytes());
  readonly #terms: CopyTerms;
  /** Layers at which moves may begin. */
  readonly #layers: ReadonlySet<number>;
  /** A cache of one layer for each, from the lowest of these upwards. They stay as they are; forks of them read on. */
  readonly #copies = new Map<number, KvCache>();
  readonly #chunks: Chunk[] = [];
  /** Called between two steps. */
  readonly #turn: () => Promise<void>;
  #closed = false;

  private constructor(
    probed: Probed,
    { windowFormat, openFormat = 'f16' }: PolicyContext,
    layers: ReadonlySet<number>,
    turn: () => Promise<void>,
  ) {
    const { runtime, rotary } = probed;
    this.#turn = turn;
    this.#runtime = runtime;
    this.#denseFor = (position, tokens) => probed.denseFor(position, tokens);
    this.#rotary = rotary;
    this.#terms = { runtime, pool: this.#pool, formats: { windowFormat, openFormat } };
    this.#layers = layers;
  }

  /**
   * Copies the cache as it is now. `layers`: those at which moves will begin; only theirs and the layers above are
   * copied. Rows in open pages are decoded and appended again, which gives the same bytes. Throws 'bad-argument' for a
   * layer that is not there, and 'unsupported' where pages are held as latents. `turn`: called before each layer and
   * block of logits that the probe computes; what it throws ends what was asked.
   */
  static open(
    probed: Probed,
    cache: Governed,
    layers: readonly number[],
    turn: () => Promise<void> = async () => {},
  ): Probe {
    const { shape } = probed.runtime;
    const lowest = Math.min(...layers);
    if (layers.length === 0 || layers.some((layer) => !(Number.isInteger(layer) && layer >= 0 && layer < shape.layers)))
      throw new KvError('bad-argument', `a probe begins at layers of 0 to ${shape.layers - 1}`, { values: { layers } });
    const probe = new Probe(probed, cache.terms.context, new Set(layers), turn);
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
    if (layer === 0) this.#chunks.push({ position, tokens, rows: new Map(), hidden: null, logits: null, exact: null });
    const kept = { ...rows, ...ownRows({ q, k, v, x }) };
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
  async divergence(moves: readonly ProbeMove[], { last = false } = {}): Promise<number[]> {
    const { layers } = this.#runtime.model.config;
    const from = Math.min(...moves.map(({ layer }) => layer));
    const chunks = this.#readAt(from);
    const caches = new Map<number, KvCache>();
    try {
      for (let layer = from; layer < layers; layer++) {
        const moved = moves.filter((move) => move.layer === layer);
        const copy = this.#copies.get(layer)!;
        if (last) this.#copies.delete(layer);
        const cache = last ? copy : moved.length === 0 ? copy.fork() : this.#copy(layer, copy, 0);
        caches.set(layer, cache);
        move(cache, moved);
      }
      const klds: number[] = [];
      for (const chunk of chunks) {
        const ours = await this.#run(chunk, { from, caches });
        const base = (chunk.logits ??= await this.#base(chunk));
        await this.#logits(ours, chunk.tokens, (token, row) => {
          klds.push(divergenceOf(base[token]!.row, base[token]!.logSum, row, logSumExp(row).logSum));
        });
      }
      return klds;
    } finally {
      for (const cache of caches.values()) cache.close();
    }
  }

  /**
   * Divergence KL(as it was ‖ computed again from the projections of `layer` on, by the dense half as it is now) in
   * nats of every token that was read since the probe was opened, [T]; `layer` may be the one behind the last. What the
   * tokens put out is computed at the first call, which is made before the dense half is changed. Throws
   * 'bad-argument' where nothing was read, or no probe begins at the layer below.
   */
  async recomputed(layer: number): Promise<number[]> {
    const below = Math.max(0, layer - 1);
    const chunks = this.#readAt(below);
    const caches = new Map<number, KvCache>();
    try {
      for (const [at, copy] of this.#copies) if (at >= below) caches.set(at, copy.fork());
      const klds: number[] = [];
      for (const chunk of chunks) {
        const exact = (chunk.exact ??= await this.#exact(chunk));
        const ours = await this.#run(chunk, { from: below, caches, projects: layer === 0 });
        await this.#logits(ours, chunk.tokens, (token, row) => klds.push(divergenceFrom(exact[token]!, row)));
      }
      return klds;
    } finally {
      for (const cache of caches.values()) cache.close();
    }
  }

  /** The steps that were read. Throws 'bad-argument' where there are none, or no probe begins at this layer. */
  #readAt(from: number): Chunk[] {
    const chunks = this.#chunks.filter(({ hidden }) => hidden !== null);
    if (chunks.length > 0 && this.#layers.has(from)) return chunks;
    throw new KvError(
      'bad-argument',
      'a probe needs tokens that were read, and moves from a layer at which it begins',
      {
        values: { tokens: chunks.length, layer: from, layers: [...this.#layers] },
      },
    );
  }

  /**
   * What each of these changes does by itself to the tokens that were read at once since the probe was opened; a change
   * of no pages shows what rounding does (`DISTURBANCE`). All run beside each other, in a fraction of the time. Throws
   * 'bad-argument' where not one step was read or no probe begins at a layer.
   */
  async effects(changes: readonly Change[]): Promise<Effect[]> {
    const [chunk, ...others] = this.#chunks.filter(({ hidden }) => hidden !== null);
    const from = Math.min(...changes.map(({ layer }) => layer));
    if (chunk === undefined || others.length > 0 || changes.some(({ layer }) => !this.#layers.has(layer)))
      throw new KvError(
        'bad-argument',
        'effects need tokens that were read at once, and layers at which a probe begins',
        {
          values: { steps: others.length + (chunk === undefined ? 0 : 1), layers: [...this.#layers] },
        },
      );
    const { model } = this.#runtime;
    const { tokens, position } = chunk;
    const dense = this.#denseFor(position, tokens);
    const runs: Run[] = [];
    let rows = NO_ROWS;
    for (let layer = from; ; layer++) {
      await this.#turn();
      for (const change of changes.filter((one) => one.layer === layer)) {
        runs.push({ change, epsilon2: [] });
        rows = joined(rows, chunk.rows.get(layer)!);
      }
      const attention = this.#attentionOf(runs, layer, rows, chunk);
      const all = tokens * runs.length;
      if (layer + 1 === model.config.layers) {
        const klds = await this.#divergences(chunk, await dense.last(attention, rows.x, all), runs.length);
        return changes.map((change) => {
          const at = runs.findIndex((run) => run.change === change);
          return { klds: klds[at]!, epsilon2: runs[at]!.epsilon2 };
        });
      }
      const next = await dense.next(layer, attention, rows.x, all);
      rows = ownRows(next);
      for (let run = 0; run < runs.length; run++)
        this.#rotary.apply(
          layer + 1,
          part(rows.q, run, all, tokens),
          part(rows.k, run, all, tokens),
          tokens,
          chunk.position,
        );
    }
  }

  /** What the rows of all runs get from attention in a layer, each with its own pages, [runs · T, H·d]. */
  #attentionOf(runs: readonly Run[], layer: number, { q, k, v, x }: Rows, { tokens }: Chunk): Float32Array {
    const all = tokens * runs.length;
    const attention = new Float32Array(q.length);
    const copy = this.#copies.get(layer)!;
    for (const [at, { change, epsilon2 }] of runs.entries()) {
      const changes = change.layer === layer;
      const moved = changes && change.moves.length > 0;
      const own = part(attention, at, all, tokens);
      const queries = part(q, at, all, tokens);
      const attend = (cache: KvCache, out: Float32Array, moves: readonly ProbeMove[] = []): void => {
        try {
          move(cache, moves);
          cache.append(0, part(k, at, all, tokens), part(v, at, all, tokens));
          cache.attend(0, queries, out, { observe: false });
        } finally {
          cache.close();
        }
      };
      if (moved) attend(this.#copy(layer, copy, 0), own, change.moves);
      else attend(copy.fork(), own);
      if (!changes) continue;
      const exact = new Float32Array(own.length);
      if (moved) attend(copy.fork(), exact);
      else {
        exact.set(own);
        for (let i = 0; i < own.length; i++) own[i]! *= 1 + DISTURBANCE;
      }
      epsilon2.push(...errorsThrough(change.sketch, exact, own, part(x, at, all, tokens), tokens));
    }
    return attention;
  }

  /** Divergence of every token of each run from what the chunk put out, in nats, [runs][T]. */
  async #divergences(chunk: Chunk, hidden: Float32Array, runs: number): Promise<number[][]> {
    const exact = await this.#exact(chunk);
    const klds = Array.from({ length: runs }, (): number[] => []);
    await this.#logits(hidden, chunk.tokens * runs, (at, row) =>
      klds[Math.floor(at / chunk.tokens)]!.push(divergenceFrom(exact[at % chunk.tokens]!, row)),
    );
    return klds;
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
  async #run({ position, tokens, rows }: Chunk, { from, caches, projects = false }: Again): Promise<Float32Array> {
    const { model } = this.#runtime;
    const dense = this.#denseFor(position, tokens);
    const { layers } = model.config;
    let { q, k, v, x } = rows.get(from)!;
    if (projects) {
      ({ q, k, v, x } = ownRows(await dense.first(x, tokens)));
      this.#rotary.apply(0, q, k, tokens, position);
    }
    for (let layer = from; ; layer++) {
      await this.#turn();
      const cache = caches.get(layer)!;
      const attention = new Float32Array(q.length);
      cache.append(0, k, v);
      cache.attend(0, q, attention, { observe: false });
      if (layer + 1 === layers) return dense.last(attention, x, tokens);
      ({ q, k, v, x } = ownRows(await dense.next(layer, attention, x, tokens)));
      this.#rotary.apply(layer + 1, q, k, tokens, position);
    }
  }

  /** What a chunk put out, for many comparisons with it. */
  async #exact({ hidden, tokens }: Chunk): Promise<Exact[]> {
    const exact: Exact[] = [];
    await this.#logits(hidden!, tokens, (_, row) => exact.push(exactOf(row.slice())));
    return exact;
  }

  async #base({ hidden, tokens }: Chunk): Promise<RowLogits[]> {
    const base: RowLogits[] = [];
    // A dense half may use its arrays again.
    await this.#logits(hidden!, tokens, (_, row) => base.push({ row: row.slice(), logSum: logSumExp(row).logSum }));
    return base;
  }

  /** Gives `each` the logits of every row of `hidden`, [T, m]; they are valid until it returns. */
  async #logits(hidden: Float32Array, tokens: number, each: (token: number, row: Float32Array) => void): Promise<void> {
    const { model, dense } = this.#runtime;
    const { hiddenSize: width } = model.config;
    for (let at = 0; at < tokens; at += BLOCK_ROWS) {
      const rows = Math.min(BLOCK_ROWS, tokens - at);
      await this.#turn();
      const logits = await dense.logits(hidden.slice(at * width, (at + rows) * width), rows);
      const vocab = logits.length / rows;
      for (let r = 0; r < rows; r++) {
        const row = logits.subarray(r * vocab, (r + 1) * vocab);
        each(at + r, row);
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
