/** Sessions on a runtime of the reference model, without an engine and its thread. */
import { afterAll, beforeAll, expect } from 'vitest';
import type { SessionOptions } from '../../../engine/options/types.ts';
import { Session } from '../../../engine/session/session.ts';
import { Runtime, type RuntimeOptions } from '../../../engine/transformer/runtime/runtime.ts';
import { defaultThresholds } from '../../../policy/index.ts';
import { type Entry, openWitnessLog, readLog, verifyLog, type WitnessLog } from '../../../witness/index.ts';
import { MODEL } from './on-reference.ts';

/**
 * The runtime of a test file, opened before its tests and closed behind them; `options` beside the model. → it, and
 * what opens sessions on it with the built-in thresholds
 */
export function onRuntime(options: Partial<RuntimeOptions> = {}) {
  let runtime: Runtime;
  beforeAll(async () => {
    runtime = await Runtime.open({ model: MODEL, threads: 1, ...options });
  });
  afterAll(() => runtime.close());
  const open = (asked: SessionOptions, log: WitnessLog | null = null): Session =>
    Session.open(runtime, { ...asked, log, thresholds: defaultThresholds(runtime.shape.layers) });
  return { runtime: (): Runtime => runtime, open };
}

/** A session that is closed, with the log that it wrote. */
export interface Logged {
  readonly dir: string;
  readonly session: Session;
  readonly entries: readonly Entry[];
}

/** Opens a session that writes its log into a folder, works with it, and closes both: the log is sound then. */
export async function logged(
  dir: string,
  open: (log: WitnessLog) => Session,
  work: (session: Session) => Promise<void>,
): Promise<Logged> {
  const log = await openWitnessLog({ dir });
  const session = open(log);
  try {
    await work(session);
  } finally {
    session.close();
    await log.close();
  }
  expect(verifyLog(dir).problem).toBeNull();
  return { dir, session, entries: [...readLog(dir, { session: session.id })] };
}

/** What a session writes: a few tokens, drawn in the same way each time. */
export async function write(session: Session, prompt: readonly number[] | null = null): Promise<string> {
  let text = '';
  for await (const piece of session.generate(prompt, { maxTokens: 12, temperature: 1, seed: 3 })) text += piece;
  return text;
}
