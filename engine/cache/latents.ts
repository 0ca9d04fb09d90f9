/**
 * What a cache keeps of the inputs of its layers: the rows that keys and values were made of, coded once a page is
 * sealed and put beside its keys and values, which may then go on to lower formats and be made again
 * (PolicyCache.restore).
 */
import {
  type CacheShape,
  checkKeys,
  checkOptions,
  encodeLatent,
  FORMAT_NAMES,
  type FormatName,
  type FormatPair,
  isLatentWidth,
  type KvCache,
  KvError,
  LATENT_NAMES,
  type LatentName,
  latentBytes,
  openRows,
  PAGE_TOKENS,
  pageOf,
  rowsLeft,
  SINK_TOKENS,
  type Side,
  sealedPages,
  show,
} from '../../native/index.ts';
import { type PolicyContext, type ThresholdSet, TIERS, tierOf } from '../../policy/index.ts';
import { LATENT_OPTIONS, type LatentOptions, type LatentProjection } from '../options/latent-options.ts';
import { latentOf } from './forms.ts';
import { askedIn, effective, type Terms, type TermsRequest, windowOf } from './terms.ts';

/**
 * Throws 'bad-argument', 'bad-shape', 'bad-value' or 'unsupported'; what setLatentWeights and setRotary refuse is left
 * to them.
 */
function checkLatents(options: unknown, layers: number): void {
  checkKeys(options as LatentOptions, LATENT_OPTIONS, 'latents');
  checkOptions(options as LatentOptions, LATENT_OPTIONS);
  const { format, width, layers: projections } = options as LatentOptions;
  if (!LATENT_NAMES.includes(format))
    refuse('unsupported', `latents.format is one of ${LATENT_NAMES.join(', ')}`, format);
  if (!isLatentWidth(width))
    refuse(
      'unsupported',
      'latents.width must be a multiple of 16 from 64 to 16384 (pad x and the weights with zeros)',
      width,
    );
  if (!Array.isArray(projections)) refuse('bad-argument', 'latents.layers must be an array', projections);
  if (projections.length !== layers)
    refuse('bad-shape', `latents.layers must have one entry for each of ${layers} layers`, projections.length);
  for (const [layer, projection] of projections.entries()) {
    if (typeof projection !== 'object' || projection === null)
      refuse('bad-argument', `latents.layers[${layer}] must be an object with wk and wv`, projection);
    const { norm } = projection as LatentProjection;
    if (norm === undefined) continue;
    if (!(norm?.gains instanceof Float32Array))
      refuse('bad-argument', `norm.gains of layer ${layer} must be a Float32Array`, norm?.gains);
    if (norm.gains.length !== width)
      refuse('bad-shape', `norm.gains of layer ${layer} must be [width]`, norm.gains.length);
    if (!norm.gains.every(Number.isFinite))
      refuse('bad-value', `norm.gains of layer ${layer} must be finite`, norm.gains);
    if (!(typeof norm.epsilon === 'number' && norm.epsilon >= 0 && norm.epsilon < 1))
      refuse('bad-argument', `norm.epsilon of layer ${layer} must be a number from 0 to 1`, norm.epsilon);
  }
}

/**
 * The kept latent and those below it that a page may become: none lower than the tier of the finer of the lowest
 * formats that were asked for.
 */
export function latentsWithin(format: LatentName, floor: FormatPair | null): readonly LatentName[] {
  const lowest =
    floor === null ? TIERS.length - 1 : Math.min(TIERS.indexOf(tierOf(floor.k)), TIERS.indexOf(tierOf(floor.v)));
  return LATENT_NAMES.slice(LATENT_NAMES.indexOf(format)).filter((name) => TIERS.indexOf(tierOf(name)) <= lowest);
}

/** The context of a session whose pages may become latents; as it is where they may not. */
function withLatents(
  { policy, context, exact }: Terms,
  shape: CacheShape,
  { format, width, keep = 'move', denseOperations }: LatentOptions,
): PolicyContext {
  const names = keep === 'move' && policy.holdsLatents === true && !exact ? latentsWithin(format, context.floor) : [];
  return names.length === 0 ? context : latentContext(context, shape, { width, denseOperations, names, kept: format });
}

/** The context of a session whose pages may become one of these latents. */
export function latentContext(
  context: PolicyContext,
  shape: CacheShape,
  {
    width,
    denseOperations,
    names,
    kept,
  }: {
    readonly width: number;
    readonly denseOperations?: number | undefined;
    readonly names: readonly LatentName[];
    readonly kept: LatentName;
  },
): PolicyContext {
  // Multiplied and added, for each channel of x and each of keys and values.
  const operations = 2 * PAGE_TOKENS * width * 2 * shape.kvHeads * shape.headDim;
  const bytes = Object.fromEntries([kept, ...names].map((name) => [name, latentBytes(name, width)]));
  return {
    ...context,
    pageBytes: { ...context.pageBytes, ...bytes },
    latents: { kept, operations: operations / (denseOperations ?? shape.layers * 2 * 12 * width ** 2) },
  };
}

/**
 * The terms that termsOf finds, for a cache that keeps latents, or none. What they take of the budget, beside pages in
 * the window or beside all, must leave enough for the lowest formats. Throws what termsOf and checkLatents throw.
 */
export function termsWithLatents(
  shape: CacheShape,
  request: TermsRequest,
  thresholds: ThresholdSet,
  latents: LatentOptions | undefined,
): Terms {
  const asked = askedIn(shape, request);
  const terms = effective(asked, windowOf(asked), thresholds);
  if (latents === undefined) return terms;
  checkLatents(latents, shape.layers);
  if (terms.policy.evicts === true)
    throw new KvError(
      'unsupported',
      `policy '${terms.policy.id}' lets pages go, and latents are there to make them again`,
      {
        values: { policy: terms.policy.id, latents: latents.format },
        hint: "leave latents out, or use policy 'price'",
      },
    );
  const { budgetBytes } = terms;
  const moved = withLatents(terms, shape, latents);
  if (budgetBytes === null) return { ...terms, context: moved };
  const { format, width } = latents;
  const { layers } = shape;
  const tokensExpected = terms.tokensExpected ?? 0;
  // One page is sealed before anything can be freed, also where the length is not known. Of pages that move one is in
  // the window.
  const sealed = Math.max(1, sealedPages(tokensExpected));
  const pages = moved.latents === undefined ? sealed : 1;
  const kept = pages * layers * latentBytes(format, width);
  try {
    // The window is the one that fits beside the latents.
    const window = windowOf({ ...asked, budgetBytes: Math.max(1, budgetBytes - kept) });
    return { ...terms, context: withLatents(effective(asked, window, thresholds), shape, latents) };
  } catch (error) {
    if (!(error instanceof KvError) || error.code !== 'budget-too-small') throw error;
    const neededBytes = Number(error.values.neededBytes) + kept;
    throw new KvError(
      'budget-too-small',
      `a KV budget of ${budgetBytes} bytes cannot hold ${tokensExpected} tokens and their latents`,
      {
        values: { ...error.values, budgetBytes, latentBytes: kept, neededBytes },
        hint: `give at least ${neededBytes} bytes, keep xq4, or open the cache without latents`,
      },
    );
  }
}

export const noLatents = (layer: number, page: number): KvError =>
  new KvError('unsupported', 'this cache keeps no latents, and what lower formats lost is not in them', {
    values: { layer, page },
    hint: 'open it with latents, and append with x',
  });

function refuse(
  code: 'bad-argument' | 'bad-shape' | 'bad-value' | 'unsupported',
  message: string,
  given: unknown,
): never {
  throw new KvError(code, message, { values: { given: show(given) } });
}

/** x that has been looked at and is ready to be kept. */
export interface CheckedInputs {
  readonly rows: Float32Array;
}

export class Latents {
  readonly #options: LatentOptions;
  readonly #cache: KvCache;
  /** Rows of the open page of each layer, as wk and wv meet them. */
  readonly #open: readonly Float32Array[];
  /** Layers whose pages never move, and need no latents for it. */
  readonly #skipped: readonly number[];
  /** Restored pages, and the formats (indices of FORMAT_NAMES) in which the policy had left them. */
  #restored: { readonly layer: number; readonly page: number; readonly k: number; readonly v: number }[] = [];

  constructor(options: LatentOptions, cache: KvCache, shape: CacheShape, skipped: readonly number[] = []) {
    this.#options = options;
    this.#cache = cache;
    this.#skipped = skipped;
    this.attach();
    this.#open = Array.from({ length: shape.layers }, () => new Float32Array(PAGE_TOKENS * options.width));
  }

  /** Packs the weights into the cache, which has none yet. Throws what setLatentWeights and setRotary throw. */
  attach(): void {
    const { width, layers, rotary } = this.#options;
    for (const [layer, { norm: _norm, ...weights }] of layers.entries())
      this.#cache.setLatentWeights(layer, { ...weights, width });
    if (rotary !== undefined) this.#cache.setRotary(rotary);
  }

  /** Bytes of rows that wait for their page to be sealed. */
  get scratchBytes(): number {
    return this.#open.length * PAGE_TOKENS * this.#options.width * 4;
  }

  /** Bytes of the latent that a page of a layer gets when it is sealed. */
  get sealedBytes(): number {
    return this.bytesOf(this.#options.format);
  }

  /** Bytes of one latent. */
  bytesOf(format: LatentName): number {
    return latentBytes(format, this.#options.width);
  }

  /** Bytes of the latents kept so far: part of pageBytes. */
  get keptBytes(): number {
    const { width } = this.#options;
    let bytes = 0;
    for (let layer = 0; layer < this.#open.length; layer++) {
      for (const kept of this.#cache.table(layer).latent)
        bytes += kept === 0 ? 0 : latentBytes(LATENT_NAMES[kept - 1]!, width);
    }
    return bytes;
  }

  /**
   * Rows of x [tokens, width] behind `length` tokens as the weights of the layer will meet them. Changes nothing.
   * Throws 'bad-argument' (no x, positions beyond the rotary table), 'bad-shape', 'bad-value' (NaN, ±inf, beyond what a
   * latent holds).
   */
  check(layer: number, x: Float32Array | undefined, tokens: number, length: number): CheckedInputs {
    const { width, rotary } = this.#options;
    if (x === undefined) {
      throw new KvError('bad-argument', 'this cache keeps latents: append needs x, the inputs of the layer', {
        values: { layer, tokens, width },
        hint: 'append(layer, k, v, x) with x [tokens, width], or open the cache without latents',
      });
    }
    if (!(x instanceof Float32Array) || x.length !== tokens * width) {
      throw new KvError('bad-shape', `x must be a Float32Array [${tokens}, ${width}]`, {
        values: { length: x?.length, tokens, width },
      });
    }
    const positions = rotary === undefined ? Number.POSITIVE_INFINITY : rotary.cos.length / (rotary.rotaryDim / 2);
    if (length + tokens > positions) {
      throw new KvError('bad-argument', `the rotary table of the latents ends at position ${positions}`, {
        values: { layer, length, tokens, positions },
        hint: 'give latents.rotary for every position that will be appended',
      });
    }
    const norm = this.#options.layers[layer]?.norm;
    const rows = norm === undefined ? x : normalized(x, tokens, norm.gains, norm.epsilon);
    // A value that rounds beyond the largest half cannot be coded.
    const at = rows.findIndex((value) => !(Math.abs(value) <= 65504));
    if (at >= 0) {
      const [row, column] = [Math.floor(at / width), at % width];
      throw new KvError('bad-value', `x holds ${x[at]} at row ${row}, column ${column}`, {
        values: { layer, row, column, value: String(x[at]) },
        hint: 'layer inputs must be finite and at most 65504 in size; nothing was appended',
      });
    }
    return { rows };
  }

  /** Does what PolicyCache.restore says. → bytes by which the cache grew */
  restore(layer: number, page: number, format: FormatName): number {
    // An unknown layer, page or format is named by the native cache.
    const known = Number.isInteger(layer) && layer >= 0 && layer < this.#open.length;
    const table = known ? this.#cache.table(layer) : null;
    // What was made again of a latent that had taken the place of keys and values moves on as the policy decides.
    if (table !== null && latentOf(table, page)?.isHeld === true) return 0 - this.#cache.restore(layer, page, format);
    const { kFormat, vFormat } = table ?? { kFormat: [], vFormat: [] };
    const rank = FORMAT_NAMES.indexOf(format);
    for (const has of [kFormat[page], vFormat[page]]) {
      if (rank < 0 || has === undefined || has >= rank) continue;
      throw new KvError(
        'unsupported',
        `page ${page} of layer ${layer} has a side in ${FORMAT_NAMES[has]}, which is better than ${format}`,
        { values: { layer, page, has: FORMAT_NAMES[has], format }, hint: `restore it as ${FORMAT_NAMES[has]}` },
      );
    }
    const grown = 0 - this.#cache.restore(layer, page, format);
    const isKnown = this.#restored.some((one) => one.layer === layer && one.page === page);
    if (!isKnown) this.#restored.push({ layer, page, k: kFormat[page]!, v: vFormat[page]! });
    return grown;
  }

  /**
   * Brings restored pages back to the formats that they had before, in the order in which they were restored, until
   * there is room.
   */
  giveBack(hasRoom: () => boolean, change: (layer: number, page: number, work: () => number) => void): void {
    while (this.#restored.length > 0 && !hasRoom()) {
      const { layer, page, ...before } = this.#restored.shift()!;
      const { kFormat, vFormat } = this.#cache.table(layer);
      const now = { k: kFormat[page]!, v: vFormat[page]! };
      // A side that the policy has moved in the meantime is already lower. Values go first, because 2-bit keys beside
      // fine values are useless.
      const lower = (side: Side): number =>
        now[side] < before[side] ? this.#cache.transcode(layer, page, side, FORMAT_NAMES[before[side]]!) : 0;
      change(layer, page, () => lower('v') + lower('k'));
    }
  }

  /**
   * Takes the rows of tokens that have just been appended behind `length` others; pages that they sealed get their
   * latent. Room for it must have been made. → the pages that got one
   */
  add(layer: number, { rows }: CheckedInputs, tokens: number, length: number): readonly number[] {
    const kept: number[] = [];
    const { format, width } = this.#options;
    const open = this.#open[layer]!;
    for (let done = 0; done < tokens; ) {
      const at = PAGE_TOKENS - rowsLeft(length + done);
      // A full page is sealed by the first token behind it.
      if (at === 0 && length + done > 0) {
        const page = pageOf(length + done) - 1;
        if (!this.#skipped.includes(layer)) {
          this.#cache.keepLatent(layer, page, format, encodeLatent(format, open, width, page === 0 ? SINK_TOKENS : 0));
          kept.push(page);
        }
      }
      const count = Math.min(tokens - done, rowsLeft(length + done));
      open.set(rows.subarray(done * width, (done + count) * width), at * width);
      done += count;
    }
    return kept;
  }

  /** A copy of the rows that wait, `length` tokens being in the cache. */
  waiting(length: number): readonly Float32Array[] {
    return this.#open.map((rows) => rows.slice(0, openRows(length) * this.#options.width));
  }

  /** Tokens were taken back to `length`; `open` are the rows that waited then, null where they still do. */
  takeBack(length: number, open: readonly Float32Array[] | null): void {
    this.#restored = this.#restored.filter(({ page }) => page < sealedPages(length));
    for (const [layer, rows] of (open ?? []).entries()) this.#open[layer]!.set(rows);
  }
}

/** Root-mean-square norm of each row of x [tokens, m], times gains [m]. */
export function normalized(x: Float32Array, tokens: number, gains: Float32Array, epsilon: number): Float32Array {
  const width = gains.length;
  const out = new Float32Array(x.length);
  for (let t = 0; t < tokens; t++) {
    let square = 0;
    for (let i = t * width; i < (t + 1) * width; i++) square += x[i]! * x[i]!;
    const factor = 1 / Math.sqrt(square / width + epsilon);
    for (let c = 0; c < width; c++) out[t * width + c] = x[t * width + c]! * factor * gains[c]!;
  }
  return out;
}
