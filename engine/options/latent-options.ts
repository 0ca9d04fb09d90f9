/** What a cache of one's own is told of its layers so that it can keep their inputs. */
import {
  above,
  LATENT_NAMES,
  type LatentLayerWeights,
  type LatentName,
  oneName,
  type RotaryTable,
  type Rows,
  seenLater,
} from '../../native/index.ts';
import type { LatentKeep } from './types.ts';

/** How the keys and values of one layer are computed from x. Legend: n KV heads, d head size, m width. */
export interface LatentProjection extends Omit<LatentLayerWeights, 'width'> {
  /** RMS norm of x before it meets wk and wv: gains [m]. Left out: x is taken as it comes. */
  readonly norm?: { readonly gains: Float32Array; readonly epsilon: number };
}

/** What openCache needs to keep layer inputs and to make keys and values of them again. */
export interface LatentOptions {
  /**
   * `xq8`: 8 bits a channel, keys and values come back to about half a percent; `xq4`: 4 bits, to about a tenth; `xq3`:
   * 3 bits.
   */
  readonly format: LatentName;
  /** Default 'move' with a policy that makes pages latents (`price`), else 'always'. */
  readonly keep?: LatentKeep;
  /**
   * Operations that the rest of the model takes for a token, two for each weight. Default: those of 12 weights a layer
   * and squared channel of x.
   */
  readonly denseOperations?: number;
  /** Channels of x: a multiple of 16 from 64 to 16384. */
  readonly width: number;
  /**
   * One entry per layer: wk and wv are [n·d, width], as linear layers keep them, kBias and vBias [n·d], the gains of
   * kNorm [d].
   */
  readonly layers: readonly LatentProjection[];
  /**
   * The rotary embedding of keys, for every position that will be appended: cos and sin [positions, rotaryDim / 2].
   * Left out: keys have none.
   */
  readonly rotary?: RotaryTable;
}

/** What a session says of the latents that it keeps. */
export const KEPT_LATENTS = {
  format: {
    rule: seenLater<LatentName>(LATENT_NAMES.map((name) => `'${name}'`).join(', ')),
    help: 'the latent that is kept of a page',
  },
  keep: {
    rule: oneName('move', 'always'),
    refusal: "latents.keep is 'move' or 'always'",
    help: 'until the page moves, or always (default: until it moves, where the policy makes pages latents)',
  },
} as const satisfies Rows<Pick<LatentOptions, 'format' | 'keep'>>;

export const LATENT_OPTIONS = {
  ...KEPT_LATENTS,
  denseOperations: {
    rule: above(0, Number.MAX_VALUE, 'a number above 0'),
    refusal: 'latents.denseOperations must be a number above 0',
    help: 'operations that the rest of the model takes for a token',
  },
  width: { rule: seenLater<number>('a multiple of 16 from 64 to 16384'), help: 'channels of x' },
  layers: {
    rule: seenLater<readonly LatentProjection[]>('a list with wk and wv of each layer'),
    help: 'how keys and values of each layer are computed from x',
  },
  rotary: {
    rule: seenLater<RotaryTable>('cos and sin of every position'),
    help: 'the rotary embedding of keys (default: none)',
  },
} as const satisfies Rows<LatentOptions>;
