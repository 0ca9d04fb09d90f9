/** The dense half as a person would write it: float64, one loop per formula, no graph. */
import type { ModelConfig, WeightSource } from '../../../../engine/transformer/types.ts';

type Matrix = number[][];

/** The share of a normal distribution below x, by Simpson's rule. */
export function normalBelow(x: number): number {
  const [end, steps] = [Math.min(Math.abs(x), 12), 2000];
  let sum = 0;
  for (let i = 0; i <= steps; i++)
    sum += (i === 0 || i === steps ? 1 : i % 2 === 1 ? 4 : 2) * Math.exp(-(((end * i) / steps) ** 2) / 2);
  return 0.5 + (Math.sign(x) * sum * (end / steps / 3)) / Math.sqrt(2 * Math.PI);
}

export class PlainDense {
  private readonly config: ModelConfig;
  private readonly weights: WeightSource;

  constructor(config: ModelConfig, weights: WeightSource) {
    this.config = config;
    this.weights = weights;
  }

  rows(flat: Float32Array, width: number): Matrix {
    return Array.from({ length: flat.length / width }, (_, t) => [...flat.subarray(t * width, (t + 1) * width)]);
  }

  private vector(name: string): number[] {
    return [...this.weights.tensor(name).readFloat32()];
  }

  /** isCentred: the mean is taken out first. */
  private norm(
    row: readonly number[],
    scale: readonly number[],
    isCentred = false,
    bias: readonly number[] | null = null,
  ): number[] {
    const mean = !isCentred ? 0 : row.reduce((sum, value) => sum + value, 0) / row.length;
    const square = row.reduce((sum, value) => sum + (value - mean) ** 2, 0) / row.length;
    const spread = Math.sqrt(square + this.config.normEpsilon);
    return row.map((value, i) => ((value - mean) / spread) * scale[i]! + (bias?.[i] ?? 0));
  }

  private project(x: Matrix, name: string, biased: boolean): Matrix {
    const weights = this.rows(this.weights.tensor(name).readFloat32(), x[0]!.length);
    const bias = biased ? this.vector(`${name}.bias`) : weights.map(() => 0);
    return x.map((row) => weights.map((weight, o) => weight.reduce((sum, w, i) => sum + w * row[i]!, bias[o]!)));
  }

  private norms(x: Matrix, name: string): Matrix {
    const gains = this.vector(name);
    const isCentred = this.config.layerNorms && /(^norm|attnNorm|mlpNorm)$/.test(name);
    const biases = isCentred && this.config.normBias ? this.vector(`${name}.bias`) : null;
    return x.map((row) => this.norm(row, gains, isCentred, biases));
  }

  private headNorm(x: Matrix, scale: string): Matrix {
    const { headDim } = this.config;
    const gains = this.vector(scale);
    return x.map((row) =>
      Array.from({ length: row.length / headDim }, (_, h) =>
        this.norm(row.slice(h * headDim, (h + 1) * headDim), gains),
      ).flat(),
    );
  }

  projections(layer: number, x: Matrix): { q: Matrix; k: Matrix; v: Matrix } {
    const { qkvBias, qkNorm } = this.config;
    const normed = this.config.preNorms ? this.norms(x, `${layer}.attnNorm`) : x;
    const [q, k, v] = ['q', 'k', 'v'].map((side) => this.project(normed, `${layer}.${side}`, qkvBias));
    if (qkNorm === 'none') return { q: q!, k: k!, v: v! };
    if (qkNorm === 'width') return { q: this.norms(q!, `${layer}.qNorm`), k: this.norms(k!, `${layer}.kNorm`), v: v! };
    return { q: this.headNorm(q!, `${layer}.qNorm`), k: this.headNorm(k!, `${layer}.kNorm`), v: v! };
  }

  afterAttention(layer: number, attention: Matrix, x: Matrix): Matrix {
    const { outputBias, mlpBias, preNorms, postNorms, activation, parallel, oneNorm, gated } = this.config;
    const posted = (y: Matrix, norm: string): Matrix => (postNorms ? this.norms(y, `${layer}.${norm}`) : y);
    const sigmoid = (z: number): number => 1 / (1 + Math.exp(-z));
    const active = (g: number): number =>
      activation === 'gelu'
        ? g * normalBelow(g)
        : activation === 'silu'
          ? g * sigmoid(g)
          : g * sigmoid(2 * Math.sqrt(2 / Math.PI) * (g + 0.044715 * g ** 3));
    const add = (a: Matrix, b: Matrix): Matrix => a.map((row, t) => row.map((value, i) => value + b[t]![i]!));
    const middle = add(x, posted(this.project(attention, `${layer}.o`, outputBias), 'attnPost'));
    const read = parallel ? x : middle;
    const normed = preNorms ? this.norms(read, `${layer}.${oneNorm ? 'attnNorm' : 'mlpNorm'}`) : read;
    const answer = (x: Matrix, expert: string): Matrix => {
      const gate = this.project(x, `${layer}.${gated ? 'gate' : 'up'}${expert}`, mlpBias);
      const up = gated ? this.project(x, `${layer}.up${expert}`, mlpBias) : null;
      const hidden = gate.map((row, t) => row.map((g, i) => active(g) * (up === null ? 1 : up[t]![i]!)));
      return this.project(hidden, `${layer}.down${expert}`, mlpBias);
    };
    const mixed =
      this.config.experts === null ? answer(normed, '') : normed.map((row) => this.mixed(layer, row, answer));
    return add(middle, posted(mixed, 'mlpPost'));
  }

  /** What all experts would answer to a row, those that are not chosen times zero. */
  private mixed(layer: number, row: number[], answer: (x: Matrix, expert: string) => Matrix): number[] {
    const { used, shareAmongChosen } = this.config.experts!;
    const [scores] = this.project([row], `${layer}.router`, false) as [number[]];
    const isChosen = scores.map(
      (score, i) => scores.filter((other, j) => other > score || (other === score && j < i)).length < used,
    );
    const powers = scores.map(Math.exp);
    const total = powers.reduce((sum, power, i) => sum + (shareAmongChosen && !isChosen[i] ? 0 : power), 0);
    const mixed = row.map(() => 0);
    for (const [expert, power] of powers.entries()) {
      const share = isChosen[expert] ? power / total : 0;
      for (const [i, value] of answer([row], `.${expert}`)[0]!.entries()) mixed[i]! += share * value;
    }
    return mixed;
  }

  logits(x: Matrix): Matrix {
    const logits = this.project(this.norms(x, 'norm'), this.config.tiedEmbeddings ? 'embed' : 'head', false);
    const { logitCap } = this.config;
    return logitCap === null ? logits : logits.map((row) => row.map((logit) => logitCap * Math.tanh(logit / logitCap)));
  }
}
