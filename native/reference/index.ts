/** The readable reference of every format: the specification that the kernels are tested against. */

export { CODECS } from '../format.ts';
export { demote, planes, type RotHead, type RotName } from '../formats/rot/rot.ts';
export { type EncodedHead, type Head, type ReferenceCodec, tileOffset, toTile } from './codec.ts';
export { roundHalfEven } from './float32.ts';
export { fromHalf, halfAbove, halfBelow, toHalf } from './half.ts';
export {
  decodeLatent,
  demoteLatent,
  type EncodedLatent,
  encodeLatent,
  latentLevel,
  latentPage,
  latentRows,
  latentWorth,
  rotateLatent,
} from './latent.ts';
export { meanUnit } from './rotated.ts';
export { paley, rotate, rotationSigns } from './rotation.ts';
export { rotScale, scaleCode } from './row-scale.ts';
