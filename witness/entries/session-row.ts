/**
 * A session as a flat row. Its values come from several entries (`SessionTotals` in query.ts), so the row has fields of
 * its own.
 */
import type { Fields } from './field.ts';
import { count, nullable, one, real, text, whole } from './type.ts';

export const SESSION = {
  session: { type: text, row: 'session', means: 'Id of the session.' },
  seq: { type: whole, row: 'seq', means: "seq of the 'open' entry." },
  openedMs: { type: whole, row: 'openedMs', means: 'When it began, milliseconds since the epoch.' },
  closedMs: { type: nullable(whole), row: 'closedMs', means: 'null: still running, or killed.' },
  model: { type: text, row: 'model', means: 'Name of the model.' },
  modelDigest: { type: text, row: 'modelDigest', means: "SHA-256 of the model's file." },
  policy: { type: text, row: 'policy', means: 'Name of the policy.' },
  tokens: { type: whole, row: 'tokens', means: "Of the 'close' entry; without one, of the last situation seen." },
  kvBytes: { type: whole, row: 'kvBytes', means: 'Bytes of its cache at that point.' },
  kvBytesF16: {
    type: nullable(whole),
    row: 'kvBytesF16',
    means: "What the same tokens take in f16; null without a 'close' entry.",
  },
  meanKld: {
    type: nullable(real),
    row: 'meanKld',
    unit: 'nats',
    means: 'Divergence from the exact cache, when it was measured.',
  },
  decisions: { type: count, row: 'decisions', means: 'Moves planned, refused ones included.' },
  refused: { type: count, row: 'refused', means: 'Moves refused after their trial.' },
  end: {
    type: one(['open', 'done', 'aborted', 'error']),
    row: 'end',
    column: 'ending',
    means: "How it ended; 'open': it still runs, or was killed.",
  },
} as const satisfies Fields;
