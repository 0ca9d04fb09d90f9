/** Engines for what `crowd` measures, and the texts of their sessions, which begin differently. */
import { z } from 'zod';
import { ownText } from '../../engine/evaluate/own-text.ts';
import { createEngine, type Engine, type EngineOptions } from '../../engine/index.ts';

/** Where a row was measured. */
export const place = z.strictObject({ model: z.string(), isa: z.string(), threads: z.int().positive() });
export type Place = z.infer<typeof place>;
export type Loading = Pick<EngineOptions, 'model' | 'cacheDir'> & { readonly threads: number };

export const placeOf = ({ info: { name, isa, threads } }: Engine): Place => ({ model: name, isa, threads });

/** Each session reads its own beginning, as sessions of strangers do. */
export const open = ({ model, cacheDir, threads }: Loading, options: Partial<EngineOptions>): Promise<Engine> =>
  createEngine({ model, cacheDir: cacheDir!, threads, stateDir: null, prefixCaching: false, ...options });

/** Tokens of a session's own text, and as many again for what follows. */
export async function textsOf(engine: Engine, count: number, tokens: number): Promise<number[][]> {
  const all = await engine.tokenize(ownText(12 * (tokens + 37 * count)));
  return Array.from({ length: count }, (_, at) => all.slice(37 * at, 37 * at + tokens));
}

/** No answer ends before its time. */
export const endless = ({ info: { config } }: Engine, maxTokens: number) => ({
  maxTokens,
  logitBias: Object.fromEntries(config.eosIds.map((id) => [id, Number.NEGATIVE_INFINITY])),
});

export const sum = (values: readonly number[]): number => values.reduce((total, one) => total + one, 0);
