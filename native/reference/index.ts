/** The readable reference of every coded format: the specification that the kernels are tested against. */
import type { FormatName } from '../format.ts';
import type { ReferenceCodec } from './codec.ts';
import { q8 } from './q8.ts';
import { rot2, rot3, rot4 } from './rot.ts';

export { type EncodedHead, type ReferenceCodec, tileOffset, toTile } from './codec.ts';
export { fromHalf, toHalf } from './half.ts';
export {
  decodeLatent,
  type EncodedLatent,
  encodeLatent,
  latentLevel,
  latentPage,
  latentRows,
  latentWorth,
  rotateLatent,
} from './latent.ts';
export { gaussianError, gaussianLevels } from './lloydmax.ts';
export { demote, planes, type RotName, rotScale, scaleCode } from './rot.ts';
export { paley, rotate, rotationSigns } from './rotation.ts';

/** Coded formats, best first. f16 has no codes: half.ts is all there is to it. */
export const CODECS: Readonly<Record<Exclude<FormatName, 'f16'>, ReferenceCodec>> = Object.freeze({
  q8,
  rot4,
  rot3,
  rot2,
});
