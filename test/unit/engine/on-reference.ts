/** The engine on the reference model, and what its tests ask it again and again. */

import { join } from 'node:path';
import { afterAll, beforeAll } from 'vitest';
import { createEngine, type Engine, type EngineSession, type KvErrorCode } from '../../../engine/index.ts';
import type { Predictor } from '../../../engine/session/park/predictor.ts';
import { findPredictor } from '../../../engine/session/park/predictors.ts';
import { logDir } from '../../../engine/state/folder.ts';
import { Runtime } from '../../../engine/transformer/runtime/runtime.ts';
import { type Entry, type EntryKind, readLog } from '../../../witness/index.ts';
import { refused } from '../../refusal.ts';

export const MODEL = join(import.meta.dirname, '..', '..', '..', 'models', 'reference');
export const PROMPT_TOKENS = 1400;

export const openEngine = (stateDir: string | null): Promise<Engine> =>
  createEngine({ model: MODEL, threads: 1, stateDir });

/** Opens an engine with a state folder of its own before the tests of a file, and closes it after them. */
export function withEngine(folder: () => string, use: (engine: Engine, state: string) => void): void {
  let engine: Engine | undefined;
  beforeAll(async () => {
    const state = join(folder(), 'state');
    engine = await openEngine(state);
    use(engine, state);
  });
  afterAll(() => engine?.close());
}

/** The same of the model in this thread, and of what predicts its pages. */
export function withPredictor(use: (runtime: Runtime, predictor: Predictor) => void): void {
  const opened: { close(): unknown }[] = [];
  beforeAll(async () => {
    const runtime = await Runtime.open({ model: MODEL, threads: 1 });
    const predictor = findPredictor(runtime.model.digest, null)!;
    opened.push(predictor, runtime);
    use(runtime, predictor);
  });
  afterAll(async () => {
    for (const one of opened) await one.close();
  });
}

/** Token ids that look like nothing in particular; the same for the same seed. */
export function ids(count: number, seed = 1): number[] {
  let word = seed;
  return Array.from({ length: count }, () => {
    word = (Math.imul(word, 1664525) + 1013904223) >>> 0;
    return 10 + (word % 4000);
  });
}

export const codeOf = async (promise: Promise<unknown>, what = ''): Promise<KvErrorCode> =>
  (await refused(promise, what)).code;

/** Entries of one kind that a session left in a state folder. */
export function entriesOf<K extends EntryKind>(stateDir: string, session: string, kind: K): Entry<K>[] {
  return [...readLog(logDir(stateDir), { session, kinds: [kind] })] as Entry<K>[];
}

/** Opens a session that reads `prompt` and writes a little. → the session, still open. */
export async function written(
  engine: Engine,
  options: Parameters<Engine['openSession']>[0],
  prompt: readonly number[] = ids(PROMPT_TOKENS),
): Promise<EngineSession> {
  const session = await engine.openSession({ tokensExpected: prompt.length + 40, ...options });
  await session.generate(prompt, { maxTokens: 40, temperature: 1, seed: 4 }).result;
  return session;
}
