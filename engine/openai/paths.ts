/** The paths of the API as a table. */
import type { z } from 'zod';
import {
  CHAT_REQUEST,
  COMPLETION_REQUEST,
  DETOKENIZE_REQUEST,
  EMBEDDING_REQUEST,
  RESPONSE_REQUEST,
  SESSION_REQUEST,
  TEMPLATE_REQUEST,
  TOKENIZE_REQUEST,
} from './request.ts';

export interface AnsweredPath {
  readonly path: string;
  readonly does: string;
  /** What it is asked with, by POST. Left out: nothing, by GET. */
  readonly body?: z.ZodType;
  /** True if it may also be told as server-sent events. */
  readonly streams?: true;
  /** True if what it tells can be removed, by DELETE. */
  readonly removes?: true;
  /** True if it is told to whoever reaches the port. */
  readonly open?: true;
}

export const OPENAI: readonly AnsweredPath[] = [
  {
    path: '/v1/chat/completions',
    does: 'Answers of the model in a conversation.',
    body: CHAT_REQUEST,
    streams: true,
  },
  { path: '/v1/completions', does: 'Texts that go on with a prompt.', body: COMPLETION_REQUEST, streams: true },
  {
    path: '/v1/responses',
    does: 'Answers of the model, which others may go on behind by their id.',
    body: RESPONSE_REQUEST,
    streams: true,
  },
  { path: '/v1/responses/{id}', does: 'A response that was stored.', removes: true },
  {
    path: '/v1/embeddings',
    does: 'Texts as vectors of length 1: means of the states of a language model, which is no trained embedder.',
    body: EMBEDDING_REQUEST,
  },
  { path: '/v1/sessions/held', does: 'Conversations that the server holds: of whoever asks, or of all.' },
  ...['park', 'resume', 'fork', 'delete'].map((what) => ({
    path: `/v1/sessions/{session}/${what}`,
    does: `What it says with a conversation that is held: ${what}.`,
    body: SESSION_REQUEST,
  })),
  { path: '/v1/models', does: 'The models that are served.' },
  { path: '/v1/models/{model}', does: 'One of them by its name.' },
  { path: '/tokenize', does: 'Token ids of a text.', body: TOKENIZE_REQUEST },
  { path: '/detokenize', does: 'The text of token ids.', body: DETOKENIZE_REQUEST },
  { path: '/apply-template', does: 'The prompt that a conversation becomes.', body: TEMPLATE_REQUEST },
  {
    path: '/health',
    does: 'That the server is there and its model loaded: ok, degraded where its store fails, or 503 while it drains.',
    open: true,
  },
];
