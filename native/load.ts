/**
 * Finds and opens the compiled half of this room. Nothing happens at import: the first call that needs the binary loads it.
 * Searched in order: a build beside the sources (`native/build/Release`), then a prebuilt binary (`native/prebuilds`).
 */
import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { show } from './arguments.ts';
import { assert, KvError, type KvErrorCode } from './error.ts';
import { FORMAT_NAMES, PAGE_PART_ALIGN, PAGE_TOKENS, SINK_TOKENS, SKETCH_ROWS, TRIAL_QUERIES } from './format.ts';
import { ISA_NAMES, type Isa, type NativeInfo } from './types.ts';

/** Status numbers of native/cache/status.h; null is success. */
const STATUS_CODES: readonly (KvErrorCode | null)[] = [
  null,
  'bad-argument',
  'bad-shape',
  'bad-value',
  'unsupported',
  'budget-exceeded',
  'budget-too-small',
  'closed',
  'budget-exceeded', // the system has no memory: less than the budget promised
];
const STATUS_NO_MEMORY = 8;

/** A pool as the binary knows it. Every method answers a status; results are written into the arrays given. */
export interface PoolHandle {
  open(budgetBytes: number): number;
  /** [4] ← budget, used, peak, and with `audit` the sum over living buffers. */
  numbers(out: Float64Array, audit: boolean): number;
  setBudget(bytes: number): number;
  close(): number;
}

/** A cache as the binary knows it. Sides are 0 (K) and 1 (V), formats indices of FORMAT_NAMES. */
export interface CacheHandle {
  open(pool: PoolHandle, shape: Int32Array, scale: number, windows: Int32Array, slopes: Float32Array): number;
  openFork(parent: CacheHandle): number;
  close(): number;
  length(layer: number, out: Float64Array): number;
  truncate(tokens: number): number;
  append(layer: number, k: Float32Array, v: Float32Array): number;
  attend(
    layer: number,
    q: Float32Array,
    out: Float32Array,
    xNorms: Float32Array | undefined,
    lse: Float32Array | undefined,
    observe: boolean,
  ): number;
  table(layer: number, kFormat: Uint8Array, vFormat: Uint8Array, mass: Float64Array): number;
  trial(layer: number, page: number, moves: Uint8Array, errors: Float64Array): number;
  setSketch(layer: number, sketch: Float32Array): number;
  hasSketch(layer: number, out: Float64Array): number;
  transcode(layer: number, page: number, side: number, format: number, out: Float64Array): number;
  decode(layer: number, page: number, side: number, out: Float32Array): number;
  codes(
    layer: number,
    page: number,
    side: number,
    codes: Uint8Array,
    rowScales: Uint16Array,
    means: Int8Array,
    meanScales: Uint16Array,
  ): number;
  memory(out: Float64Array): number;
}

/** Packed weights as the binary knows them. Formats are indices of LATENT_NAMES. */
export interface WeightsHandle {
  open(w: Float32Array, outputs: number, contraction: number, turned: boolean): number;
  close(): number;
  bytes(out: Float64Array): number;
  multiply(
    levels: Int8Array,
    rows: number,
    rowScale: Float32Array,
    planes: number,
    base: Float32Array | undefined,
    out: Float32Array,
  ): number;
  materialize(
    format: number,
    page: Uint8Array,
    planes: number,
    bias: Float32Array | undefined,
    out: Float32Array,
  ): number;
  finishMix(
    mixed: Float32Array,
    bias: Float32Array | undefined,
    mass: Float32Array | undefined,
    out: Float32Array,
  ): number;
}

export interface Binary {
  readonly Pool: new () => PoolHandle;
  readonly Cache: new () => CacheHandle;
  readonly Weights: new () => WeightsHandle;
  encodeLatent(format: number, width: number, page: Uint8Array, x: Float32Array, firstRow: number): number;
  decodeLatent(format: number, width: number, page: Uint8Array, x: Float32Array): number;
  mixLatent(format: number, width: number, page: Uint8Array, p: Float32Array, mixed: Float32Array): number;
  rope(
    x: Float32Array,
    tokens: number,
    heads: number,
    headDim: number,
    rotaryDim: number,
    cos: Float32Array,
    sin: Float32Array,
    interleaved: boolean,
  ): number;
  toHalf(x: Float32Array, out: Uint16Array): number;
  fromHalf(bits: Uint16Array, out: Float32Array): number;
  describe(): { isa: number; available: number[]; compiler: string; abi: string };
  setIsa(isa: number): number;
}

/** What the binary must say of itself: the constants that both halves rely on. */
const ABI = `1 page=${PAGE_TOKENS} sinks=${SINK_TOKENS} queries=${TRIAL_QUERIES} sketch=${SKETCH_ROWS} align=${PAGE_PART_ALIGN} formats=${FORMAT_NAMES.length}`;
const BUILD_HINT = 'run `npm run build:native` (needs python3, make and g++)';

let loaded: { binary: Binary; file: string } | undefined;

/** The package's root, from `native/load.ts` as well as from `dist/native/load.js`. */
function packageRoot(): string {
  const here = dirname(fileURLToPath(import.meta.url));
  for (let folder = dirname(here); ; folder = dirname(folder)) {
    if (existsSync(join(folder, 'package.json'))) return folder;
    if (folder === dirname(folder)) return dirname(here);
  }
}

function open(file: string, load: () => unknown): Binary {
  let binary: Binary;
  try {
    binary = load() as Binary;
  } catch (cause) {
    throw new KvError('missing-dependency', `the native cache ${file} cannot be loaded: ${(cause as Error).message}`, {
      values: { file },
      hint: BUILD_HINT,
      cause,
    });
  }
  const { abi } = binary.describe();
  if (abi !== ABI) {
    throw new KvError('missing-dependency', `the native cache ${file} was built for another version`, {
      values: { file, has: abi, wants: ABI },
      hint: BUILD_HINT,
    });
  }
  return binary;
}

/**
 * Loads the binary once; the first call decides which. `Debug` is the build with sanitizers, for tests.
 * Throws KvError 'missing-dependency' when there is none for this machine or it is stale.
 */
export function loadBinary(build: 'Release' | 'Debug' = 'Release'): Binary {
  if (loaded !== undefined) return loaded.binary;
  const root = packageRoot();
  const require = createRequire(import.meta.url);
  const built = join(root, 'native', 'build', build, 'palimpsest.node');
  if (existsSync(built)) {
    loaded = { binary: open(built, () => require(built)), file: built };
    return loaded.binary;
  }
  const prebuilds = join(root, 'native', 'prebuilds');
  if (existsSync(prebuilds)) {
    const find = require('node-gyp-build') as { path(folder: string): string };
    let file = prebuilds;
    const binary = open(prebuilds, () => require((file = find.path(join(root, 'native')))));
    loaded = { binary, file };
    return binary;
  }
  throw new KvError('missing-dependency', 'the native cache is not built', {
    values: { looked: built },
    hint: BUILD_HINT,
  });
}

/** Throws what a status means. `doing` completes the sentence "cannot …". */
export function check(status: number, doing: string, values: Readonly<Record<string, unknown>> = {}): void {
  if (status === 0) return;
  const code = STATUS_CODES[status];
  assert(code !== undefined && code !== null, `unknown native status ${status} while trying to ${doing}`);
  if (status === STATUS_NO_MEMORY) {
    throw new KvError(code, `cannot ${doing}: the system has no memory left`, { values, hint: 'lower the budget' });
  }
  throw new KvError(code, `cannot ${doing}`, { values });
}

/** What is loaded, which instruction sets it has and which one is in use. */
export function nativeInfo(): NativeInfo {
  const about = loadBinary().describe();
  const name = (id: number): Isa => {
    const isa = ISA_NAMES[id];
    assert(isa !== undefined, `unknown instruction set ${id}`);
    return isa;
  };
  return {
    isa: name(about.isa),
    available: about.available.map(name),
    compiler: about.compiler,
    abi: about.abi,
    file: loaded?.file ?? '',
  };
}

/**
 * Forces an instruction set for every cache opened from now on in this thread (open ones keep theirs).
 * Throws 'bad-argument' for an unknown name, 'unsupported' when this build or CPU lacks it.
 */
export function setIsa(isa: Isa): void {
  const id = ISA_NAMES.indexOf(isa);
  if (id < 0) {
    throw new KvError('bad-argument', `unknown instruction set '${show(isa)}'`, {
      values: { given: show(isa), known: ISA_NAMES.join(', ') },
    });
  }
  const { available } = nativeInfo();
  if (!available.includes(isa)) {
    throw new KvError('unsupported', `this build or CPU has no ${isa}`, {
      values: { given: isa, available: available.join(', ') },
      hint: `use one of ${available.join(', ')}`,
    });
  }
  check(loadBinary().setIsa(id), `use ${isa}`);
}
