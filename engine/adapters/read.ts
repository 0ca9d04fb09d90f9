/**
 * Reads an adapter for a model: its factors are checked against the model's shapes before anything is allocated, and
 * brought into the form that the model's own weights have, scaled and with rows of q and k in their order.
 */
import { createHash } from 'node:crypto';
import { statSync } from 'node:fs';
import { resolve } from 'node:path';
import { ADAPTER_RANK_MAX, DENSE_SLOTS, type DenseSlot, given, KvError } from '../../native/index.ts';
import { attempt } from '../transformer/bytes.ts';
import { expectedShapes } from '../transformer/config.ts';
import type { Family } from '../transformer/families/family.ts';
import { FAMILIES } from '../transformer/families/index.ts';
import type { StoredTensor } from '../transformer/stored-tensor.ts';
import type { AdapterMatrix, LoadedModel, ModelConfig, WeightSource } from '../transformer/types.ts';
import { type AdapterFile, badAdapter, type Factors, unservedAdapter } from './factors.ts';
import type { Magnified } from './gains.ts';
import { openGgufAdapter } from './gguf-adapter.ts';
import { openPeft } from './peft.ts';
import type { Adapter } from './types.ts';

/** Matrices of a file that are several of ours, whose outputs follow one another. */
const FUSED: Readonly<Record<string, readonly DenseSlot[]>> = { qkv: ['q', 'k', 'v'], gateUp: ['gate', 'up'] };

/**
 * A PEFT folder or a GGUF file. Throws 'not-found', 'bad-file', 'unsupported' naming the field, 'model-mismatch' where
 * it does not fit the model, 'bad-model' for numbers that are not finite, 'io'. kept: where gains of DoRA may be found
 * that were computed before.
 */
export function readAdapter(
  path: string,
  { config, weights }: Pick<LoadedModel, 'config' | 'weights'>,
  kept?: GainsKept,
): Adapter {
  const family = FAMILIES.find(({ name }) => name === config.architecture);
  if (family === undefined)
    throw new KvError('unsupported', `adapters of the family ${config.architecture} are not served`, {
      values: { architecture: config.architecture },
    });
  const file = openFile(resolve(path), family);
  try {
    return adapterOf(file, config, weights, kept);
  } finally {
    file.close();
  }
}

/** Gains that are there, or else what `compute` answers. */
export type GainsKept = (wanted: readonly Magnified[], compute: () => Float32Array[]) => Float32Array[];

function openFile(path: string, family: Family): AdapterFile {
  return attempt(path, () => statSync(path)).isDirectory() ? openPeft(path, family) : openGgufAdapter(path, family);
}

/** What is added to one of our matrices: rows of B from `from` on. */
interface Placed extends Factors {
  readonly layer: number;
  readonly slot: DenseSlot;
  readonly rank: number;
  readonly from: number;
  readonly outputs: number;
}

/** weights: of the model; adapters that are computed from them (DoRA) are refused without. */
export function adapterOf(file: AdapterFile, config: ModelConfig, weights?: WeightSource, kept?: GainsKept): Adapter {
  const shapes = expectedShapes(config);
  const places = [...file.factors]
    .flatMap(([weight, factors]) => placed(file, weight, factors, shapes))
    .sort((a, b) => a.layer - b.layer || DENSE_SLOTS.indexOf(a.slot) - DENSE_SLOTS.indexOf(b.slot));
  if (places.length === 0) throw badAdapter(file.path, 'it adds to no matrix', {});
  const twice = places.find(({ layer, slot }, i) => layer === places[i + 1]?.layer && slot === places[i + 1]?.slot);
  if (twice !== undefined) throw badAdapter(file.path, `${twice.file} is there twice`, { tensor: twice.file });
  checkInvocation(file, config);
  const matrices = places.map((place) => matrixOf(file, place, config));
  return adapterWith(file.format, withGains(file, matrices, weights, kept), file.invocation);
}

/** Matrices with magnitudes get the gains that follow from these and the weights. */
function withGains(
  file: AdapterFile,
  matrices: readonly (AdapterMatrix | Magnified)[],
  weights?: WeightSource,
  kept: GainsKept = (_, compute) => compute(),
): AdapterMatrix[] {
  const wanted = matrices.filter((one): one is Magnified => 'magnitudes' in one);
  if (wanted.length === 0) return matrices as AdapterMatrix[];
  if (weights === undefined) throw unservedAdapter(file.path, 'use_dora without the weights of the model', true);
  const gains = kept(wanted, () =>
    wanted.map(({ matrix, magnitudes }) =>
      gainsOf(matrix, weights.tensor(`${matrix.layer}.${matrix.slot}`).readFloat32(), magnitudes),
    ),
  );
  let at = 0;
  return matrices.map((one) => ('magnitudes' in one ? gained(file, one, gains[at++]!) : one));
}

function gained(file: AdapterFile, { matrix }: Magnified, gains: Float32Array): AdapterMatrix {
  const { layer, slot, rank } = matrix;
  const b = matrix.b.map((value, at) => value * (1 + gains[Math.floor(at / rank)]!));
  if (!b.every(Number.isFinite) || !gains.every(Number.isFinite))
    throw badAdapter(file.path, `${layer}.${slot}: its magnitudes make it infinite`, { layer, slot });
  return { ...matrix, b, gains };
}

function checkInvocation({ path, invocation = [] }: AdapterFile, { vocabSize }: ModelConfig): void {
  const foreign = invocation.find((id) => id >= vocabSize);
  if (foreign !== undefined)
    throw new KvError('model-mismatch', `${path}: its invocation has the token ${foreign}`, {
      values: { path, token: foreign, vocabSize },
      hint: 'it was made for another model',
    });
}

/** added: by layer, and of each in the order of DENSE_SLOTS. invocation: of an activated LoRA. */
export function adapterWith(
  format: Adapter['format'],
  added: readonly AdapterMatrix[],
  invocation?: readonly number[],
): Adapter {
  const ranks = added.map(({ rank }) => rank);
  return {
    digest: digestOf(added, invocation),
    format,
    matrices: added.length,
    slots: DENSE_SLOTS.filter((slot) => added.some((one) => one.slot === slot)),
    ranks: [Math.min(...ranks), Math.max(...ranks)],
    parameters: added.reduce((sum, { a, b, gains }) => sum + a.length + b.length + (gains?.length ?? 0), 0),
    ...given({ invocation }),
    added,
  };
}

/** Which of our matrices a file means, of which there may be several. Nothing of it is read yet. */
function placed(
  file: AdapterFile,
  weight: string,
  factors: Factors,
  shapes: ReadonlyMap<string, readonly number[]>,
): Placed[] {
  const [layer = '', part = '', ...rest] = (file.naming.nameOf(weight) ?? '').split('.');
  const slots = FUSED[part] ?? (DENSE_SLOTS.includes(part as DenseSlot) ? [part as DenseSlot] : []);
  if (slots.length === 0 || rest.length > 0)
    throw unservedAdapter(file.path, 'an adapter of', factors.file.slice(0, 200));
  const [rank = 0, inputs = 0] = factors.a.shape;
  if (rank > ADAPTER_RANK_MAX) throw unservedAdapter(file.path, `the rank of ${factors.file}`, rank);
  const sizes = slots.map((slot) => shapes.get(`${layer}.${slot}`));
  const outputs = sizes.reduce((sum, size) => sum + (size?.[0] ?? Number.NaN), 0);
  if (sizes.some((size) => size?.[1] !== inputs) || factors.b.shape[0] !== outputs)
    throw new KvError(
      'model-mismatch',
      `${file.path}: ${factors.file} is for [${factors.b.shape[0]}, ${inputs}], and the model has ` +
        (sizes.includes(undefined) ? 'no such matrix' : `[${outputs}, ${sizes[0]![1]}]`),
      { values: { path: file.path, tensor: factors.file }, hint: 'it was made for another model' },
    );
  let from = 0;
  return slots.map((slot, at) => {
    const place = { ...factors, layer: Number(layer), slot, rank, from, outputs: sizes[at]![0]! };
    from += place.outputs;
    return place;
  });
}

function matrixOf(file: AdapterFile, place: Placed, config: ModelConfig): AdapterMatrix | Magnified {
  const { layer, slot, rank, from, outputs, scale } = place;
  const turned = (slot === 'q' || slot === 'k') && file.interleaved !== config.ropeInterleaved;
  const rows = (tensor: StoredTensor, width: number): Float32Array => {
    const values = tensor.readFloat32(from, from + outputs);
    return turned ? reordered(file, values, width, config) : values;
  };
  const a = place.a.readFloat32();
  const b = rows(place.b, rank).map((value) => value * scale);
  if (!b.every(Number.isFinite))
    throw badAdapter(file.path, `${place.file}: its scale ${scale} makes it infinite`, { scale });
  const plain = { layer, slot, rank, a, b };
  if (place.gains !== undefined) return { ...plain, gains: rows(place.gains, 1) };
  if (place.magnitudes === undefined) return plain;
  return { matrix: plain, magnitudes: rows(place.magnitudes, 1) };
}

/**
 * What DoRA multiplies each output by, less 1: the magnitude over the length of the row of w + b·a, as PEFT computes it
 * (Liu et al. 2024, arXiv 2402.09353, section 4). Summed in float64.
 */
function gainsOf({ rank, a, b }: Pick<AdapterMatrix, 'rank' | 'a' | 'b'>, w: Float32Array, magnitudes: Float32Array) {
  const inputs = a.length / rank;
  const row = new Float64Array(inputs);
  return magnitudes.map((magnitude, o) => {
    for (let i = 0; i < inputs; i++) row[i] = w[o * inputs + i]!;
    for (let r = 0; r < rank; r++) {
      const factor = b[o * rank + r]!;
      for (let i = 0, at = r * inputs; i < inputs; i++) row[i]! += factor * a[at + i]!;
    }
    let squares = 0;
    for (let i = 0; i < inputs; i++) squares += row[i]! * row[i]!;
    return magnitude / Math.sqrt(squares) - 1;
  });
}

/**
 * Rows, of B or of what has one number for each, in the order of rotary pairs (2i, 2i + 1) instead of (i, i + d/2), or
 * the other way round.
 */
function reordered(
  file: AdapterFile,
  b: Float32Array,
  rank: number,
  { headDim, rotaryDim, ropeInterleaved }: ModelConfig,
): Float32Array {
  if (rotaryDim !== headDim) throw unservedAdapter(file.path, 'another order of partly rotated heads', rotaryDim);
  const half = headDim / 2;
  const out = new Float32Array(b.length);
  for (let row = 0; row < b.length / rank; row++) {
    const [head, at] = [row - (row % headDim), row % headDim];
    const place = ropeInterleaved ? 2 * (at % half) + Math.floor(at / half) : (at % 2) * half + (at >> 1);
    out.set(b.subarray(row * rank, (row + 1) * rank), (head + place) * rank);
  }
  return out;
}

const NO_GAINS = new Float32Array(0);

function digestOf(added: readonly AdapterMatrix[], invocation?: readonly number[]): string {
  const hash = createHash('sha256');
  if (invocation !== undefined) hash.update(`${JSON.stringify({ invocation })}\n`);
  for (const { layer, slot, rank, a, b, gains = NO_GAINS } of added) {
    hash.update(
      `${JSON.stringify([layer, slot, rank, a.length, b.length, ...(gains.length > 0 ? [gains.length] : [])])}\n`,
    );
    for (const { buffer, byteOffset, byteLength } of [a, b, gains])
      hash.update(new Uint8Array(buffer, byteOffset, byteLength));
  }
  return hash.digest('hex');
}
