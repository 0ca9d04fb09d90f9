/**
 * How the binary counts types and the steps of plans; `scripts/generate-entries.ts` writes both into
 * `native/log/entries.gen.h`.
 */
import type { Type } from './type.ts';

/** What a type may be, as `is` says; whether it may be null or absent stands beside it. */
export const FORM_TYPES = [
  'anything',
  'plain',
  'object',
  'record',
  'list',
  'integer',
  'real',
  'flag',
  'text',
  'one',
] as const satisfies Type['is'][];

/** What a step of a plan writes: text of the plan, what the next number says, or nothing where the body begins. */
export const SPELL_STEPS = ['text', 'number', 'number-or-null', 'flag', 'word', 'body'] as const;
