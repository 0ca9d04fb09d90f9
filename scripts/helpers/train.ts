/** Trains a table of rows and a layer behind it to tell labels from bags of n-grams, by AdaGrad (Duchi et al. 2011). */
import { type Bag, ROWS, type Trained } from './ngrams.ts';

export interface Example {
  readonly bag: Bag;
  readonly label: number;
}

const EPSILON = 1e-8;

export interface Training {
  readonly dim: number;
  readonly labels: number;
  readonly epochs: number;
  readonly rate: number;
  readonly next: () => number;
}

/** Mean of the rows of a bag. */
export function meanOf({ rows, shares }: Bag, table: Float32Array, dim: number): Float64Array {
  const mean = new Float64Array(dim);
  for (let i = 0; i < rows.length; i++)
    for (let d = 0; d < dim; d++) mean[d]! += shares[i]! * table[rows[i]! * dim + d]!;
  return mean;
}

/** Shares of labels for a mean. */
export function sharesOf(mean: Float64Array, { dim, out, bias }: Trained): Float64Array {
  const labels = bias.length;
  const logits = Float64Array.from(bias, (b, label) => {
    let sum = b;
    for (let d = 0; d < dim; d++) sum += mean[d]! * out[d * labels + label]!;
    return sum;
  });
  const most = Math.max(...logits);
  const powers = logits.map((x) => Math.exp(x - most));
  const total = powers.reduce((sum, x) => sum + x, 0);
  return powers.map((x) => x / total);
}

/** Moves numbers against their gradients, each by what it was moved before. */
class Steps {
  readonly #squares: Float32Array;
  readonly #rate: number;

  constructor(count: number, rate: number) {
    this.#squares = new Float32Array(count);
    this.#rate = rate;
  }

  step(values: Float32Array, at: number, gradient: number): void {
    this.#squares[at]! += gradient * gradient;
    values[at]! -= (this.#rate * gradient) / Math.sqrt(this.#squares[at]! + EPSILON);
  }
}

export function train(examples: readonly Example[], { dim, labels, epochs, rate, next }: Training): Trained {
  const table = Float32Array.from({ length: ROWS * dim }, () => (next() - 0.5) / 5);
  const out = Float32Array.from({ length: dim * labels }, () => next() - 0.5);
  const bias = new Float32Array(labels);
  const trained: Trained = { dim, table, out, bias };
  const steps = {
    table: new Steps(table.length, rate),
    out: new Steps(out.length, rate),
    bias: new Steps(labels, rate),
  };
  const order = examples.map((_, i) => i);
  for (let epoch = 0; epoch < epochs; epoch++) {
    for (let i = order.length - 1; i > 0; i--) {
      const j = Math.floor(next() * (i + 1));
      [order[i], order[j]] = [order[j]!, order[i]!];
    }
    for (const at of order) {
      const { bag, label } = examples[at]!;
      const mean = meanOf(bag, table, dim);
      const errors = sharesOf(mean, trained);
      errors[label]! -= 1;
      const back = new Float64Array(dim);
      for (let d = 0; d < dim; d++)
        for (let one = 0; one < labels; one++) {
          back[d]! += errors[one]! * out[d * labels + one]!;
          steps.out.step(out, d * labels + one, errors[one]! * mean[d]!);
        }
      for (let one = 0; one < labels; one++) steps.bias.step(bias, one, errors[one]!);
      for (let i = 0; i < bag.rows.length; i++)
        for (let d = 0; d < dim; d++) steps.table.step(table, bag.rows[i]! * dim + d, back[d]! * bag.shares[i]!);
    }
  }
  return trained;
}
