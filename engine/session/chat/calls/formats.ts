/** The ways of writing tool calls that are understood, and which of them a chat template has. */
import type { CallFormat } from './call.ts';
import { gemma } from './gemma.ts';
import { hermes } from './hermes.ts';
import { llama } from './llama.ts';
import { mistral } from './mistral.ts';
import { phi } from './phi.ts';

/** In the order in which they are asked: of two whose marks a template has, the more particular one comes first. */
export const CALL_FORMATS: readonly CallFormat[] = [gemma, mistral, phi, hermes, llama];

/** null: the template has the marks of none of them, so calls are text. */
export const callFormatOf = (template: string): CallFormat | null =>
  CALL_FORMATS.find((format) => format.isOf(template)) ?? null;
