/**
 * Single kernels on a chosen instruction set (native/test_binding.cc). The binding checks every length itself.
 * Legend: n rows, c contraction, o outputs, d head_dim. Strides are in elements.
 */
import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { releaseFolder } from '../../native/formats/registry.ts';
import { type BindingName, ISA_NAMES, type Isa } from '../../native/types.ts';
import { openWasm } from '../../native/wasm.ts';
import { BINDING } from './binding.ts';

export interface KernelsBinding {
  isas(): number[];
  best(): number;
  /** What V8 knows to be outside its heap, array buffers among it. Not of a WebAssembly module. */
  externalBytes(): number;
  dotF16(
    isa: number,
    c: number,
    o: number,
    rowStride: number,
    n: number,
    xStride: number,
    yStride: number,
    m: Uint16Array,
    x: Float32Array,
    y: Float32Array,
  ): void;
  dotI8(
    isa: number,
    c: number,
    o: number,
    n: number,
    xStride: number,
    yStride: number,
    tile: Int8Array,
    x: Int16Array,
    y: Int32Array,
  ): void;
  /** y [n, outputs] is added to. */
  addDotI8(
    isa: number,
    c: number,
    o: number,
    n: number,
    xStride: number,
    yStride: number,
    tile: Int8Array,
    x: Int16Array,
    steps: Float32Array,
    y: Float32Array,
  ): void;
  rotate(isa: number, d: number, n: number, stride: number, inverse: boolean, x: Float32Array): void;
  /** → the scale */
  quantizeI16(isa: number, count: number, x: Float32Array, out: Int16Array): number;
  softmaxPage(
    isa: number,
    n: number,
    stride: number,
    scores: Float32Array,
    first: Int32Array,
    last: Int32Array,
    max: Float32Array,
    sum: Float32Array,
    rescale: Float32Array,
    share: Float32Array,
    rowMass: Float32Array,
  ): void;
  capScores(isa: number, count: number, cap: number, x: Float32Array): void;
  axpy(isa: number, count: number, a: number, x: Float32Array, y: Float32Array): void;
  scaleRow(isa: number, count: number, a: number, y: Float32Array): void;
  dot(isa: number, count: number, a: Float32Array, b: Float32Array): number;
  toHalf(isa: number, count: number, x: Float32Array, out: Uint16Array): void;
  fromHalf(isa: number, count: number, x: Uint16Array, out: Float32Array): void;
  rope(
    isa: number,
    tokens: number,
    heads: number,
    headDim: number,
    rotaryDim: number,
    interleaved: boolean,
    x: Float32Array,
    cos: Float32Array,
    sin: Float32Array,
  ): void;
  matmulF64(
    isa: number,
    rows: number,
    inner: number,
    columns: number,
    x: Float32Array,
    m: Float32Array,
    y: Float32Array,
  ): void;
  /**
   * One head in formats of one family; `bytes` is [formats, sideBytes] (sides.ts), the fields that a family keeps are
   * written with the first. `feedback`, `weights`: what steers keys.
   */
  encodeSides(
    isa: number,
    formats: Int32Array,
    isKey: boolean,
    d: number,
    stride: number,
    firstRow: number,
    x: Float32Array,
    bytes: Uint8Array,
    feedback?: Float32Array,
    weights?: Float32Array,
  ): void;
  /** The fields that a family keeps are not written. */
  demoteSide(
    isa: number,
    from: number,
    to: number,
    isKey: boolean,
    d: number,
    bytes: Uint8Array,
    out: Uint8Array,
  ): void;
  decodeSide(
    isa: number,
    format: number,
    isKey: boolean,
    d: number,
    stride: number,
    firstRow: number,
    bytes: Uint8Array,
    x: Float32Array,
  ): void;
  /** → 1 where the format decodes rows alone, else 0 */
  decodeSideRows(
    isa: number,
    format: number,
    isKey: boolean,
    d: number,
    count: number,
    tokens: Uint8Array,
    bytes: Uint8Array,
    x: Float32Array,
  ): number;
  /** → 1 where the format has levels, else 0 */
  levelsOfSide(isa: number, format: number, d: number, bytes: Uint8Array, tile: Int8Array): number;
  /**
   * Rows of several KV heads meet pages (sides.ts says how a side lies in `bytes`). formats: [pages, 2]; cap 0 is none;
   * slope and sinks may be empty; max, sum: [rows], mixed: [rows, d], skipped: [2] are written, and for pages met in
   * runs mass and the maximum it is relative to, [rows, pages].
   */
  attendPages(
    isa: number,
    d: number,
    heads: number,
    perHead: number,
    pages: number,
    last: number,
    window: number,
    inRuns: boolean,
    skipShare: number,
    cap: number,
    formats: Int32Array,
    bytes: Uint8Array,
    q: Float32Array,
    position: Int32Array,
    slope: Float32Array,
    sinks: Float32Array,
    max: Float32Array,
    sum: Float32Array,
    mixed: Float32Array,
    skipped: Int32Array,
    mass: Float32Array,
    top: Float32Array,
  ): void;
  /** y <- the norm of x; gate in place. */
  normAndGate(
    isa: number,
    count: number,
    gain: Float32Array,
    epsilon: number,
    x: Float32Array,
    y: Float32Array,
    gate: Float32Array,
    up: Float32Array,
    gelu: boolean,
  ): void;
  /**
   * y [n, outputs], steps [n, blocks of 32] and sums [n, blocks, 2] are written; bias and base may be empty. `form` is
   * an index of DENSE_FORMS.
   */
  densePanels(
    isa: number,
    form: number,
    inputs: number,
    outputs: number,
    n: number,
    panels: Uint8Array,
    x: Float32Array,
    bias: Float32Array,
    base: Float32Array,
    y: Float32Array,
    steps: Float32Array,
    sums: Int32Array,
    planes: number,
  ): void;
  /** Packs rows of a type, an index of DENSE_TYPES, into panels. → 1 if all scales are finite, or 0 */
  densePack(isa: number, type: number, inputs: number, rows: number, bytes: Uint8Array, panels: Uint8Array): number;
  /**
   * The thread pool (native/test_threads.cc); not in WebAssembly. → items that did not run exactly once, and how many
   * the caller did not run
   */
  threadRounds?(
    threads: number,
    rounds: number,
    mostItems: number,
    seed: number,
  ): { wrong: number; shared: number; byOthers: number };
  /** Linux only. Rounds while every thread but the caller is stopped. → items that ran */
  stoppedThreads?(threads: number, rounds: number): number;
}

/**
 * Where each binding's kernels lie beside it. The prebuilt one has none: it is the same sources and flags as the built
 * one.
 */
export const FOLDERS: Readonly<Record<BindingName, string>> = {
  built: releaseFolder(),
  prebuilt: 'Release',
  debug: 'Debug',
  thread: 'Thread',
  wasm: 'wasm',
};

/** The single kernels of the binding under test (binding.ts). */
export function loadKernels(): KernelsBinding {
  const folder = join(import.meta.dirname, '../../native/build', FOLDERS[BINDING ?? 'built']);
  if (BINDING === 'wasm') return openWasm(join(folder, 'kernels_test.wasm')) as KernelsBinding;
  const file = join(folder, 'kernels_test.node');
  if (!existsSync(file)) throw new Error(`${file} is not built: npm run build:native -- --tests`);
  return createRequire(import.meta.url)(file) as KernelsBinding;
}

/** Every instruction set that this build has and this CPU runs, as [name, id]. */
export function availableIsas(kernels: KernelsBinding): [Isa, number][] {
  return kernels.isas().map((id) => [ISA_NAMES[id]!, id]);
}
