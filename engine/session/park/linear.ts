/** Small dense matrices in float64, row-major: what fitting a predictor needs. */

/** What is to be solved has no answer: rows of a matrix say the same. */
export class Singular extends Error {}

/** A [n, n], symmetric and positive definite → lower L with A = L·Lᵀ, [n, n]. Throws Singular where it is not. */
export function cholesky(a: Float64Array, n: number): Float64Array {
  const l = new Float64Array(n * n);
  for (let i = 0; i < n; i++) {
    for (let j = 0; j <= i; j++) {
      let sum = a[i * n + j]!;
      for (let k = 0; k < j; k++) sum -= l[i * n + k]! * l[j * n + k]!;
      if (i === j && !(sum > 0)) throw new Singular(`pivot ${i} of ${n} is ${sum}`);
      l[i * n + j] = i === j ? Math.sqrt(sum) : sum / l[j * n + j]!;
    }
  }
  return l;
}

/** Solves L·Lᵀ·X = B for X; B [n, columns] is overwritten with it. */
export function solveCholesky(l: Float64Array, n: number, b: Float64Array, columns: number): Float64Array {
  for (let i = 0; i < n; i++) {
    for (let k = 0; k < i; k++) addRow(b, i, k, -l[i * n + k]!, columns);
    scaleRow(b, i, 1 / l[i * n + i]!, columns);
  }
  for (let i = n - 1; i >= 0; i--) {
    for (let k = i + 1; k < n; k++) addRow(b, i, k, -l[k * n + i]!, columns);
    scaleRow(b, i, 1 / l[i * n + i]!, columns);
  }
  return b;
}

function addRow(b: Float64Array, to: number, from: number, factor: number, columns: number): void {
  for (let c = 0; c < columns; c++) b[to * columns + c]! += factor * b[from * columns + c]!;
}

function scaleRow(b: Float64Array, row: number, factor: number, columns: number): void {
  for (let c = 0; c < columns; c++) b[row * columns + c]! *= factor;
}

/** A [rows, inner] · B [inner, columns]. */
export function product(a: Float64Array, b: Float64Array, inner: number): Float64Array {
  const rows = a.length / inner;
  const columns = b.length / inner;
  const out = new Float64Array(rows * columns);
  for (let i = 0; i < rows; i++)
    for (let k = 0; k < inner; k++) {
      const factor = a[i * inner + k]!;
      if (factor === 0) continue;
      for (let j = 0; j < columns; j++) out[i * columns + j]! += factor * b[k * columns + j]!;
    }
  return out;
}

/** A [rows, columns] → Aᵀ. */
export function transposed(a: Float64Array, columns: number): Float64Array {
  const rows = a.length / columns;
  return Float64Array.from({ length: a.length }, (_, at) => a[(at % rows) * columns + Math.floor(at / rows)]!);
}

/**
 * The inverse of A [n, n], by elimination with pivots. Where a column is done, that of the inverse takes its place.
 * Throws Singular.
 */
export function inverse(matrix: Float64Array, n: number): Float64Array {
  const a = matrix.slice();
  const columns = Array.from({ length: n }, (_, i) => i);
  for (let i = 0; i < n; i++) {
    let pivot = i;
    for (let r = i + 1; r < n; r++) if (Math.abs(a[r * n + i]!) > Math.abs(a[pivot * n + i]!)) pivot = r;
    if (!(Math.abs(a[pivot * n + i]!) > 0)) throw new Singular(`no pivot in column ${i} of ${n}`);
    for (let c = 0; c < n && pivot !== i; c++) {
      const kept = a[i * n + c]!;
      a[i * n + c] = a[pivot * n + c]!;
      a[pivot * n + c] = kept;
    }
    [columns[i], columns[pivot]] = [columns[pivot]!, columns[i]!];
    const factor = 1 / a[i * n + i]!;
    a[i * n + i] = 1;
    scaleRow(a, i, factor, n);
    for (let r = 0; r < n; r++) {
      const share = -a[r * n + i]!;
      if (r === i || share === 0) continue;
      a[r * n + i] = 0;
      addRow(a, r, i, share, n);
    }
  }
  const out = new Float64Array(n * n);
  for (let r = 0; r < n; r++) for (let i = 0; i < n; i++) out[r * n + columns[i]!] = a[r * n + i]!;
  return out;
}

/** Eigenvalues and eigenvectors (rows of `vectors`) of a symmetric A [n, n], by cyclic Jacobi rotations. */
export function eigen(matrix: Float64Array, n: number): { values: Float64Array; vectors: Float64Array } {
  const a = matrix.slice();
  const v = new Float64Array(n * n);
  for (let i = 0; i < n; i++) v[i * n + i] = 1;
  let total = 0;
  for (const value of a) total += value * value;
  for (let sweep = 0; sweep < 16; sweep++) {
    let off = 0;
    for (let p = 0; p < n; p++) for (let q = p + 1; q < n; q++) off += a[p * n + q]! ** 2;
    if (off <= 1e-24 * total) break;
    for (let p = 0; p < n; p++) for (let q = p + 1; q < n; q++) turn(a, v, n, p, q);
  }
  return { values: Float64Array.from({ length: n }, (_, i) => a[i * n + i]!), vectors: v };
}

/** One rotation, which makes a[p, q] zero. Rows of `v` turn with it. */
function turn(a: Float64Array, v: Float64Array, n: number, p: number, q: number): void {
  const apq = a[p * n + q]!;
  if (apq === 0) return;
  const [app, aqq] = [a[p * n + p]!, a[q * n + q]!];
  const theta = (aqq - app) / (2 * apq);
  const t = Math.sign(theta || 1) / (Math.abs(theta) + Math.sqrt(theta * theta + 1));
  const c = 1 / Math.sqrt(t * t + 1);
  const s = t * c;
  for (let k = 0; k < n; k++) {
    const [x, y] = [a[p * n + k]!, a[q * n + k]!];
    a[p * n + k] = c * x - s * y;
    a[q * n + k] = s * x + c * y;
    const [vx, vy] = [v[p * n + k]!, v[q * n + k]!];
    v[p * n + k] = c * vx - s * vy;
    v[q * n + k] = s * vx + c * vy;
  }
  for (let k = 0; k < n; k++) {
    // The matrix stays symmetric: columns are the rows that were turned.
    if (k === p || k === q) continue;
    a[k * n + p] = a[p * n + k]!;
    a[k * n + q] = a[q * n + k]!;
  }
  a[p * n + p] = app - t * apq;
  a[q * n + q] = aqq + t * apq;
  a[p * n + q] = 0;
  a[q * n + p] = 0;
}
