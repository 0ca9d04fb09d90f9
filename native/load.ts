/**
 * Finds and opens the compiled half of this room. Nothing happens at import: the first call that needs the binary loads it.
 * Searched in order: a build beside the sources (`native/build/Release`), a prebuilt binary for this machine
 * (`prebuilds/`), the WebAssembly build. What is chosen, and why not what came before it, is in nativeInfo().
 */
import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join, sep } from 'node:path';
import { fileURLToPath } from 'node:url';
import { abi } from './abi.ts';
import { show } from './arguments.ts';
import { assert, KvError, type KvErrorCode } from './error.ts';
import { ISA_NAMES, type Isa, STATUS_NO_MEMORY, STATUSES } from './layout.ts';
import { BINDING_NAMES, type BindingName, type NativeInfo } from './types.ts';
import { openWasm } from './wasm.ts';

/** A pool as the binary knows it. Every method answers a status; results are written into the arrays given. */
export interface PoolHandle {
  open(budgetBytes: number): number;
  /** [6] ← budget, used, peak, reserved, its peak, and with `audit` the sum over living buffers. */
  numbers(out: Float64Array, audit: boolean): number;
  setBudget(bytes: number): number;
  close(): number;
}

/** A cache as the binary knows it. Sides are 0 (K) and 1 (V), parts those and 2 (both), formats their ids. */
export interface CacheHandle {
  open(
    pool: PoolHandle,
    shape: Int32Array,
    scale: number,
    windows: Int32Array,
    slopes: Float32Array,
    budgetBytes?: number,
  ): number;
  openFork(parent: CacheHandle): number;
  /** [5] ← budget or infinity, used, peak, room, and with `audit` the sum over living buffers: of the cache and all its forks. */
  account(out: Float64Array, audit: boolean): number;
  setBudget(bytes?: number): number;
  close(): number;
  length(layer: number, out: Float64Array): number;
  truncate(tokens: number): number;
  append(layer: number, k: Float32Array, v: Float32Array): number;
  /** layer: -1 for all. out [1] ← bytes that the count would grow by. */
  appendBytes(layer: number, tokens: number, out: Float64Array): number;
  attend(
    layer: number,
    q: Float32Array,
    out: Float32Array,
    xNorms: Float32Array | undefined,
    lse: Float32Array | undefined,
    observe: boolean,
  ): number;
  setSkipShare(share: number): number;
  skipped(layer: number, out: Float64Array): number;
  table(
    layer: number,
    kind: Uint8Array,
    kFormat: Uint8Array,
    vFormat: Uint8Array,
    latent: Uint8Array,
    mass: Float64Array,
  ): number;
  format(layer: number, page: number, side: number, out: Float64Array): number;
  trial(layer: number, page: number, moves: Uint8Array, errors: Float64Array): number;
  startTrial(layer: number, page: number, moves: Uint8Array): number;
  /** [1 + errors of all trials under way] ← how many were finished, then the errors of those. */
  finishTrials(wait: boolean, out: Float64Array): number;
  setSketch(layer: number, sketch: Float32Array): number;
  hasSketch(layer: number, out: Float64Array): number;
  transcode(layer: number, page: number, part: number, format: number, out: Float64Array): number;
  startMove(layer: number, page: number, part: number, format: number): number;
  /** [1 + 2 · moves under way] ← how many were finished, then of each its status and the bytes freed. */
  finishMoves(wait: boolean, out: Float64Array): number;
  decode(layer: number, page: number, side: number, out: Float32Array): number;
  /** about [2] ← bytes, width of the latent or 0. Without `out` that is all. */
  exportPage(layer: number, page: number, about: Int32Array, out?: Uint8Array): number;
  /** about: kind, format of keys, of values, format of the latent + 1, its width. */
  importPage(layer: number, about: Int32Array, bytes: Uint8Array): number;
  memory(out: Float64Array): number;
  /** What a cache does with latents; LATENT_OPERATIONS has the operations, native/addon_latent.cc their arguments. */
  latent(operation: number, ...args: unknown[]): number;
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

/** The matrices around attention as the binary knows them. Slots are indices of DENSE_SLOTS, norms of DENSE_NORMS. */
export interface DenseHandle {
  open(shape: Int32Array, epsilon: number): number;
  close(): number;
  bytes(out: Float64Array): number;
  setWide(layer: number, slot: number, w: Float32Array): number;
  setNarrow(layer: number, slot: number, codes: Uint8Array, scales: Float32Array, minima: Float32Array): number;
  setBias(layer: number, slot: number, bias: Float32Array): number;
  setNorm(layer: number, norm: number, gain: Float32Array): number;
  first(x: Float32Array, tokens: number, q: Float32Array, k: Float32Array, v: Float32Array): number;
  next(
    layer: number,
    attention: Float32Array,
    x: Float32Array,
    tokens: number,
    xNext: Float32Array,
    q: Float32Array,
    k: Float32Array,
    v: Float32Array,
  ): number;
  last(attention: Float32Array, x: Float32Array, tokens: number, xNext: Float32Array): number;
  logits(x: Float32Array, rows: number, out: Float32Array): number;
}

export interface Binary {
  readonly Pool: new () => PoolHandle;
  readonly Cache: new () => CacheHandle;
  readonly Weights: new () => WeightsHandle;
  readonly Dense: new () => DenseHandle;
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

const BUILD_HINT =
  'in a checkout run `npm run build:native` (needs python3, make and g++); a package is whole as it comes';
const BUILD_HINTS: Readonly<Record<BindingName, string>> = {
  built: BUILD_HINT,
  debug: 'run `npm run build:debug`',
  thread: 'run `npm run build:debug -- --thread`',
  prebuilt: 'in a checkout run `npm run prebuilds`; without a binary for this machine --binding wasm works',
  wasm: 'in a checkout run `npm run build:wasm` (needs clang, lld and the WebAssembly libraries)',
};

interface Loaded {
  readonly binary: Binary;
  readonly name: BindingName;
  readonly file: string;
  /** Why a binding that comes before this one was not taken. */
  readonly passedOver?: string;
}

let loaded: Loaded | undefined;

/** Where the package lies, seen from `native/load.ts` as well as from `dist/native/load.js`. */
export function packageRoot(): string {
  const here = dirname(fileURLToPath(import.meta.url));
  for (let folder = dirname(here); ; folder = dirname(folder)) {
    if (existsSync(join(folder, 'package.json'))) return folder;
    if (folder === dirname(folder)) return dirname(here);
  }
}

/** Opens a file and asks whether it belongs to this version. */
function open(name: BindingName, file: string): Loaded {
  const binary = (name === 'wasm' ? openWasm(file) : createRequire(import.meta.url)(file)) as Binary;
  const has = binary.describe().abi;
  const wants = abi();
  if (has === wants) return { binary, name, file };
  throw new KvError('missing-dependency', `the native cache ${file} was built for another version`, {
    values: { file, has, wants },
    hint: BUILD_HINT,
  });
}

/** The file of a binding, or null when this package or checkout has none for this machine. */
function fileOf(name: BindingName): string | null {
  const root = packageRoot();
  const native = join(root, 'native');
  const first = (...files: string[]): string | null => files.find((file) => existsSync(file)) ?? null;
  switch (name) {
    case 'built':
      return first(join(native, 'build', 'Release', 'palimpsest.node'));
    case 'debug':
      return first(join(native, 'build', 'Debug', 'palimpsest.node'));
    case 'thread':
      return first(join(native, 'build', 'Thread', 'palimpsest.node'));
    case 'wasm':
      return first(
        join(native, 'build', 'wasm', 'palimpsest.wasm'),
        join(root, 'prebuilds', 'wasm', 'palimpsest.wasm'),
      );
    case 'prebuilt':
      return prebuiltFile(root);
  }
}

/** The prebuilt addon for this platform, processor and C library. */
function prebuiltFile(root: string): string | null {
  const find = createRequire(import.meta.url)('node-gyp-build') as { path(folder: string): string };
  try {
    const file = find.path(root);
    // It looks beside Node as well, which is not what is asked for here.
    return file.startsWith(join(root, 'prebuilds') + sep) ? file : null;
  } catch {
    return null; // none fits
  }
}

function openOne(name: BindingName): Loaded {
  const file = fileOf(name);
  if (file === null) {
    throw new KvError('missing-dependency', `there is no ${name} binding of the native cache for this machine`, {
      values: { binding: name, platform: process.platform, arch: process.arch },
      hint: BUILD_HINTS[name],
    });
  }
  try {
    return open(name, file);
  } catch (cause) {
    if (cause instanceof KvError) throw cause;
    throw new KvError('missing-dependency', `the native cache ${file} cannot be loaded: ${(cause as Error).message}`, {
      values: { file },
      hint: BUILD_HINTS[name],
      cause,
    });
  }
}

function openBest(): Loaded {
  // A checkout that has built its addon means that one: a stale or broken build is an error, not a reason for another.
  if (fileOf('built') !== null) return openOne('built');
  let passedOver: string | undefined;
  for (const name of ['prebuilt', 'wasm'] as const) {
    if (fileOf(name) === null) continue;
    try {
      const found = openOne(name);
      return passedOver === undefined ? found : { ...found, passedOver };
    } catch (error) {
      // A binary that this machine refuses (an older C library, say) does not fit.
      passedOver = (error as Error).message;
    }
  }
  throw new KvError('missing-dependency', passedOver ?? 'the native cache is not built', {
    values: { platform: process.platform, arch: process.arch, looked: join(packageRoot(), 'native') },
    hint: BUILD_HINT,
  });
}

/**
 * Loads the binary once; the first call decides which. Without a name the best one that this machine runs is taken.
 * Throws KvError 'missing-dependency' when there is none or it is stale, 'bad-argument' for an unknown name,
 * 'unsupported' when another binding is loaded already.
 */
export function loadBinary(name?: BindingName): Binary {
  if (name !== undefined && !BINDING_NAMES.includes(name)) {
    throw new KvError('bad-argument', `unknown binding '${show(name)}'`, {
      values: { given: show(name), known: BINDING_NAMES.join(', ') },
    });
  }
  loaded ??= name === undefined ? openBest() : openOne(name);
  if (name !== undefined && loaded.name !== name) {
    throw new KvError('unsupported', `this thread has loaded the ${loaded.name} binding and keeps it`, {
      values: { asked: name, loaded: loaded.name },
      hint: 'choose the binding before the first call',
    });
  }
  return loaded.binary;
}

/** Chooses a binding before the first call that needs one. Throws as loadBinary does. */
export function useBinding(name: BindingName): void {
  loadBinary(name);
}

/** The error that a status stands for, null for none. */
export function codeOf(status: number): KvErrorCode | null {
  assert(STATUSES[status] !== undefined, `unknown native status ${status}`);
  return STATUSES[status].code;
}

/** Throws what a status means. `doing` completes the sentence "cannot …". */
export function check(status: number, doing: string, values: Readonly<Record<string, unknown>> = {}): void {
  if (status !== 0) throw errorOf(status, doing, values);
}

/** The error that a status other than 0 stands for. */
export function errorOf(status: number, doing: string, values: Readonly<Record<string, unknown>>): KvError {
  const code = codeOf(status);
  assert(code !== null, `status ${status} is no error`);
  if (status === STATUS_NO_MEMORY) {
    return new KvError(code, `cannot ${doing}: the system has no memory left`, { values, hint: 'lower the budget' });
  }
  return new KvError(code, `cannot ${doing}`, { values });
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
    binding: loaded?.name ?? 'built',
    file: loaded?.file ?? '',
    passedOver: loaded?.passedOver ?? null,
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
