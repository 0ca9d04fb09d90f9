/** At how many bits a number latents of a model would take fewer bytes than codes of its keys and values. */
import {
  brief,
  CODED_HEAD_DIMS,
  LATENT_NAMES,
  type LatentName,
  latentBytes,
  PAGE_TOKENS,
  pageBytes,
} from '../../native/index.ts';
import { codesLike, defaultThresholds, thresholdOf } from '../../policy/index.ts';
import { FORESEEN_LATENT } from '../cache/foreseen.ts';
import { servesLatents } from '../cache/model-latents.ts';
import type { ModelConfig } from '../transformer/types.ts';

export interface LatentBits {
  readonly format: LatentName;
  /** What it takes, in bits for each number of keys and values. */
  readonly bits: number;
  /** Bits from which on codes that err as much take so much more that it pays. */
  readonly paysFrom: number;
  /** Codes that err about as much, and what they take. */
  readonly codes: string;
  readonly codesBits: number;
}

/** Null: latents do not serve the model, or its heads have no codes. */
export function latentBitsOf(config: ModelConfig): readonly LatentBits[] | null {
  const { kvHeads, headDim, hiddenSize } = config;
  if (!servesLatents(config) || !CODED_HEAD_DIMS.includes(headDim)) return null;
  const bitsOf = (bytes: number): number => (8 * bytes) / (2 * PAGE_TOKENS * kvHeads * headDim);
  const share = thresholdOf(defaultThresholds(config.layers), 'latent.share').value;
  return LATENT_NAMES.map((format) => {
    const codes = codesLike(format);
    const bits = bitsOf(latentBytes(format, hiddenSize));
    return {
      format,
      bits,
      paysFrom: bits / share,
      codes,
      codesBits: bitsOf(2 * pageBytes(codes, kvHeads, headDim)),
    };
  });
}

/** Names and values for `fields`. */
export function latentRows(all: readonly LatentBits[] | null): [string, string][] {
  const kept = all?.find(({ format }) => format === FORESEEN_LATENT);
  if (kept === undefined) return [['latents', 'do not serve this model']];
  const { format, bits, paysFrom, codes, codesBits } = kept;
  const pays = codesBits >= paysFrom;
  return [
    [
      'latents',
      `${pays ? 'pay under a budget that codes do not fit into' : 'do not pay'}: ${format} takes ${brief(bits)} bits for each number of keys and values, which pays beside codes of ${brief(paysFrom)} bits or more, and those that err as much (${codes}) take ${brief(codesBits)}`,
    ],
  ];
}
