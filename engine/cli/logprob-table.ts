/** Log probabilities of generated tokens as a table. */
import { type Column, table } from '../../native/index.ts';
import type { GeneratedToken, TokenLogprob } from '../transformer/sampling/logprobs.ts';

const likely = ({ text, logprob }: TokenLogprob): string => `${JSON.stringify(text)} ${logprob.toFixed(3)}`;

const COLUMNS: readonly Column<GeneratedToken>[] = [
  { title: 'token', align: 'left', value: ({ text }) => JSON.stringify(text), least: 12 },
  { title: 'id', value: ({ id }) => String(id) },
  { title: 'log probability', value: ({ logprob }) => logprob.toFixed(3) },
  { title: 'most likely', align: 'left', value: ({ top }) => top.map(likely).join(', '), least: 20 },
];

export const logprobTable = (tokens: readonly GeneratedToken[], columns: number): string =>
  table(COLUMNS, tokens, columns);
