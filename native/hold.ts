/** Pages that are held as latents: the checks of KvCache's methods for them, which types.ts describes. */
import { fail, floats, formatId, integer, record, shapeError, show } from './arguments.ts';
import { KvError } from './error.ts';
import type { FormatName } from './format.ts';
import { checkedWidth, type LatentName, latentId } from './latent.ts';
import { LATENT_NAMES, LATENT_OPERATIONS } from './layout.ts';
import { type CacheHandle, check, codeOf } from './load.ts';
import type { CacheShape, LatentLayerWeights, RotaryTable } from './types.ts';

export const MAX_SCRATCH = 2 ** 30;
export const LATENT_SCRATCH_BYTES = 16 * 2 ** 20;

function array(value: unknown, name: string, length: number, shape: string): Float32Array {
  if (floats(value, name).length !== length) {
    shapeError(`${name} must be ${shape}`, { [name]: (value as Float32Array).length, wanted: length });
  }
  const at = (value as Float32Array).findIndex((x) => !Number.isFinite(x));
  if (at >= 0) {
    throw new KvError('bad-value', `${name} holds ${(value as Float32Array)[at]} at element ${at}`, {
      values: { name, at, value: String((value as Float32Array)[at]) },
      hint: 'weights must be finite',
    });
  }
  return value as Float32Array;
}

export function setLatentScratch(handle: CacheHandle, bytes: number): void {
  check(handle.latent(LATENT_OPERATIONS.scratch, bytes), 'set the scratch of latents');
}

export function setLatentWeights(
  handle: CacheHandle,
  shape: CacheShape,
  layer: number,
  weights: LatentLayerWeights,
): void {
  record(weights, 'weights');
  const { width, wk, wv, kBias, vBias, kNorm } = weights;
  checkedWidth(width);
  const row = shape.kvHeads * shape.headDim;
  array(wk, 'wk', row * width, '[n·d, width]');
  array(wv, 'wv', row * width, '[n·d, width]');
  if (kBias !== undefined) array(kBias, 'kBias', row, '[n·d]');
  if (vBias !== undefined) array(vBias, 'vBias', row, '[n·d]');
  let epsilon = 0;
  if (kNorm !== undefined) {
    record(kNorm, 'kNorm');
    array(kNorm.gains, 'kNorm.gains', shape.headDim, '[d]');
    epsilon = kNorm.epsilon;
    if (typeof epsilon !== 'number' || !(epsilon >= 0 && epsilon < 1))
      fail('kNorm.epsilon must be a number from 0 to 1', { epsilon: show(epsilon) });
  }
  refuseHeld(
    handle.latent(LATENT_OPERATIONS.weights, layer, width, wk, wv, kBias, vBias, kNorm?.gains, epsilon),
    `set the latent weights of layer ${layer}`,
    { layer },
  );
}

export function setRotary(handle: CacheHandle, shape: CacheShape, table: RotaryTable): void {
  record(table, 'table');
  const { cos, sin, rotaryDim, interleaved } = table;
  integer(rotaryDim, 'rotaryDim', 2, shape.headDim);
  if (rotaryDim % 2 !== 0) fail('rotaryDim must be even', { rotaryDim });
  if (typeof interleaved !== 'boolean') fail('interleaved must be true or false', { interleaved: show(interleaved) });
  floats(cos, 'cos');
  if (cos.length === 0 || cos.length % (rotaryDim / 2) !== 0) {
    shapeError('cos must be [positions, rotaryDim / 2]', { cos: cos.length, rotaryDim });
  }
  array(cos, 'cos', cos.length, '[positions, rotaryDim / 2]');
  array(sin, 'sin', cos.length, '[positions, rotaryDim / 2]');
  refuseHeld(handle.latent(LATENT_OPERATIONS.rotary, cos, sin, rotaryDim, interleaved), 'set the rotary embedding', {});
}

function refuseHeld(status: number, doing: string, values: Readonly<Record<string, unknown>>): void {
  try {
    check(status, doing, values);
  } catch (error) {
    if (!(error instanceof KvError) || error.code !== 'unsupported') throw error;
    throw new KvError('unsupported', `cannot ${doing}: pages are held as latents of the old ones`, {
      values,
      hint: 'restore those pages first',
    });
  }
}

export type PageOperation = 'hold' | 'keep' | 'restore' | 'move' | 'drop';
const REFUSED: Readonly<Record<PageOperation, readonly [what: string, hint: string]>> = {
  hold: [
    'cannot have a latent',
    'set the weights of the layer and a rotary table that covers its positions; a page can have only one latent, and gets none while a move of it is under way',
  ],
  keep: ['cannot have a latent', 'as for holdLatent(); toLatent() holds a page as the latent that it has'],
  restore: ['cannot be restored', 'it needs a latent, and no move of it may be under way'],
  move: [
    'cannot be held as this latent',
    'it must have this latent or a better one (see table().latent), and no move of it may be under way',
  ],
  drop: ['has no latent beside its keys and values', 'restore() a page that is held as a latent'],
};

/**
 * The format of an operation as its id, and what else the caller gave: the bytes to hold or keep, or whether the latent
 * stays after restoring.
 */
export function checkedOperation(
  operation: PageOperation,
  format: string | undefined,
  given: unknown,
): [id: number, last: Uint8Array | boolean | undefined] {
  if (operation === 'drop') return [0, undefined];
  if (operation !== 'restore') {
    if (operation !== 'move' && !(given instanceof Uint8Array))
      fail('bytes must be a Uint8Array', { bytes: show(given) });
    return [latentId(format as LatentName), given as Uint8Array | undefined];
  }
  record(given, 'options');
  const { keepLatent } = given as { keepLatent?: unknown };
  if (keepLatent !== undefined && typeof keepLatent !== 'boolean')
    fail('keepLatent must be true or false', { keepLatent: show(keepLatent) });
  return [formatId(format as FormatName), keepLatent];
}

/**
 * Does something with the latent of a page. `format` is the id of a latent, or to restore of a page format, and `last`
 * the bytes to hold or keep, or whether the latent stays after restoring. Returns how many bytes that freed.
 */
export function latentCall(
  handle: CacheHandle,
  operation: PageOperation,
  layer: number,
  page: number,
  format: number,
  out: Float64Array,
  last?: Uint8Array | boolean,
): number {
  const status = handle.latent(LATENT_OPERATIONS[operation], layer, page, format, out, last);
  if (codeOf(status) === 'unsupported') {
    const [what, hint] = REFUSED[operation];
    throw new KvError('unsupported', `page ${page} of layer ${layer} ${what}`, {
      values: { layer, page, latent: LATENT_NAMES[format] },
      hint,
    });
  }
  check(status, `${operation} the latent of page ${page} of layer ${layer}`, { layer, page });
  return out[0]!;
}
