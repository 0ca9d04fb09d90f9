/** Log probabilities of generated tokens as a table. */
import { type Column, printable, table } from '../../native/index.ts';
import type { GeneratedToken, TokenLogprob } from '../sampling/logprobs.ts';

const quoted = (text: string): string => printable(JSON.stringify(text));

const COLUMNS: readonly Column<GeneratedToken>[] = [
  { title: 'token', value: ({ text }) => quoted(text) },
  { title: 'id', value: ({ id }) => String(id) },
  { title: 'log probability', value: ({ logprob }) => logprob.toFixed(3) },
  { title: 'most likely', value: ({ top }) => top.map(likely).join(', ') },
];

const likely = ({ text, logprob }: TokenLogprob): string => `${quoted(text)} ${logprob.toFixed(3)}`;

export const logprobTable = (tokens: readonly GeneratedToken[], columns: number): string =>
  table(COLUMNS, tokens, columns);
