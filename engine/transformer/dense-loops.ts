/**
 * The dense half in float32 without any package: plain loops over the formulas, with sums in float64. They are slow,
 * so they serve only requests for float32 where onnxruntime is absent.
 */
import { assert, type Experts } from '../../native/index.ts';
import { feedForwardNames, normsOf, takesMeanOut } from './config.ts';
import { DenseBase, type DenseModel, opened } from './dense.ts';
import { finite } from './dense-graphs.ts';
import type { AdaptedRows, AdapterMatrix, DenseBackend, DenseOptions, LayerInput, ModelConfig } from './types.ts';

/**
 * Decodes every weight to float32. `model.weights` must stay open until the backend is closed. Throws 'bad-model',
 * 'bad-argument'.
 */
export async function createLoopBackend(model: DenseModel, options: DenseOptions): Promise<DenseBackend> {
  return opened(new LoopBackend(model, options));
}

const ACTIVATIONS: Readonly<Record<ModelConfig['activation'], (x: number) => number>> = {
  silu: (x) => x / (1 + Math.exp(-x)),
  gelu: (x) => 0.5 * x * (1 + erf(x / Math.SQRT2)),
  'gelu-tanh': (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))),
};

/**
 * The error function. The series of its derivative up to 3, all of whose terms are positive; beyond, the continued
 * fraction of what is left to 1.
 */
function erf(x: number): number {
  const size = Math.abs(x);
  if (size > 6) return Math.sign(x);
  if (size <= 3) {
    let [term, sum] = [x, x];
    for (let n = 1; Math.abs(term) > 1e-17 * Math.abs(sum); n++) sum += term *= (2 * x * x) / (2 * n + 1);
    return (2 / Math.sqrt(Math.PI)) * Math.exp(-x * x) * sum;
  }
  let fraction = size;
  for (let n = 60; n >= 1; n--) fraction = size + n / 2 / fraction;
  return Math.sign(x) * (1 - Math.exp(-x * x) / (Math.sqrt(Math.PI) * fraction));
}

const add = (a: Float32Array, b: Float32Array): Float32Array => a.map((value, i) => value + b[i]!);

/**
 * The experts with the largest scores, of equal ones the first, and their shares: the softmax over these, or over all.
 */
function sharesOf(scores: Float32Array, { used, shareAmongChosen }: Experts): [expert: number, share: number][] {
  const order = [...scores.keys()].sort((a, b) => scores[b]! - scores[a]! || a - b);
  const chosen = order.slice(0, used);
  const power = (expert: number): number => Math.exp(scores[expert]! - scores[order[0]!]!);
  const total = (shareAmongChosen ? chosen : order).reduce((sum, expert) => sum + power(expert), 0);
  return chosen.map((expert) => [expert, power(expert) / total]);
}

class LoopBackend extends DenseBase implements DenseBackend {
  readonly name = 'loops';
  readonly isRowwise = true;
  readonly #weights = new Map<string, Float32Array>();
  /** Of each adapter, what it adds to the matrices of these names. */
  readonly #adapters = new Map<number, ReadonlyMap<string, AdapterMatrix>>();
  /** Of the call that is at work. */
  #adapted: readonly AdaptedRows[] = [];

  async open(): Promise<void> {
    const { layers, qkNorm, tiedEmbeddings } = this.model.config;
    const norms = [...normsOf(this.model.config), ...(qkNorm === 'none' ? [] : ['qNorm', 'kNorm'])];
    for (let layer = 0; layer < layers; layer++) {
      await this.turn();
      for (const norm of norms) this.#loadNorm(`${layer}.${norm}`);
      for (const part of ['q', 'k', 'v', 'o', ...feedForwardNames(this.model.config)]) this.#matrix(`${layer}.${part}`);
      if (this.model.config.experts !== null) this.#load(`${layer}.router`);
      this.onLayer(layer + 1);
    }
    this.#loadNorm('norm');
    this.#matrix(tiedEmbeddings ? 'embed' : 'head');
  }

  #loadNorm(name: string): void {
    this.#load(name);
    if (this.model.weights.has(`${name}.bias`)) this.#load(`${name}.bias`);
  }

  #load(name: string): void {
    const values = finite(name, this.model.weights.tensor(name).readFloat32());
    this.#weights.set(name, values);
    this.bytes += values.byteLength;
  }

  #matrix(name: string): void {
    this.#load(name);
    if (this.model.weights.has(`${name}.bias`)) this.#load(`${name}.bias`);
    this.countMatrices('f32');
  }

  async first(x: Float32Array, tokens: number, adapted: readonly AdaptedRows[] = []): Promise<LayerInput> {
    await this.#start(x, tokens, this.model.config.hiddenSize);
    this.#adapted = adapted;
    return this.#project(0, x, tokens);
  }

  async next(
    layer: number,
    attention: Float32Array,
    x: Float32Array,
    tokens: number,
    adapted: readonly AdaptedRows[] = [],
  ): Promise<LayerInput> {
    assert(layer >= 0 && layer < this.model.config.layers - 1, `next(${layer})`);
    await this.#start(x, tokens, this.model.config.hiddenSize);
    this.#adapted = adapted;
    return this.#project(layer + 1, this.#afterAttention(layer, attention, x, tokens), tokens);
  }

  async last(
    attention: Float32Array,
    x: Float32Array,
    tokens: number,
    adapted: readonly AdaptedRows[] = [],
  ): Promise<Float32Array> {
    await this.#start(x, tokens, this.model.config.hiddenSize);
    this.#adapted = adapted;
    return this.#afterAttention(this.model.config.layers - 1, attention, x, tokens);
  }

  addAdapter(matrices: Iterable<AdapterMatrix>): number {
    this.checkOpen();
    let adapter = 0;
    while (this.#adapters.has(adapter)) adapter++;
    const named = Array.from(matrices, (one): [string, AdapterMatrix] => [`${one.layer}.${one.slot}`, one]);
    this.#adapters.set(adapter, new Map(named));
    this.bytes += this.#bytesOf(adapter);
    return adapter;
  }

  adapterBytes(matrices: Iterable<AdapterMatrix>): number {
    let bytes = 0;
    for (const { a, b, gains } of matrices) bytes += a.byteLength + b.byteLength + (gains?.byteLength ?? 0);
    return bytes;
  }

  #bytesOf(adapter: number): number {
    return this.adapterBytes(this.#adapters.get(adapter)?.values() ?? []);
  }

  dropAdapter(adapter: number): void {
    this.bytes -= this.#bytesOf(adapter);
    this.#adapters.delete(adapter);
  }

  async logits(x: Float32Array, rows: number): Promise<Float32Array> {
    await this.#start(x, rows, this.model.config.hiddenSize);
    this.#adapted = [];
    const { tiedEmbeddings, logitCap } = this.model.config;
    const logits = this.#multiply(this.#norm(x, 'norm'), rows, tiedEmbeddings ? 'embed' : 'head');
    return logitCap === null ? logits : logits.map((logit) => logitCap * Math.tanh(logit / logitCap));
  }

  async close(): Promise<void> {
    this.closed = true;
    this.#weights.clear();
  }

  #project(layer: number, x: Float32Array, tokens: number): LayerInput {
    const { qkNorm, preNorms } = this.model.config;
    const normed = preNorms ? this.#norm(x, `${layer}.attnNorm`) : x;
    const [q, k, v] = ['q', 'k', 'v'].map((side) => this.#multiply(normed, tokens, `${layer}.${side}`));
    const [qNormed, kNormed] =
      qkNorm === 'none' ? [q!, k!] : [this.#norm(q!, `${layer}.qNorm`), this.#norm(k!, `${layer}.kNorm`)];
    return { layer, tokens, q: qNormed, k: kNormed, v: v!, x };
  }

  #afterAttention(layer: number, attention: Float32Array, x: Float32Array, tokens: number): Float32Array {
    const { queryHeads, headDim, preNorms, postNorms, experts } = this.model.config;
    this.checkRows(attention, tokens, queryHeads * headDim, 'attention');
    const middle = this.#addTo(x, attention, tokens, `${layer}.o`, `${layer}.attnPost`);
    const { parallel, oneNorm } = this.model.config;
    const read = parallel ? x : middle;
    const normed = preNorms ? this.#norm(read, `${layer}.${oneNorm ? 'attnNorm' : 'mlpNorm'}`) : read;
    if (experts === null)
      return this.#addTo(middle, this.#gated(normed, tokens, layer), tokens, `${layer}.down`, `${layer}.mlpPost`);
    const mixed = this.#mix(layer, normed, tokens, experts);
    return add(postNorms ? this.#norm(mixed, `${layer}.mlpPost`) : mixed, middle);
  }

  /** Rows as wide as the feed-forward half, or as one expert. */
  #gated(normed: Float32Array, rows: number, layer: number, expert = ''): Float32Array {
    const active = ACTIVATIONS[this.model.config.activation];
    const up = this.#multiply(normed, rows, `${layer}.up${expert}`);
    if (!this.model.config.gated) return up.map(active);
    const gate = this.#multiply(normed, rows, `${layer}.gate${expert}`);
    for (const [i, g] of gate.entries()) gate[i] = active(g) * up[i]!;
    return gate;
  }

  /** What the chosen experts answer to each row, by shares. */
  #mix(layer: number, normed: Float32Array, tokens: number, experts: Experts): Float32Array {
    const width = normed.length / tokens;
    const scores = this.#multiply(normed, tokens, `${layer}.router`);
    const mixed = new Float32Array(normed.length);
    for (let row = 0; row < tokens; row++) {
      const x = normed.subarray(row * width, (row + 1) * width);
      const shares = sharesOf(scores.subarray(row * experts.count, (row + 1) * experts.count), experts);
      const sum = new Float64Array(width);
      for (const [expert, share] of shares) {
        const answer = this.#multiply(this.#gated(x, 1, layer, `.${expert}`), 1, `${layer}.down.${expert}`);
        for (let i = 0; i < width; i++) sum[i]! += share * answer[i]!;
      }
      mixed.set(sum, row * width);
    }
    return mixed;
  }

  /** The residual stream after a matrix has answered, and perhaps its norm. */
  #addTo(stream: Float32Array, x: Float32Array, rows: number, matrix: string, norm: string): Float32Array {
    if (!this.model.config.postNorms) return this.#multiply(x, rows, matrix, stream);
    return add(this.#norm(this.#multiply(x, rows, matrix), norm), stream);
  }

  /** Rows as wide as the gain is long, each divided by its root mean square, or before that without its mean. */
  #norm(x: Float32Array, name: string): Float32Array {
    const gain = this.#weights.get(name)!;
    const bias = this.#weights.get(`${name}.bias`);
    const isCentred = takesMeanOut(this.model.config, name);
    const [width, y] = [gain.length, new Float32Array(x.length)];
    for (let start = 0; start < x.length; start += width) {
      let [mean, square] = [0, 0];
      if (isCentred) for (let i = 0; i < width; i++) mean += x[start + i]! / width;
      for (let i = 0; i < width; i++) square += (x[start + i]! - mean) ** 2;
      const inverse = 1 / Math.sqrt(square / width + this.model.config.normEpsilon);
      for (let i = 0; i < width; i++) y[start + i] = (x[start + i]! - mean) * inverse * gain[i]! + (bias?.[i] ?? 0);
    }
    return y;
  }

  /** y[t][o] = base[t][o] + bias[o] + Σ x[t][i]·w[o][i] */
  #multiply(x: Float32Array, rows: number, name: string, base?: Float32Array): Float32Array {
    const [w, bias, inputs] = [this.#weights.get(name)!, this.#weights.get(`${name}.bias`), x.length / rows];
    const outputs = w.length / inputs;
    const y = new Float32Array(rows * outputs);
    for (let o = 0; o < outputs; o++) {
      for (let row = 0; row < rows; row++) {
        let sum = (bias?.[o] ?? 0) + (base?.[row * outputs + o] ?? 0);
        for (let i = 0, at = row * inputs, from = o * inputs; i < inputs; i++) sum += x[at + i]! * w[from + i]!;
        y[row * outputs + o] = sum;
      }
    }
    this.#adapt(x, inputs, name, w, y);
    return y;
  }

  /** Adds to y what the adapters of its rows add to this matrix. */
  #adapt(x: Float32Array, inputs: number, name: string, w: Float32Array, y: Float32Array): void {
    const outputs = w.length / inputs;
    for (const { from, rows, adapter, scale } of this.#adapted) {
      const added = this.#adapters.get(adapter)!.get(name);
      if (added === undefined) continue;
      const { rank, a, b, gains } = added;
      const inner = new Float64Array(rank);
      for (let row = from; row < from + rows; row++) {
        for (let r = 0; r < rank; r++) {
          let sum = 0;
          for (let i = 0; i < inputs; i++) sum += x[row * inputs + i]! * a[r * inputs + i]!;
          inner[r] = scale * sum;
        }
        for (let o = 0; o < outputs; o++) {
          let sum = y[row * outputs + o]!;
          for (let r = 0; r < rank; r++) sum += inner[r]! * b[o * rank + r]!;
          if (gains !== undefined) sum += scale * gains[o]! * dot(x, row * inputs, w, o * inputs, inputs);
          y[row * outputs + o] = sum;
        }
      }
    }
  }

  async #start(x: Float32Array, rows: number, width: number): Promise<void> {
    this.checkOpen();
    await this.turn();
    this.checkOpen();
    this.checkRows(x, rows, width);
  }
}

function dot(x: Float32Array, at: number, w: Float32Array, from: number, count: number): number {
  let sum = 0;
  for (let i = 0; i < count; i++) sum += x[at + i]! * w[from + i]!;
  return sum;
}
