/** HOW fast? Numbers: pages, formats, attention. The room's only entry. */
export { unlessAborted } from './abort.ts';
export { show } from './arguments.ts';
export { Batch, type BatchMember } from './batch.ts';
export { openKvCache } from './cache.ts';
export * from './dense.ts';
export {
  CHAIN_STATE_BYTES,
  chainEntries,
  type EntryForms,
  encryptBodies,
  type FollowedEntries,
  followEntries,
  KIND_UNOPENED,
  type OpenedBodies,
  openEntries,
  opensBodies,
  type SpellPlan,
  spellEntry,
} from './entries.ts';
export * from './error.ts';
export * from './file.ts';
export { forgetFileBytes, TAG_BYTES, TAG_KEY_BYTES, tagChunks } from './file-cache.ts';
export { fromHalf, joined, matmulF64, rope, toHalf } from './floats.ts';
export * from './format.ts';
export { fieldBytes } from './formats/descriptor.ts';
export { serveYardsticks } from './formats/registry.ts';
export { narrowedScale } from './formats/rot/rot.ts';
export { gathered } from './gathered.ts';
export * from './geometry.ts';
export * from './json.ts';
export { keptRowsBytes } from './kept-rows.ts';
export { checkKeys, given, nearestName, unknownName } from './known.ts';
export * from './latent.ts';
export { CHAIN_PEAKS_MAX, ENTRY_PAYLOAD_MAX, KEPT_ROWS_MAX, PAGE_PART_ALIGN, padded, THREADS_MAX } from './layout.ts';
export { nativeInfo, packageRoot, packageVersion, setIsa, useBinding } from './load.ts';
export {
  above,
  allows,
  anyText,
  checkOption,
  checkOptions,
  defaultsOf,
  type Flag,
  fieldOf,
  type Option,
  oneName,
  oneNumber,
  type Rows,
  type Rule,
  real,
  refusalOf,
  seenLater,
  suchThat,
  textLike,
  truth,
  whole,
} from './option.ts';
export { heldBytesMost, openPool } from './pool.ts';
export { PackedPredictor } from './predicted.ts';
export * as reference from './reference/index.ts';
export { encode4 } from './reference/lloydmax.ts';
export { encodeMean } from './reference/origins.ts';
export { ROT_LEVELS } from './reference/tables.gen.ts';
export { type AnswerOf, type Caller, type Handlers, type ParamsOf, ThreadClient, ThreadServer } from './rpc.ts';
export { firstSeqOf, SERIES_ENTRIES, seriesOf } from './series.ts';
export { ATTENTION_OPTIONS, checkShape, openBytes, SHAPE_OPTIONS } from './shape.ts';
export { isEvicted, isForeign, isFreed } from './sliding.ts';
export * from './text.ts';
export { type RunnableModule, runnableModule, startThread } from './thread.ts';
export * from './types.ts';
