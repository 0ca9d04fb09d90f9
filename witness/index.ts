export { activationText } from './activation-text.ts';
export type { AnchorReport } from './against.ts';
export * from './anchor-file.ts';
export type { AskedFor } from './asked-for.ts';
export { givenIn } from './asking-text.ts';
export * from './audit.ts';
export { RULES } from './because-text.ts';
export { checkWritten } from './body.ts';
export {
  type AnchorOptions,
  type Checkpoint,
  type CheckpointBody,
  originOf,
  parseCheckpoint,
  readCheckpoints,
  signCheckpoint,
} from './checkpoint.ts';
export {
  type DecisionWithout,
  decideWithout,
  OTHERWISE,
  type OtherMove,
  type Otherwise,
  WITHOUT,
  type Without,
  type WithoutReport,
} from './counterfactual.ts';
export { csvText } from './csv.ts';
export type { RowField } from './entries/field.ts';
export { DECISION_ROW, SESSION_ROW } from './entries/index.ts';
export type { NoteBody } from './entries/log-notes.ts';
export type { ReceiptClaims } from './entries/receipt.ts';
export { decisionRow } from './entries/rows.gen.ts';
export { coreOf, mayBeNull, type Type } from './entries/type.ts';
export * from './erase.ts';
export * from './explain.ts';
export type * from './explanation.ts';
export * from './files.ts';
export * from './filter.ts';
export { growthText } from './growth-text.ts';
export * from './id.ts';
export {
  checkMasterKey,
  checkReadable,
  erasedSessions,
  isKeyName,
  isWrapped,
  keysDir,
  masterKeysInUse,
  readMasterKey,
  type Unopened,
  type Unreadable,
  unopenedError,
  unreadable,
  useMasterKeys,
} from './keys.ts';
export { type Beginning, beginningIn, type Line, lineageOf } from './lineage.ts';
export { isLocked, lockWriter, type WriterLock } from './lock.ts';
export * from './log.ts';
export { noteLeftOut, withRules } from './mask.ts';
export { newestOf } from './newest.ts';
export { headerKeyId, makeCheckpointKeys, readVerifier, type VerifierKey, verifierOf, verifierText } from './note.ts';
export { heldIn } from './page-forms.ts';
export { askingIn, isPool, newPoolId, parkingIn } from './pool-series.ts';
export * from './proof.ts';
export { proposalText } from './proposal-text.ts';
export * from './query.ts';
export * from './read.ts';
export * from './receipt.ts';
export { RemovalAnswers } from './removals.ts';
export * from './replay.ts';
export { sessionMap, sessionReport } from './report/index.ts';
export * from './retention.ts';
export * from './rewrap.ts';
export { entryId, parseEntryId, seriesDir, seriesOf } from './series.ts';
export * from './sign-log.ts';
export * from './sql/index.ts';
export { EVENT_FIELDS, type TimelineEvent, timeline, timelineText } from './timeline.ts';
export * from './types.ts';
export * from './verify.ts';
export * from './verify-receipt.ts';
export * from './why-not.ts';
export { meaningOfWords, type WordsMeaning } from './words.ts';
