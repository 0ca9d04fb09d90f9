/**
 * The rotation H·D of the rot family: D is fixed random signs, H an orthonormal Hadamard matrix. It spreads every row
 * over all channels, so that one Gaussian table serves every channel of every model. It keeps scores: (HDq)·(HDk) =
 * q·k.
 *
 * H is symmetric: Sylvester's matrix for d = 64, 128, 256; H20 ⊗ H4 for 80 and H12 ⊗ H8 for 96, with Paley's H12 and
 * H20. The order of the float32 operations below is part of the formats (kernels give the same bits). When not to use
 * it: for other head sizes, which only f16 supports.
 */
import { assert } from '../error.ts';

const MASK64 = (1n << 64n) - 1n;

/** Random signs: splitmix64 of a seed, bit 63 of each draw set means −1. */
export function randomSigns(seed: number, count: number): Float32Array {
  let state = BigInt(seed);
  return Float32Array.from({ length: count }, () => {
    state = (state + 0x9e3779b97f4a7c15n) & MASK64;
    let z = state;
    z = ((z ^ (z >> 30n)) * 0xbf58476d1ce4e5b9n) & MASK64;
    z = ((z ^ (z >> 27n)) * 0x94d049bb133111ebn) & MASK64;
    z ^= z >> 31n;
    return z >> 63n === 1n ? -1 : 1;
  });
}

/** Signs of D: draw i for channel i. They are the same for every layer, head and side. */
export const rotationSigns = (d: number): Float32Array => randomSigns(1, d);

/**
 * Symmetric Hadamard matrix of order q + 1 for a prime q with q mod 4 = 3 (Paley's first construction, with the rows of
 * its core reflected). The first row and column are 1; H[i+1][j+1] = 1 when i + j is a non-zero square mod q, else −1.
 */
export function paley(q: number): number[][] {
  const squares = new Set(Array.from({ length: q - 1 }, (_, i) => ((i + 1) * (i + 1)) % q));
  const core = Array.from({ length: q }, (_, i) => [
    1,
    ...Array.from({ length: q }, (_, j) => (squares.has((i + j) % q) ? 1 : -1)),
  ]);
  return [Array.from({ length: q + 1 }, () => 1), ...core];
}

interface Plan {
  /** Size of the Sylvester part. */
  readonly inner: number;
  /** The other factor, null when there is none. */
  readonly outer: readonly (readonly number[])[] | null;
  readonly signs: Float32Array;
}

const plans = new Map<number, Plan>();

function plan(d: number): Plan {
  let found = plans.get(d);
  if (found === undefined) {
    const signs = rotationSigns(d);
    if (d === 80) found = { inner: 4, outer: paley(19), signs };
    else if (d === 96) found = { inner: 8, outer: paley(11), signs };
    else {
      assert(d === 64 || d === 128 || d === 256, `no rotation for head_dim ${d}`);
      found = { inner: d, outer: null, signs };
    }
    plans.set(d, found);
  }
  return found;
}

/** x ← H·D·x, or with `inverse` x ← D·H·x, in place. x: one row of d floats. */
export function rotate(x: Float32Array, inverse = false): void {
  const d = x.length;
  const { inner, outer, signs } = plan(d);
  if (!inverse) for (let i = 0; i < d; i++) x[i]! *= signs[i]!;

  // Butterflies at distance 1, 2, 4 … inside each block of `inner` channels.
  for (let half = 1; half < inner; half *= 2) {
    for (let i = 0; i < d; i += 2 * half) {
      for (let j = i; j < i + half; j++) {
        const a = x[j]!;
        const b = x[j + half]!;
        x[j] = Math.fround(a + b);
        x[j + half] = Math.fround(a - b);
      }
    }
  }

  // The dense factor sums block 0 first, then one signed block after another.
  if (outer !== null) {
    const blocks = x.slice();
    for (const [row, coefficients] of outer.entries()) {
      for (let i = 0; i < inner; i++) {
        let sum = blocks[i]! * coefficients[0]!;
        for (let b = 1; b < outer.length; b++) sum = Math.fround(sum + blocks[b * inner + i]! * coefficients[b]!);
        x[row * inner + i] = sum;
      }
    }
  }

  const norm = Math.fround(1 / Math.sqrt(d));
  for (let i = 0; i < d; i++) x[i] = Math.fround(x[i]! * norm);
  if (inverse) for (let i = 0; i < d; i++) x[i]! *= signs[i]!;
}
