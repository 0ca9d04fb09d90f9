/**
 * Finds and loads the native code. Importing this module loads nothing; the first call that needs the binary does. It
 * looks for a build beside the sources (`native/build/Release`), then for a prebuilt binary for this machine
 * (`prebuilt.ts`), and then for the WebAssembly build. Where yardsticks are to be computed, it is the build that has
 * them, or the WebAssembly module that a package brings. nativeInfo() says which one was chosen, and why a preferred
 * one was not.
 */
import { existsSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { abi } from './abi.ts';
import { show } from './arguments.ts';
import { assert, KvError, type KvErrorCode } from './error.ts';
import { keepYardsticks, releaseFolder, servesYardsticks, yardstickModule } from './formats/registry.ts';
import { ISA_NAMES, type Isa, STATUS_NO_MEMORY, STATUSES } from './layout.ts';
import { prebuiltFile, whyNoPrebuilt } from './prebuilt.ts';
import { BINDING_NAMES, type BindingName, type NativeInfo } from './types.ts';
import { openWasm } from './wasm.ts';

/** A pool in the binary. Every method returns a status and writes its results into the arrays that it is given. */
export interface PoolHandle {
  open(budgetBytes: number): number;
  /** Writes six numbers: budget, used, peak, reserved, its peak, and with `audit` the sum over live buffers. */
  numbers(out: Float64Array, audit: boolean): number;
  setBudget(bytes: number): number;
  close(): number;
}

/** A cache in the binary. Sides are 0 (K) and 1 (V), parts can also be 2 (both), and formats are given by their ids. */
export interface CacheHandle {
  open(
    pool: PoolHandle,
    shape: Int32Array,
    scale: number,
    windows: Int32Array,
    slopes: Float32Array,
    budgetBytes?: number,
    scoreCap?: number,
  ): number;
  openFork(parent: CacheHandle): number;
  adopt(source: CacheHandle, pages: number): number;
  /**
   * Writes six numbers for the cache and its forks: budget or infinity, used, peak, room, with `audit` the sum over
   * live buffers, and what of the used bytes belongs to no cache alone.
   */
  account(out: Float64Array, audit: boolean): number;
  setBudget(bytes?: number): number;
  close(): number;
  length(layer: number, out: Float64Array): number;
  truncate(tokens: number): number;
  append(layer: number, k: Float32Array, v: Float32Array): number;
  /** Writes by how many bytes the count would grow. `layer` is -1 for all layers. */
  appendBytes(layer: number, tokens: number, out: Float64Array): number;
  attend(
    layer: number,
    q: Float32Array,
    out: Float32Array,
    xNorms: Float32Array | undefined,
    lse: Float32Array | undefined,
    observe: boolean,
    besideLse?: Float32Array,
    besideOut?: Float32Array,
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
    sinks: Float64Array,
  ): number;
  format(layer: number, page: number, side: number, out: Float64Array): number;
  /** Writes the CRC-32C of the codes of keys and values of so many sealed pages, NaN where a page has none. */
  sideDigests(layer: number, first: number, out: Float64Array): number;
  trial(layer: number, page: number, moves: Uint8Array, errors: Float64Array): number;
  startTrial(layer: number, page: number, moves: Uint8Array): number;
  /** ORIGINAL_OPERATIONS lists the operations. Writes the freed bytes, the error or the format. */
  original(operation: number, layer: number, page: number, side: number, out: Float64Array): number;
  /**
   * KEPT_ROWS_OPERATIONS lists the operations. Writes the bytes taken or freed, the error or the number of rows; only
   * keeping reads the places.
   */
  keptRows(
    operation: number,
    layer: number,
    page: number,
    side: number,
    places: Uint16Array,
    out: Float64Array,
  ): number;
  /**
   * Writes how many trials were finished, and then their errors. There must be room for those of all trials under way.
   */
  finishTrials(wait: boolean, out: Float64Array): number;
  setSketch(layer: number, sketch: Float32Array): number;
  hasSketch(layer: number, out: Float64Array): number;
  transcode(layer: number, page: number, part: number, format: number, out: Float64Array): number;
  startMove(layer: number, page: number, part: number, format: number): number;
  /**
   * Writes how many moves were finished, and then the status and the freed bytes of each. There must be room for all
   * moves under way.
   */
  finishMoves(wait: boolean, out: Float64Array): number;
  decode(layer: number, page: number, side: number, out: Float32Array): number;
  /**
   * Writes to `about` the number of bytes and the width of the latent, or 0. Writes the bytes to `out` if it is given.
   */
  exportPage(layer: number, page: number, about: Int32Array, out?: Uint8Array): number;
  /** `about` holds the kind, the formats of keys and values, the format of the latent + 1, and its width. */
  importPage(layer: number, about: Int32Array, bytes: Uint8Array): number;
  /** Writes to `about` the format and the number of bytes. Writes the bytes to `out` if it is given. */
  exportSide(layer: number, page: number, side: number, about: Float64Array, out?: Uint8Array): number;
  /** Writes the freed bytes to `out`. */
  exchangeSide(layer: number, page: number, side: number, format: number, bytes: Uint8Array, out: Float64Array): number;
  /** Writes the freed bytes to `out`. */
  freePage(layer: number, page: number, out: Float64Array): number;
  /** Writes the freed bytes to `out`. */
  evictPage(layer: number, page: number, out: Float64Array): number;
  /** Writes the freed bytes to `out`. */
  holdForeign(layer: number, page: number, bytes: Uint8Array, out: Float64Array): number;
  /** Writes to `about` the number of bytes. Writes the bytes to `out` if it is given. */
  foreignBytes(layer: number, page: number, about: Float64Array, out?: Uint8Array): number;
  /** Writes the freed bytes to `out`. */
  restoreForeign(
    layer: number,
    page: number,
    format: number,
    k: Float32Array,
    v: Float32Array,
    out: Float64Array,
  ): number;
  /** Writes the error to `out`. */
  trialForeign(
    layer: number,
    page: number,
    k: Float32Array | undefined,
    v: Float32Array | undefined,
    out: Float64Array,
  ): number;
  /** native/addon_predicted.cc describes the arguments. */
  importPages(
    bytes: Uint8Array,
    records: Float64Array,
    predictor: PredictorHandle | undefined,
    cos: Float32Array | undefined,
    sin: Float32Array | undefined,
    rotaryDim: number | undefined,
    interleaved: boolean | undefined,
    out: Float64Array,
  ): number;
  memory(out: Float64Array): number;
  /** The operations on latents. LATENT_OPERATIONS lists them, and native/addon_latent.cc describes their arguments. */
  latent(operation: number, ...args: unknown[]): number;
}

/**
 * Several caches in the binary, for calls of all of them. `refused` receives which member was refused, and is left as
 * it is where it was none of them.
 */
export interface BatchHandle {
  clear(): number;
  add(cache: CacheHandle, tokens: number): number;
  append(layer: number, k: Float32Array, v: Float32Array, refused: Float64Array): number;
  attend(
    layer: number,
    q: Float32Array,
    out: Float32Array,
    xNorms: Float32Array | undefined,
    lse: Float32Array | undefined,
    observe: boolean,
    refused: Float64Array,
    besideLse?: Float32Array,
    besideOut?: Float32Array,
  ): number;
}

/** Packed weights in the binary. Formats are indices of LATENT_NAMES. */
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

type SideArrays = readonly [
  weights: Int8Array,
  scales: Float32Array,
  base: Float32Array,
  factors: Uint8Array,
  tables: Uint8Array,
];

/** What pages are predicted by, in the binary. */
export interface PredictorHandle {
  open(kvHeads: number, headDim: number, shares: Uint16Array): number;
  addLayer(...arrays: [...k: SideArrays, ...v: SideArrays, centres: Float32Array, gains: Float32Array]): number;
  setBack(layer: number, isKey: boolean, turn: Float32Array): number;
  write(
    layer: number,
    below: Int8Array | undefined,
    k: Float32Array,
    v: Float32Array,
    firstRow: number,
    out: Uint8Array,
    levels: Int8Array,
    written: Float64Array,
  ): number;
  bytes(out: Float64Array): number;
  close(): number;
}

/** The matrices around attention in the binary. Slots are indices of DENSE_SLOTS, norms of DENSE_NORMS. */
export interface DenseHandle {
  open(shape: Int32Array, epsilon: number, logitCap?: number): number;
  close(): number;
  bytes(out: Float64Array): number;
  /** `type` is an index of DENSE_TYPES. */
  setRows(
    layer: number,
    slot: number,
    type: number,
    bytes: Uint8Array,
    fromRow: number,
    rows: number,
    expert: number,
  ): number;
  setBias(layer: number, slot: number, bias: Float32Array): number;
  setRouter(layer: number, weights: Float32Array): number;
  setNorm(layer: number, norm: number, gain: Float32Array): number;
  setPlanes(layer: number, slot: number, planes: number): number;
  setAdapter(
    adapter: number,
    layer: number,
    slot: number,
    rank: number,
    a: Float32Array,
    b: Float32Array,
    gains?: Float32Array,
  ): number;
  dropAdapter(adapter: number): number;
  first(
    x: Float32Array,
    tokens: number,
    q: Float32Array,
    k: Float32Array,
    v: Float32Array,
    parts?: Int32Array,
    scales?: Float32Array,
  ): number;
  next(
    layer: number,
    attention: Float32Array,
    x: Float32Array,
    tokens: number,
    xNext: Float32Array,
    q: Float32Array,
    k: Float32Array,
    v: Float32Array,
    parts?: Int32Array,
    scales?: Float32Array,
  ): number;
  last(
    attention: Float32Array,
    x: Float32Array,
    tokens: number,
    xNext: Float32Array,
    parts?: Int32Array,
    scales?: Float32Array,
  ): number;
  logits(x: Float32Array, rows: number, out: Float32Array): number;
}

export interface Binary {
  readonly Pool: new () => PoolHandle;
  readonly Cache: new () => CacheHandle;
  readonly Batch: new () => BatchHandle;
  readonly Weights: new () => WeightsHandle;
  readonly Dense: new () => DenseHandle;
  readonly Predictor: new () => PredictorHandle;
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
  /** Fills in the checksums and hashes of the entries in bytes [from, to). */
  sealLogEntries(bytes: Uint8Array, from: number, to: number, state: Uint8Array): number;
  /** Writes to `out` how many entries are whole and continue the chain. See native/addon_log.cc. */
  followLogEntries(
    bytes: Uint8Array,
    state: Uint8Array,
    firstSeq: number,
    forms: Float64Array,
    names: Uint8Array,
    threads: number,
    ends: Uint32Array,
    kinds: Uint8Array,
    hashes: Uint8Array,
    out: Float64Array,
  ): number;
  /**
   * Opens the sealed ones of entries that were followed; writes to `out` the first whose session is not among the keys.
   */
  openLogEntries(
    bytes: Uint8Array,
    from: number,
    count: number,
    firstSeq: number,
    forms: Float64Array,
    names: Uint8Array,
    threads: number,
    keys: Uint8Array,
    ends: Uint32Array,
    kinds: Uint8Array,
    room: Uint8Array,
    texts: Uint32Array,
    out: Float64Array,
  ): number;
  /** Writes an entry into `bytes` from `at` on. See native/addon_log.cc. */
  spellLogEntry(bytes: Uint8Array, at: number, steps: Uint32Array, texts: Uint8Array, numbers: Float64Array): number;
  /** Seals bodies where they lie; writes to `done` which ones. */
  sealLogBodies(
    bytes: Uint8Array,
    bodies: Uint32Array,
    keys: Uint8Array,
    nonceStart: Uint8Array,
    done: Uint8Array,
  ): number;
  /** Tells the system that it need not keep bytes of an open file in its cache. */
  forgetFileBytes(fd: number, offset: number, bytes: number): number;
  /** Writes the GMAC of each chunk of bytes. */
  tagChunks(key: Uint8Array, bytes: Uint8Array, chunkBytes: number, tags: Uint8Array): number;
  toHalf(x: Float32Array, out: Uint16Array): number;
  fromHalf(bits: Uint16Array, out: Float32Array): number;
  matmulF64(x: Float32Array, rows: number, m: Float32Array, columns: number, y: Float32Array): number;
  describe(): { isa: number; available: number[]; compiler: string; abi: string };
  setIsa(isa: number): number;
}

const BUILD_HINT =
  'in a checkout run `npm run build:native` (needs python3, make and g++); in an installed package, install it again';
const NO_YARDSTICKS = 'the binary for this machine computes no formats to compare with';
const BUILD_HINTS: Readonly<Record<BindingName, string>> = {
  built: BUILD_HINT,
  debug: 'run `npm run build:debug`',
  thread: 'run `npm run build:debug -- --thread`',
  prebuilt:
    'in a checkout run `npm run prebuilds`; without a binary for this machine, which a package of its own brings, --binding wasm works',
  wasm: 'in a checkout run `npm run build:wasm` (needs clang, lld and the WebAssembly libraries)',
};

interface Loaded {
  readonly binary: Binary;
  readonly name: BindingName;
  readonly file: string;
  /** Why a binding that is preferred to this one was not used. */
  readonly passedOver?: string;
}

let loaded: Loaded | undefined;

/** The folder of the package, found from `native/load.ts` as well as from `dist/native/load.js`. */
export function packageRoot(): string {
  const here = dirname(fileURLToPath(import.meta.url));
  for (let folder = dirname(here); ; folder = dirname(folder)) {
    if (existsSync(join(folder, 'package.json'))) return folder;
    if (folder === dirname(folder)) return dirname(here);
  }
}

/** The version of the package, as in its package.json. */
export function packageVersion(): string {
  const { version } = JSON.parse(readFileSync(join(packageRoot(), 'package.json'), 'utf8')) as { version: string };
  return version;
}

/** Loads a file and checks that it was built for this version. */
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

/** The file of a binding, or null if there is none for this machine. */
function fileOf(name: BindingName): string | null {
  const root = packageRoot();
  const native = join(root, 'native');
  const first = (...files: string[]): string | null => files.find((file) => existsSync(file)) ?? null;
  switch (name) {
    case 'built':
      return first(join(native, 'build', releaseFolder(), 'palimpsest.node'));
    case 'debug':
      return first(join(native, 'build', 'Debug', 'palimpsest.node'));
    case 'thread':
      return first(join(native, 'build', 'Thread', 'palimpsest.node'));
    case 'wasm':
      return (
        yardstickModule() ??
        first(join(native, 'build', 'wasm', 'palimpsest.wasm'), join(root, 'prebuilds', 'wasm', 'palimpsest.wasm'))
      );
    case 'prebuilt':
      return servesYardsticks() ? null : prebuiltFile(root);
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
  // If the checkout has a build, that one is used. If it is stale or broken, that is an error and no reason to use
  // another.
  if (fileOf('built') !== null) return openOne('built');
  let passedOver: string | undefined;
  for (const name of ['prebuilt', 'wasm'] as const) {
    if (fileOf(name) === null) {
      if (name === 'prebuilt') passedOver = servesYardsticks() ? NO_YARDSTICKS : whyNoPrebuilt(packageVersion());
      continue;
    }
    try {
      const found = openOne(name);
      return passedOver === undefined ? found : { ...found, passedOver };
    } catch (error) {
      // This machine cannot load the binary, for example because its C library is too old.
      passedOver = (error as Error).message;
    }
  }
  throw new KvError('missing-dependency', passedOver ?? 'the native cache is not built', {
    values: { platform: process.platform, arch: process.arch, looked: join(packageRoot(), 'native') },
    hint: BUILD_HINT,
  });
}

/**
 * Loads the binary once; the first call decides which one. Without a name, the best one that works on this machine is
 * used. Throws KvError 'missing-dependency' if there is none or it is stale, 'bad-argument' for an unknown name, and
 * 'unsupported' if another binding has already been loaded.
 */
export function loadBinary(name?: BindingName): Binary {
  if (name !== undefined && !BINDING_NAMES.includes(name)) {
    throw new KvError('bad-argument', `unknown binding '${show(name)}'`, {
      values: { given: show(name), known: BINDING_NAMES.join(', ') },
    });
  }
  loaded ??= name === undefined ? openBest() : openOne(name);
  keepYardsticks();
  if (name !== undefined && loaded.name !== name) {
    throw new KvError('unsupported', `this thread has loaded the ${loaded.name} binding and keeps it`, {
      values: { asked: name, loaded: loaded.name },
      hint: 'choose the binding before the first call',
    });
  }
  return loaded.binary;
}

/**
 * The binary that is loaded, or the best one, without settling that this thread keeps it. → null where loadBinary would
 * refuse
 */
export function quietBinary(): Binary | null {
  try {
    return (loaded ?? openBest()).binary;
  } catch (error) {
    if (error instanceof KvError) return null;
    throw error;
  }
}

/** Chooses a binding, before the first call that needs one. Throws as loadBinary does. */
export function useBinding(name: BindingName): void {
  loadBinary(name);
}

/** The code of the error that a status stands for, or null for success. */
export function codeOf(status: number): KvErrorCode | null {
  assert(STATUSES[status] !== undefined, `unknown native status ${status}`);
  return STATUSES[status].code;
}

/** Throws the error of a status other than 0. `doing` completes the sentence "cannot …". */
export function check(status: number, doing: string, values: Readonly<Record<string, unknown>> = {}): void {
  if (status !== 0) throw errorOf(status, doing, values);
}

/** The error of a status other than 0. */
export function errorOf(status: number, doing: string, values: Readonly<Record<string, unknown>>): KvError {
  const code = codeOf(status);
  assert(code !== null, `status ${status} is not an error`);
  if (status === STATUS_NO_MEMORY) {
    return new KvError(code, `cannot ${doing}: the system has no memory left`, { values, hint: 'lower the budget' });
  }
  return new KvError(code, `cannot ${doing}`, { values });
}

/** Says which binary is loaded, which instruction sets it has and which one is in use. */
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
 * Sets the instruction set of every cache that this thread opens from now on; open caches keep theirs.
 * Throws 'bad-argument' for an unknown name, and 'unsupported' if the build or the CPU does not have it.
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
