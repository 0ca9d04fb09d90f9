/** A kernel pack went from one state to another: an arrow of its machine (policy/pack-machine.ts), and what it had. */
import { PACK_EVENTS, PACK_STATES } from '../../policy/index.ts';
import type { BodyOf, Fields } from './field.ts';
import { list, nullable, one, real, record, text, whole } from './type.ts';

export const PACK = {
  /** The name and version that it has by its manifest; empty while nothing of that is believed. */
  name: { type: text },
  version: { type: text },
  /** SHA-256 of the module as it was signed, and of the bytes of its envelope. */
  digest: { type: text },
  envelope: { type: text },
  from: { type: one(PACK_STATES, { expected: 'a state of a pack', alias: ['policy', 'PackState'] }) },
  event: { type: one(PACK_EVENTS, { expected: 'an event of a pack', alias: ['policy', 'PackEvent'] }) },
  to: { type: one(PACK_STATES, { expected: 'a state of a pack', alias: ['policy', 'PackState'] }) },
  /** Ids of the keys whose signatures counted. */
  keyIds: { type: list(text) },
  trustVersion: { type: whole },
  /** The generation of the store that has it so; null: none has. */
  generation: { type: nullable(whole) },
  /** Why, where somebody was refused or distrusted; else empty. */
  because: { type: text },
  /** What was measured on the way: bytes, fuel, errors. */
  numbers: { type: record(text, real) },
} as const satisfies Fields;

export type PackBody = BodyOf<typeof PACK>;
