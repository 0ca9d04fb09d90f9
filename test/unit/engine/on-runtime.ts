/** Sessions on a runtime of the reference model, without an engine and its thread. */
import { afterAll, beforeAll } from 'vitest';
import type { SessionOptions } from '../../../engine/options/types.ts';
import { Session } from '../../../engine/session/session.ts';
import { Runtime } from '../../../engine/transformer/runtime/runtime.ts';
import { defaultThresholds } from '../../../policy/index.ts';
import type { WitnessLog } from '../../../witness/index.ts';
import { MODEL } from './on-reference.ts';

/**
 * The runtime of a test file, opened before its tests and closed behind them. → it, and what opens sessions on it with
 * the built-in thresholds
 */
export function onRuntime() {
  let runtime: Runtime;
  beforeAll(async () => {
    runtime = await Runtime.open({ model: MODEL, threads: 1 });
  });
  afterAll(() => runtime.close());
  const open = (options: SessionOptions, log: WitnessLog | null = null): Session =>
    Session.open(runtime, { ...options, log, thresholds: defaultThresholds(runtime.shape.layers) });
  return { runtime: (): Runtime => runtime, open };
}

/** What a session writes: a few tokens, drawn in the same way each time. */
export async function write(session: Session, prompt: readonly number[] | null = null): Promise<string> {
  let text = '';
  for await (const piece of session.generate(prompt, { maxTokens: 12, temperature: 1, seed: 3 })) text += piece;
  return text;
}
