/** The paths of all APIs that are answered: from them requests are let in and the OpenAPI document is made. */
import { ANTHROPIC } from '../anthropic/paths.ts';
import { OLLAMA } from '../ollama/paths.ts';
import { type AnsweredPath, OPENAI } from '../openai/paths.ts';

export const ANSWERED: readonly AnsweredPath[] = [...OPENAI, ...ANTHROPIC, ...OLLAMA];

/** How a path is asked; null: it is none of these. */
export const answeredPath = (path: string): AnsweredPath | null =>
  ANSWERED.find((one) => patternOf(one.path).test(path)) ?? null;

const patternOf = (path: string): RegExp => new RegExp(`^${path.replaceAll('.', '\\.').replace(/\{\w+\}/, '[^/]+')}$`);
