/**
 * Every kind of entry with its fields: the one place that says what a log may hold. What follows from it is listed in
 * `witness/README.md`.
 */
import { CHANGE, type ChangeBody } from './change.ts';
import { CLOSE, type CloseBody } from './close.ts';
import { DECISION, type DecisionBody } from './decision.ts';
import { EVIDENCE, type EvidenceBody } from './evidence.ts';
import { bodyType, ENVELOPE, type Fields, type RowField, rowOf } from './field.ts';
import {
  DONE,
  type DoneBody,
  NOTE,
  RECOVERED,
  RETENTION,
  type RecoveredBody,
  type RetentionBody,
} from './log-notes.ts';
import { OPEN, type OpenBody } from './open.ts';
import { PACK, type PackBody } from './pack.ts';
import { SESSION } from './session-row.ts';
import { SITUATION, type SituationBody } from './situation.ts';
import type { Type } from './type.ts';

/**
 * Whose an entry is, and so who may see its body. Of a session: sealed, for whoever has the key of that session, and
 * rules may leave it out. Done to a session, or of the log: for everybody who can read the folder, and always written.
 */
export type Owner = 'session' | 'done to a session' | 'log';

export interface Kind<Body = unknown> {
  readonly fields: Fields;
  readonly type: Type<Body>;
  readonly owner: Owner;
}

const kind = <Body>(fields: Fields, owner: Owner = 'session'): Kind<Body> => ({
  fields,
  type: bodyType(fields) as Type<Body>,
  owner,
});

/** In the order in which the binary counts them. */
export const ENTRIES = {
  open: kind<OpenBody>(OPEN),
  evidence: kind<EvidenceBody>(EVIDENCE),
  situation: kind<SituationBody>(SITUATION),
  decision: kind<DecisionBody>(DECISION),
  change: kind<ChangeBody>(CHANGE),
  close: kind<CloseBody>(CLOSE),
  recovered: kind<RecoveredBody>(RECOVERED, 'log'),
  retention: kind<RetentionBody>(RETENTION, 'log'),
  erase: kind<DoneBody>(DONE, 'done to a session'),
  hold: kind<DoneBody>(DONE, 'done to a session'),
  release: kind<DoneBody>(DONE, 'done to a session'),
  note: kind<Readonly<Record<string, unknown>>>(NOTE),
  pack: kind<PackBody>(PACK, 'log'),
} as const;

export const DECISION_ROW: readonly RowField[] = rowOf(ENVELOPE, DECISION);
export const SITUATION_ROW: readonly RowField[] = rowOf(ENVELOPE, SITUATION);
export const SESSION_ROW: readonly RowField[] = rowOf({}, SESSION);

export type {
  ChangeBody,
  CloseBody,
  DecisionBody,
  DoneBody,
  EvidenceBody,
  OpenBody,
  PackBody,
  RecoveredBody,
  RetentionBody,
  SituationBody,
};
