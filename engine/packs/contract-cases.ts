/**
 * The contract of a module, tried: rows of every kind and number, each call again in the same instance and in a fresh
 * one, products against those of the decoded rows, vectors, fuel. What is tried follows from seeds that the host
 * chooses.
 */
import { reference, rope } from '../../native/index.ts';
import { type Case, equalBytes, Findings } from './findings.ts';
import { compileModule, FUEL_DIM, PackInstance } from './instance.ts';
import { PackKernel } from './kernel.ts';
import type { CompiledModule } from './machine.ts';
import {
  type CodecManifest,
  type CodecVector,
  type KernelManifest,
  type KernelVector,
  type PackManifest,
  pageBytesOf,
} from './manifest.ts';
import type { ContractReport } from './types.ts';
import { drawn, vectorOf } from './vectors.ts';

/** The largest number that keys and values may have, that of f16. */
const LARGEST = 65_504;
/** Rows smaller than this in every channel, the least normal number of f16, are compared as if they had it. */
const SMALLEST = 2 ** -14;
/** Most that products may differ, of the sum of the sizes of their terms: float32 in any order. */
const PRODUCTS = 1e-4;
/** What is lost in numbers that are denormal. */
const NOTHING = 1e-30;

/** Kinds of rows. */
const ROWS: Readonly<Record<string, (x: number, at: number, dim: number) => number>> = {
  normal: (x) => x,
  'outlier channels': (x, at, dim) => (at % dim === 3 ? 200 * x : x),
  largest: (x) => (x < 0 ? -LARGEST : LARGEST),
  denormal: (x) => x * 1e-39,
  zeros: () => 0,
  'one value': () => -1.5,
  sparse: (x, at) => (at % 17 === 0 ? x : 0),
  'large and small': (x, at, dim) => (Math.floor(at / dim) % 2 === 0 ? 1e4 * x : 1e-4 * x),
};
const KINDS = Object.keys(ROWS);
const QUERIES = [1, 3, 8];

interface Shape {
  readonly seed: number;
  readonly tokens: number;
  readonly dim: number;
  readonly queries: number;
  readonly rows: string;
}

/** Every number of tokens from 1 to 129, and every kind of row of every head size that vectors name. */
function casesOf({ vectors }: CodecManifest, seeds: readonly number[]): Shape[] {
  const dims = [...new Set(vectors.map(({ dim }) => dim))];
  const lengths = Array.from({ length: 129 }, (_, i) => ({ tokens: i + 1, dim: dims[i % dims.length]!, at: i }));
  const kinds = dims.flatMap((dim) => KINDS.map((_, at) => ({ tokens: 128, dim, at })));
  return [...lengths, ...kinds].map(({ tokens, dim, at }, i) => ({
    seed: (seeds[i % seeds.length]! + i) >>> 0,
    ...{ tokens, dim, queries: QUERIES[i % QUERIES.length]!, rows: KINDS[at % KINDS.length]! },
  }));
}

const rowsOf = ({ seed, tokens, dim, rows }: Shape): Float32Array =>
  drawn(seed, tokens * dim).map((x, at) => ROWS[rows]!(x, at, dim));

/** What a codec answered in one case. */
interface Answers {
  readonly page: Uint8Array;
  readonly decoded: Float32Array;
  readonly dots: Float32Array;
  readonly mixed: Float32Array;
}

class CodecTrial {
  readonly #module: CompiledModule;
  readonly #manifest: CodecManifest;
  readonly #findings: Findings;
  /** Goes through all cases, so that what it remembers would show. */
  #old: PackInstance | null = null;

  constructor(module: CompiledModule, manifest: CodecManifest, findings: Findings) {
    this.#module = module;
    this.#manifest = manifest;
    this.#findings = findings;
  }

  get #format(): CodecManifest['formats'][number] {
    return this.#manifest.formats[0]!;
  }

  try(shape: Shape): void {
    const values = { ...shape };
    this.#findings.try(values, () => {
      if (this.#old === null || this.#old.isOver) this.#old = PackInstance.open(this.#module, this.#format);
      const fresh = PackInstance.open(this.#module, this.#format);
      const x = rowsOf(shape);
      const first = this.#asked(this.#old, x, shape);
      const again = this.#asked(this.#old, x, shape);
      const other = this.#asked(fresh, x, shape);
      fresh.close();
      for (const name of ['page', 'decoded', 'dots', 'mixed'] as const) {
        this.#findings.same(first[name], again[name], `${name}, again`, values);
        this.#findings.same(first[name], other[name], `${name}, in another instance`, values);
      }
      const wanted = pageBytesOf(this.#format, shape.tokens, shape.dim);
      if (first.page.length !== wanted)
        this.#findings.found('page bytes', `a page takes ${first.page.length} bytes, not ${wanted}`, values);
      this.#errors(x, first.decoded, shape);
      this.#products(first, shape);
      if (this.#format.known !== null) this.#twin(x, first.decoded, shape);
    });
  }

  #asked(codec: PackInstance, x: Float32Array, shape: Shape): Answers {
    const { seed, tokens, dim, queries } = shape;
    const called = (name: string, count: number): void => {
      const counted = tokens * Math.max(1, dim / FUEL_DIM) * count;
      this.#findings.called(name, codec.fuelUsed, counted, { ...shape });
    };
    const page = codec.encode(x, tokens, dim);
    called('encode', 1);
    const decoded = codec.decode(page, tokens, dim);
    called('decode', 1);
    const dots = new Float32Array(queries * tokens);
    codec.dots(page, drawn(seed + 1, queries * dim), dots, tokens, dim, queries);
    called('dots', queries);
    const mixed = drawn(seed + 3, queries * dim);
    codec.mix(page, drawn(seed + 2, queries * tokens), mixed, tokens, dim, queries);
    called('mix', queries);
    return { page, decoded, dots, mixed };
  }

  #errors(x: Float32Array, decoded: Float32Array, shape: Shape): void {
    const { tokens, dim } = shape;
    for (let t = 0; t < tokens; t++) {
      let [lost, norm] = [0, 0];
      for (let i = t * dim; i < (t + 1) * dim; i++) {
        lost += (x[i]! - decoded[i]!) ** 2;
        norm += x[i]! ** 2;
      }
      const share = Math.sqrt(lost) / Math.max(Math.sqrt(norm), SMALLEST * Math.sqrt(dim));
      this.#findings.lost(share, this.#format.errorMost, { ...shape, row: t });
    }
  }

  #products({ decoded, dots, mixed }: Answers, shape: Shape): void {
    const { seed, tokens, dim, queries } = shape;
    const [q, w] = [drawn(seed + 1, queries * dim), drawn(seed + 2, queries * tokens)];
    const before = drawn(seed + 3, queries * dim);
    for (let h = 0; h < queries; h++) {
      const [sums, sizes] = [new Float64Array(dim), new Float64Array(dim)];
      for (let t = 0; t < tokens; t++) {
        const weight = w[h * tokens + t]!;
        let [dot, size] = [0, 0];
        for (let c = 0; c < dim; c++) {
          const level = decoded[t * dim + c]!;
          const term = q[h * dim + c]! * level;
          dot += term;
          size += Math.abs(term);
          sums[c]! += weight * level;
          sizes[c]! += Math.abs(weight * level);
        }
        this.#product('dots', dots[h * tokens + t]!, dot, size, shape);
      }
      for (let c = 0; c < dim; c++) {
        const begin = before[h * dim + c]!;
        this.#product('mix', mixed[h * dim + c]!, begin + sums[c]!, Math.abs(begin) + sizes[c]!, shape);
      }
    }
  }

  #product(name: string, found: number, wanted: number, size: number, shape: Shape): void {
    if (Math.abs(found - wanted) <= PRODUCTS * size + NOTHING) return;
    this.#findings.found('products', `${name}: ${found}, where decoded rows give ${wanted}`, { ...shape });
  }

  /** q8 alone is promised, which has no more than 128 rows and takes each by itself. */
  #twin(x: Float32Array, decoded: Float32Array, shape: Shape): void {
    const rows = 128 * shape.dim;
    if (x.length > rows) return;
    const padded = new Float32Array(rows);
    padded.set(x);
    const ours = reference.CODECS.q8.decode(reference.CODECS.q8.encode(padded, shape.dim));
    if (!equalBytes(ours.subarray(0, x.length), decoded))
      this.#findings.found('twin', 'rows decode to other bits than those of our q8', { ...shape });
  }
}

const sameVector = (a: object, b: object): boolean => JSON.stringify(sorted(a)) === JSON.stringify(sorted(b));
const sorted = (value: object): object =>
  Object.fromEntries(
    Object.entries(value)
      .sort(([a], [b]) => (a < b ? -1 : 1))
      .map(([name, one]) => [name, typeof one === 'object' ? sorted(one as object) : one]),
  );

function tryCodec(module: CompiledModule, manifest: CodecManifest, seeds: readonly number[]): ContractReport {
  const format = manifest.formats[0]!;
  const findings = new Findings(format.fuelPerToken);
  const trial = new CodecTrial(module, manifest, findings);
  for (const shape of casesOf(manifest, seeds)) trial.try(shape);
  tryVectors(manifest.vectors, (vector) => vectorOf(module, vector, format), findings);
  return findings.report;
}

/** Vectors come out as they are promised. */
function tryVectors<Vector extends CodecVector | KernelVector>(
  vectors: readonly Vector[],
  made: (vector: Vector) => Vector,
  findings: Findings,
): void {
  for (const vector of vectors)
    findings.try(shapeOf(vector), () => {
      if (!sameVector(made(vector), vector))
        findings.found('vector', 'bytes or fuel are not those of a vector', shapeOf(vector));
    });
}

const shapeOf = ({ seed, tokens, dim }: { seed: number; tokens: number; dim: number }): Case => ({ seed, tokens, dim });

/** Angles of tokens in turn, as rope has them: cosines, then sines. */
function anglesOf(seed: number, tokens: number, width: number): Float32Array {
  const pairs = width / 2;
  return Float32Array.from({ length: tokens * width }, (_, at) => {
    const [t, i] = [Math.floor(at / width), at % width];
    const angle = ((seed % 4096) + t) * 10_000 ** (-(i % pairs) / pairs);
    return i < pairs ? Math.cos(angle) : Math.sin(angle);
  });
}

/** What the engine's own rope makes of it. */
function turned(x: Float32Array, parameters: Float32Array, tokens: number, dim: number, width: number): Float32Array {
  const pairs = width / 2;
  const half = (from: number): Float32Array =>
    Float32Array.from(
      { length: tokens * pairs },
      (_, at) => parameters[Math.floor(at / pairs) * width + from + (at % pairs)]!,
    );
  const out = x.slice();
  rope(out, tokens, 1, dim, width, half(0), half(pairs), false);
  return out;
}

function tryKernel(module: CompiledModule, manifest: KernelManifest, seeds: readonly number[]): ContractReport {
  const kernel = manifest.kernels[0]!;
  const findings = new Findings(kernel.fuelPerToken);
  const shapes = manifest.vectors.map(({ dim, width }) => ({ dim, width }));
  let old: PackKernel | null = null;
  for (let tokens = 1; tokens <= 129; tokens++) {
    const { dim, width } = shapes[tokens % shapes.length]!;
    const seed = (seeds[tokens % seeds.length]! + tokens) >>> 0;
    const rows = KINDS[tokens % KINDS.length]!;
    const values = { seed, tokens, dim, width, rows };
    findings.try(values, () => {
      if (old === null || old.isOver) old = PackKernel.open(module, kernel);
      const fresh = PackKernel.open(module, kernel);
      const x = rowsOf({ seed, tokens, dim, rows, queries: 1 });
      const parameters = anglesOf(seed, tokens, width);
      const [first, again, other] = [old, old, fresh].map((one) => {
        const out = x.slice();
        one.apply(out, parameters, tokens, dim, width);
        findings.called('apply', one.fuelUsed, tokens * Math.max(1, dim / FUEL_DIM), values);
        return out;
      }) as [Float32Array, Float32Array, Float32Array];
      fresh.close();
      findings.same(first, again, 'apply, again', values);
      findings.same(first, other, 'apply, in another instance', values);
      if (!equalBytes(first, turned(x, parameters, tokens, dim, width)))
        findings.found('twin', `the bits are not those of our ${kernel.name}`, values);
    });
  }
  tryVectors(manifest.vectors, (vector) => vectorOf(module, vector, kernel), findings);
  return findings.report;
}

/** Tries all of a contract, in this thread. instrumented: the module with fuel. */
export function tryContract(
  instrumented: Uint8Array,
  manifest: PackManifest,
  seeds: readonly number[],
): ContractReport {
  const findings = new Findings(1);
  let module: CompiledModule | null = null;
  const isCompiled = findings.try({ bytes: instrumented.length }, () => {
    module = compileModule(instrumented);
  });
  if (!isCompiled || module === null) return findings.report;
  return manifest.kind === 'codec' ? tryCodec(module, manifest, seeds) : tryKernel(module, manifest, seeds);
}
