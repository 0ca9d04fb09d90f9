/**
 * The entries that are written while a model decodes are spelled field by field: the text is that of `canonicalJson`,
 * which sorts and asks for types where this knows them. Kinds that come once in a session go the general way, and so
 * does everything that is read.
 */
import { canonicalJson } from './canonical.ts';
import { SPELLED } from './entries/spelling.gen.ts';
import type { EntryBodies, EntryKind } from './types.ts';

/** Canonical text of a body. Throws what `canonicalJson` throws. */
export function spellBody<K extends EntryKind>(kind: K, body: EntryBodies[K]): string {
  if (kind === 'decision') return SPELLED.decision(body as EntryBodies['decision']);
  if (kind === 'situation') return SPELLED.situation(body as EntryBodies['situation']);
  return canonicalJson(body);
}
