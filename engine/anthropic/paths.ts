/** The paths of Anthropic's API. */
import type { Hono } from 'hono';
import type { AnswersApi, Env } from '../openai/api.ts';
import type { AnsweredPath } from '../openai/paths.ts';
import { countTokens, MessageAnswer } from './message.ts';
import { COUNT_REQUEST, MESSAGES_REQUEST } from './request.ts';

export const ANTHROPIC: readonly AnsweredPath[] = [
  {
    path: '/v1/messages',
    does: "Answers of the model as messages of Anthropic's API.",
    body: MESSAGES_REQUEST,
    streams: true,
  },
  { path: '/v1/messages/count_tokens', does: 'Tokens that a conversation takes.', body: COUNT_REQUEST },
];

/** Puts the paths on a server. */
export function serveAnthropic(api: AnswersApi, app: Hono<Env>): void {
  api.post(app, '/v1/messages', (body, asker) => MessageAnswer.begin(api.serviceFor(body), body.value, asker));
  api.ask(app, '/v1/messages/count_tokens', (body) => countTokens(api.serviceFor(body), body.value));
}
